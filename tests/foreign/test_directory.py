"""A directory of an export is whole or not there, holds what it says, and takes nobody else's place."""

import json
import math

import pytest
import safetensors.numpy
import tokenizers
import torch

from sixfold import BOS, EOS
from sixfold.config.schema import Decoding
from sixfold.decoding.equalities import largest
from sixfold.decoding.records import Translation
from sixfold.decoding.translator import Translator
from sixfold.disk.atomic import STAGED, new_directory, save_tensors
from sixfold.foreign import directory as writing
from sixfold.foreign import safetensors as to_safetensors
from sixfold.foreign.agreement import Agreement, _gap, compare, sample
from sixfold.foreign.export import Exported, export, refusal
from sixfold.runs.run import Run
from sixfold.scoring.likelihood import token_log_probs
from tests.support.small_runs import TEXTS, directory, opened, saved


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return directory(tmp_path_factory.mktemp("runs") / "mine")


def files(folder):
    return {path.name for path in folder.iterdir()}


def test_the_directory_appears_whole(run, tmp_path):
    done = export(run, "ctranslate2", tmp_path / "out", texts=TEXTS)
    assert done == Exported(tmp_path / "out", "ctranslate2", done.agreement)
    assert files(tmp_path) == {"out"}
    assert files(tmp_path / "out") == {
        "README.md",
        "config.json",
        "export.json",
        "model.bin",
        "shared_vocabulary.json",
        "tokenizer.json",
    }
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    assert about["compared"] == done.agreement.json()
    assert (about["compared"]["texts"], about["compared"]["same"]) == (9, 9)
    assert about["limits"] == {"encoder": 4096, "decoder": 4096}
    assert about["modifications"] == [{"untied": {}}]


def test_a_run_is_only_read(run, tmp_path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    export(run, "ctranslate2", tmp_path / "out", quantization="int8")
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


@pytest.mark.parametrize("broken", ["write", "compare"])
def test_what_breaks_off_leaves_nothing_and_what_was_there_stays(run, tmp_path, monkeypatch, broken):
    export(run, "safetensors", tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    if broken == "write":
        monkeypatch.setattr(writing, "readme", lambda *_: 1 / 0)
        said = pytest.raises(ZeroDivisionError)
    else:
        monkeypatch.setattr(writing, "compare", lambda *_: Agreement(10, 9, 0.5, 0.0))
        said = pytest.raises(ValueError, match="does not agree with the original, so it was not written: 9 of 10")
    for place in ("out", "new"):
        with said:
            export(run, "ctranslate2", tmp_path / place, overwrite=True)
    assert files(tmp_path) == {"out"}
    assert before == {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}


def test_quantised_models_may_differ(run, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "compare", lambda *_: Agreement(10, 9, 0.5, 0.0))
    assert export(run, "ctranslate2", tmp_path / "out", quantization="int8").agreement.same == 9


def test_only_an_earlier_export_is_replaced_and_only_if_that_is_said(run, tmp_path):
    export(run, "safetensors", tmp_path / "out")
    with pytest.raises(ValueError, match="already holds an export; give --overwrite"):
        export(run, "safetensors", tmp_path / "out")
    export(run, "ctranslate2", tmp_path / "out", overwrite=True, lines=0)
    assert "model.safetensors" not in files(tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    for place in (tmp_path / "mine", run, tmp_path / "mine" / "diary.txt"):
        with pytest.raises(ValueError, match="is not an export; give another --out"):
            export(run, "safetensors", place, overwrite=True)
    (tmp_path / "empty").mkdir()
    export(run, "safetensors", tmp_path / "empty")


def test_a_link_stays_and_what_it_leads_to_is_replaced(run, tmp_path):
    export(run, "safetensors", tmp_path / "far" / "real")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "real")
    export(run, "ctranslate2", tmp_path / "link", overwrite=True, lines=0)
    assert (tmp_path / "link").is_symlink()
    assert "model.bin" in files(tmp_path / "far" / "real")
    assert (files(tmp_path), files(tmp_path / "far")) == ({"link", "far"}, {"real"})


def test_what_a_killed_export_left_goes_with_the_next_of_that_name(run, tmp_path):
    for name in ("out.abc", "other.abc"):
        (tmp_path / f"{STAGED}{name}" / "sub").mkdir(parents=True)
    with new_directory(tmp_path / "out") as held:  # somebody is at work on it
        export(run, "safetensors", tmp_path / "out")
        assert files(tmp_path) == {"out", f"{STAGED}other.abc", held.name}


def test_what_a_killed_export_was_about_to_replace_comes_back(run, tmp_path):
    export(run, "safetensors", tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / f"{STAGED}out.abc.old")
    (tmp_path / f"{STAGED}out.abc").mkdir()
    with pytest.raises(ValueError, match="already holds an export; give --overwrite"):
        export(run, "ctranslate2", tmp_path / "out")
    assert files(tmp_path) == {"out"}


def test_what_is_refused_leaves_no_directory_above_it_either(run, tmp_path):
    (tmp_path / "here").mkdir()
    with pytest.raises(ValueError, match="no quantization 'int7'"):
        export(run, "ctranslate2", tmp_path / "here" / "deep" / "er" / "out", quantization="int7")
    assert {path.name for path in tmp_path.rglob("*")} == {"here"}


@pytest.mark.parametrize("place", [".", "../empty"])
def test_the_directory_one_is_in_cannot_be_replaced(run, tmp_path, monkeypatch, place):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(ValueError, match=f"^{place} is the current directory"):
        export(run, "safetensors", place)


def test_weights_can_be_read_without_us(run, tmp_path):
    done = export(run, "safetensors", tmp_path / "out")
    assert done.agreement is None
    assert files(tmp_path / "out") == {"README.md", "export.json", "model.safetensors"}
    weights = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    about = json.loads((tmp_path / "out" / "export.json").read_text())
    made = opened()
    words = tokenizers.Tokenizer.from_str(json.dumps(about["tokenizers"]["target"])).get_vocab_size()
    assert weights[about["tables"]["output"] + ".weight"].shape == (words, about["sizes"]["d_model"])
    assert len({*about["tables"].values()}) == 3
    for name, tensor in made.model.state_dict().items():
        assert (weights[name] == tensor.numpy()).all()


def test_weights_that_are_no_numbers_are_exported_as_they_are(tmp_path):
    made = opened()
    with torch.no_grad():
        made.model.tables[0].weight[0, 0] = math.nan
    export(saved(made, tmp_path / "run"), "safetensors", tmp_path / "out")
    weights = safetensors.numpy.load_file(tmp_path / "out" / "model.safetensors")
    assert math.isnan(weights["tables.0.weight"][0, 0])


def test_a_file_that_is_damaged_while_it_is_written_is_an_error_of_the_disk(run, tmp_path, monkeypatch):
    def damaging(tensors, path):
        save_tensors({name: tensor + (name == "tables.0.weight") for name, tensor in tensors.items()}, path)

    monkeypatch.setattr(to_safetensors, "save_tensors", damaging)
    with pytest.raises(OSError, match="damaged while it was written") as error:
        export(run, "safetensors", tmp_path / "out")
    assert error.value.filename == str(tmp_path / "out")
    assert files(tmp_path) == set()


def test_mistakes_are_named(run, tmp_path):
    with pytest.raises(ValueError, match="there is no format 'onnx' to export to; there are ctranslate2"):
        export(run, "onnx", tmp_path / "out")
    with pytest.raises(ValueError, match="quantization works with --to ctranslate2 only"):
        export(run, "torch", tmp_path / "out", quantization="int8")
    with pytest.raises(ValueError, match="there is no quantization ''; there are float32"):
        export(run, "ctranslate2", tmp_path / "out", quantization="")
    with pytest.raises(ValueError, match="there is no directory"):
        export(tmp_path / "nowhere", "torch", tmp_path / "out")
    with pytest.raises(ValueError, match="no text to compare on"):
        export(run, "ctranslate2", tmp_path / "out", texts=["", "  "])
    assert files(tmp_path) == set()


def test_who_is_refused_is_told_before_anything_is_written(tmp_path):
    made = opened(wishes=("elu",))
    assert refusal(made, "ctranslate2").startswith("elu can't be exported to CTranslate2")
    assert refusal(made, "torch") is refusal(made, "safetensors") is refusal(opened(), "ctranslate2") is None


class Parrot:
    """An engine that writes what it is told, and finds it as likely as the model does."""

    def __init__(self, model, outputs):
        self.model, self.outputs = model, outputs

    def greedy(self, rows, limit):
        return self.outputs

    def log_probs(self, rows, outputs):
        return token_log_probs(self.model, rows, outputs)


def originals(made):
    return [
        list(each.tokens) for each in Translator(made.model, made.tokenizers, Decoding(max_length=9)).translate(TEXTS)
    ]


def test_a_gap_is_how_much_less_likely_the_first_other_word_is():
    made = opened()
    right = originals(made)
    assert compare(made.model, made.tokenizers, TEXTS, 9, Parrot(made.model, right)) == Agreement(9, 9, 0.0, 0.0)
    early = [right[0][:2], *right[1:]]  # the first of them ends too early
    assert len(right[0]) > 2
    agreement = compare(made.model, made.tokenizers, TEXTS, 9, Parrot(made.model, early))
    assert (agreement.same, agreement.texts, agreement.close) == (len(TEXTS) - 1, len(TEXTS), False)
    source = torch.tensor([[*made.tokenizers.source.encode(TEXTS[0]), EOS]])
    with torch.no_grad():
        x = made.model.decode(torch.tensor([[BOS, *early[0]]]), made.model.encode(source))
        log_probs = made.model.log_probs(x[0, -1])
    assert agreement.gap == pytest.approx(float(log_probs[right[0][2]] - log_probs[EOS]), abs=1e-5)


class Muttering(Parrot):
    """One whose log-probabilities are nonsense from some token on."""

    def log_probs(self, rows, outputs):
        return [[-1.0] * len(output) + [math.nan] for output in outputs]


def test_what_is_no_number_is_infinitely_far_apart():
    made = opened()
    agreement = compare(made.model, made.tokenizers, TEXTS, 9, Muttering(made.model, originals(made)))
    assert (agreement.log_prob, agreement.close) == (math.inf, False)
    nonsense = [Translation(tokens=(7,), log_probs=(number, number)) for number in (math.nan, -math.inf)]
    assert [largest([_gap(each, [8], [-math.inf])]) for each in nonsense] == [math.inf, 0.0]


@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only"])
def test_a_run_without_text_is_compared_on_random_ones(kind, tmp_path):
    made = opened(kind)
    texts = sample(Run(tmp_path), *made[:2], made.config, 20)
    assert len(texts) == 20
    assert len({*texts}) > 10
    assert texts == sample(Run(tmp_path), *made[:2], made.config, 20)
