"""How a run begins: mistakes are found before anything is touched, and what broke off is no hindrance."""

import shutil
from pathlib import Path

import pytest
import torch

from sixfold.config.files import read_config
from sixfold.config.schema import ModelConfig
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.training import runner as start
from sixfold.training.observers.display import Quiet
from sixfold.training.preflight import check
from sixfold.training.runner import train
from sixfold.training.trainer import Trainer
from tests.support import tiny
from tests.support.breaking_off import breaking_off_at, broken_off, contents


def config(folder, **settings):
    return tiny.config(folder, training__metric="loss", **{"training__steps": 1, **settings})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus, and a run on it."""
    folder = tiny.corpus(tmp_path_factory.mktemp("made"))
    train(config(folder), folder / "run", display=Quiet())
    return folder


@pytest.fixture
def run(made, tmp_path):
    """A run of one's own."""
    return Run(shutil.copytree(made / "run", tmp_path / "run"))


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"model__heads": 3}, "heads"),
        ({"model__modifications": ["rotari"]}, "rotary"),
        ({"training__metric": "blue"}, "blue"),
        ({"data__max_length": 3000, "model__modifications": ["learned_positions"]}, "data.max_length is 3,000.*511"),
    ],
)
def test_a_mistake_is_found_before_the_text_is_read_or_a_run_replaced(made, run, monkeypatch, mistake, words):
    monkeypatch.setattr(start, "prepare_text", broken_off)
    before = contents(run)
    wrong = tiny.config(made, **mistake)
    for out in (run.directory, run.directory.with_name("new")):
        with pytest.raises(ValueError, match=words):
            train(wrong, out, overwrite=True, display=Quiet())
    assert contents(run) == before
    assert not run.directory.with_name("new").exists()


def test_a_context_must_be_one_that_the_model_can_read():
    settings = {"data.train": "text", "model.kind": "decoder_only", "model.modifications": "[synthesizer_random]"}
    check(read_config(None, {**settings, "data.context": "512"}))
    with pytest.raises(ValueError, match=r"data.context is 600, but this model can read only 512"):
        check(read_config(None, {**settings, "data.context": "600"}))


def test_an_old_run_goes_only_when_the_new_one_can_begin(made, run):
    (run.directory / "tensorboard").mkdir()
    before = contents(run)
    with breaking_off_at(start, "make_trainer"):
        train(config(made), run.directory, overwrite=True, display=Quiet())
    assert contents(run) == before
    train(config(made, training__seed=2), run.directory, overwrite=True, display=Quiet())
    assert not (run.directory / "tensorboard").exists()
    assert {p.name for p in contents(run)} == {p.name for p in before}
    assert contents(run) != before


def test_a_model_that_is_no_run_is_left_alone(made, run, tmp_path):
    alone = Run(tmp_path / "model")
    model_files.save(model_files.load(run.directory), alone.directory)
    with pytest.raises(ValueError, match=r"model\.json"):
        train(config(made), alone.directory, overwrite=True, display=Quiet())


def test_a_run_does_not_overwrite_the_one_it_begins_with(made, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = contents(run)
    with pytest.raises(ValueError, match="--out"):
        train(config(made), run.directory, overwrite=True, start_from=Path("run"), display=Quiet())
    assert contents(run) == before


def test_what_begins_with_a_trained_model_is_no_run_before_it_has_saved_it(made, run, tmp_path):
    new = Run(tmp_path / "new")
    new.directory.mkdir()
    with breaking_off_at(Trainer, "save"):
        train(config(made), new.directory, start_from=run.directory, display=Quiet())
    assert not new.exists()
    with breaking_off_at(Trainer, "train"):
        train(config(made), new.directory, start_from=run.directory, display=Quiet())
    assert new.exists()
    mine, theirs = (model_files.load(each.directory).state_dict() for each in (new, run))
    assert all(torch.equal(mine[name], tensor) for name, tensor in theirs.items())


def test_where_too_little_of_a_model_to_begin_with_fits_all_differences_are_named(made, run):
    with pytest.raises(ValueError, match=r"its model.kind is encoder_decoder, here decoder_only"):
        check(config(made, model__kind="decoder_only"), run)
    with pytest.raises(ValueError, match=r"its d_ff is 32, here 64; its heads is 2, here 4; .* none, here rms_norm"):
        check(config(made, model__d_ff=64, model__heads=4, model__modifications=["rms_norm"]), run)


def test_the_configuration_says_which_tokenizer_came_from_another_run(made, run):
    plain = config(made)
    unsaid = plain.data.model_dump(exclude={"tokenizer", "vocabulary"})
    data = check(plain.model_copy(update={"data": type(plain.data)(**unsaid)}), run)[0].data
    sizes = model_files.skeleton(run.directory).sizes
    assert data.tokenizer == plain.data.tokenizer
    assert dict(data.vocabulary) == {"source": sizes.source_vocab, "target": sizes.target_vocab}
    with pytest.raises(ValueError, match=r"data.tokenizer is bpe, .* source characters, target symbols"):
        check(config(made, data__tokenizer="bpe"), run)
    with pytest.raises(ValueError, match=r"data.vocabulary is 2000"):
        check(config(made, data__vocabulary=2000), run)


def test_a_width_that_the_usual_number_of_heads_does_not_divide_is_no_mistake(made, tmp_path):
    unsaid = config(made).model_copy(update={"model": ModelConfig(d_model=100)})
    assert check(unsaid)[1].sizes.heads == 2


def test_a_model_is_built_at_most_twice_before_the_first_step(made, tmp_path, monkeypatch):
    """Once without memory, to check it, and once with weights; the plan adds none, as its sizes are given."""
    built, really = [], Model.__init__

    def counting(model, spec):
        if spec.sizes.d_model == 16:  # another width: the layers on which the plan measures speed
            built.append(type(model).__name__)
        really(model, spec)

    monkeypatch.setattr(Model, "__init__", counting)
    with breaking_off_at(Trainer, "train"):
        train(config(made, training__steps="null", training__minutes=0.001), tmp_path / "new", display=Quiet())
    assert built == ["EncoderDecoder"] * 2
