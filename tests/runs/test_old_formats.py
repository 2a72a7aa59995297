"""Files of older formats are translated where they are read; in a new file an old word is an error with the new one."""

import json
import shutil
from pathlib import Path

import pytest

import sixfold
from sixfold.runs import model_files, old_formats
from sixfold.runs.run import Run
from sixfold.spec.registry import all_modifications, choose

OLD_RUN = Path(__file__).parents[1] / "data" / "legacy" / "funnel_study"
VARIANTS = [name for name in all_modifications() if name.endswith("_study")]


@pytest.fixture
def old_run(tmp_path):
    return Path(shutil.copytree(OLD_RUN, tmp_path / "run"))


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("rotary", "rotary"),
        ("rotary: base = 100", "rotary: base = 100"),  # as it is, to the letter
        ({"t5_bias": {}}, {"t5_bias": {}}),
        ({"t5_bias": None}, {"t5_bias": None}),
        ("funnel:study=true,blocks=2", {"funnel_study": {"blocks": "2"}}),
        ("funnel: study = True", {"funnel_study": {}}),
        ("funnel:blocks=2,study=false", {"funnel": {"blocks": "2"}}),
        ({"weighted": {"study": True, "freeze": 3}}, {"weighted_study": {"freeze": 3}}),
        ({"weighted": {"study": False, "freeze": 3}}, {"weighted": {"freeze": 3}}),
        ("universal:study=true,halting=false,steps=3", {"universal_study": {"steps": "3"}}),
        ("dynamic_convolution:study=true,widths=3/7,shared=2", {"dynamic_convolution_study": {}}),
        ("my_own:study=true", "my_own:study=true"),
        (3, 3),
    ],
)
def test_an_old_word_in_todays(old, new):
    assert old_formats.modification(old) == new


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_had_an_old_name_and_has_all_options_that_it_had_then_a_use_for(name):
    translated = choose(old_formats.modification({name.removesuffix("_study"): {"study": True}}))
    assert translated.name == name
    original = name.removesuffix("_study")
    plain, unused = all_modifications()[original], old_formats._HAD_STUDY[original]
    assert set(plain.options) - set(unused) == set(all_modifications()[name].options)


@pytest.mark.parametrize("name", VARIANTS)
def test_where_nothing_is_translated_the_old_word_is_an_error_with_the_new_name(name):
    with pytest.raises(ValueError, match=f"no option 'study'; use '{name}' instead of"):
        choose(f"{name.removesuffix('_study')}:study=true")


def test_an_old_model_is_translated_and_a_new_one_is_not(old_run):
    model = model_files.load(old_run)
    assert [str(chosen) for chosen in model.assembly.modifications] == ["funnel_study:blocks=2", "t5_bias"]
    change(old_run / "model.json", format="sixfold-model-2")
    with pytest.raises(ValueError, match=r"model\.json: .*use 'funnel_study'"):
        model_files.load(old_run)


def test_what_is_saved_is_of_the_new_format_and_loads(tmp_path, old_run):
    model = model_files.load(old_run)
    sixfold.save(model, tmp_path / "saved")
    description = json.loads((tmp_path / "saved" / "model.json").read_text())
    assert description["format"] == "sixfold-model-2"
    assert description["modifications"] == [{"funnel_study": {"blocks": 2}}, {"t5_bias": {}}]
    assert model_files.load(tmp_path / "saved").assembly.modifications == model.assembly.modifications


def test_an_old_model_whose_description_was_changed_is_refused(old_run):
    """The weights carry a hash of the description as it was written, not as it is translated."""
    change(old_run / "model.json", modifications=[{"funnel": {"study": True, "blocks": 1}}, {"t5_bias": {}}])
    with pytest.raises(ValueError, match=r"was saved with another model\.json"):
        model_files.load(old_run)


def modifications_of(run):
    return [str(choose(wish)) for wish in Run(run).read_config().model.modifications]


def test_the_configuration_of_an_old_run_is_translated(old_run):
    assert modifications_of(old_run) == ["funnel_study:blocks=2", "t5_bias"]
    (old_run / "run.json").unlink()
    assert modifications_of(old_run) == ["funnel_study:blocks=2", "t5_bias"]  # model.json says that it is old


def test_that_of_an_old_run_that_went_on_still_is(old_run):
    """Training saves a new model beside the old configuration."""
    sixfold.save(model_files.load(old_run), old_run, overwrite=True)
    assert modifications_of(old_run) == ["funnel_study:blocks=2", "t5_bias"]


def test_that_of_a_new_run_is_not(old_run):
    change(old_run / "run.json", format="sixfold-run-2")
    assert "funnel:study=true,blocks=2" in Run(old_run).read_config().model.modifications
    change(old_run / "run.json", format="sixfold-run-99")
    with pytest.raises(ValueError, match=r"run\.json has format 'sixfold-run-99'; .* reads 'sixfold-run-2'"):
        Run(old_run).read_config()


def test_a_new_run_says_its_format_and_is_read_back(tmp_path, old_run):
    config = Run(old_run).read_config()
    Run(tmp_path / "new").begin(config, {})
    assert json.loads((tmp_path / "new" / "run.json").read_text())["format"] == "sixfold-run-2"
    assert Run(tmp_path / "new").read_config() == config
