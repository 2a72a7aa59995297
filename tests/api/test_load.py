"""`sixfold.load`: from directories to what translates or writes with them."""

import shutil
import subprocess
import sys

import pytest

import sixfold
from sixfold.decoding.generator import Generator
from sixfold.decoding.translator import Translator
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support import runs

LINES = ["a b c", "", "i h g", "c"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return runs.translating(tmp_path_factory.mktemp("run") / "one")


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return runs.translating(tmp_path_factory.mktemp("run") / "two", seed=5)


def test_a_run_translates_as_its_configuration_says(run):
    translator = sixfold.load(run, device="cpu")
    assert isinstance(translator, Translator)
    assert translator.decoding.max_length == 9
    assert sixfold.load(run, device="cpu", settings={"decoding.max_length": "4"}).decoding.max_length == 4
    made = Translator(sixfold.load_model(run), Tokenizers.load(run), translator.decoding)
    assert translator.translate(LINES, beam_size=2) == made.translate(LINES, beam_size=2)


def test_one_process_does_not_wait_for_what_many_need(run):
    """Nor for torch's compiler, which brings it along: together they are half of the time until the first line."""
    slow = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp")
    code = (
        "import sys, sixfold, sixfold.training.runner\n"
        f"sixfold.load({str(run)!r}, device='cpu').translate(['a b'], beam_size=2)\n"
        f"print([name for name in {slow!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_language_model_writes_by_sampling(tmp_path):
    run = runs.writing(tmp_path / "lm")
    writer = sixfold.load(run, device="cpu")
    assert isinstance(writer, Generator)
    assert (writer.decoding.sample, writer.context) == (True, 16)
    assert not sixfold.load(run, settings={"decoding.sample": "false"}).decoding.sample
    assert sixfold.load(run, settings={"decoding.beam_size": "3"}).decoding.beam_size == 3
    assert sixfold.load(run, settings={"decoding.n_best": "3"}).generate(["the"])[0].n_best


def test_several_are_an_ensemble(run, other):
    both = sixfold.load([run, other], device="cpu")
    assert len(both.models) == 2
    alone = [sixfold.load(each, device="cpu").translate(LINES) for each in (run, other)]
    assert both.translate(LINES) not in alone
    assert sixfold.load([str(run), run], device="cpu").translate(LINES)[0].text == alone[0][0].text


def test_an_ensemble_has_one_vocabulary(run, other, tmp_path):
    foreign = tmp_path / "foreign"
    shutil.copytree(other, foreign)
    tokens = Tokenizers.load(foreign)
    swapped = Tokenizers(tokens.source, train_tokenizer("symbols", ["P Q R S T U V W X"], None))
    swapped.save(foreign)
    with pytest.raises(ValueError, match="has another target vocabulary than"):
        sixfold.load([run, foreign])
    with pytest.raises(ValueError, match=r"was trained for translation, .* for language_model"):
        sixfold.load([run, runs.writing(tmp_path / "lm")])
    with pytest.raises(ValueError, match="got none"):
        sixfold.load([])


def test_a_model_directory_without_a_configuration_will_do(run, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(run, bare)
    (bare / "config.yaml").unlink()
    assert sixfold.load(bare, device="cpu").decoding.max_length == 256


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda run: shutil.rmtree(run), "there is no directory"),
        (lambda run: [path.unlink() for path in run.iterdir()], "is not a model directory: it has no model.json"),
        (lambda run: (run / "model.json").unlink(), "has no model yet"),
        (lambda run: (run / "model.safetensors").unlink(), "has no model.safetensors: the model is not complete"),
        (lambda run: (run / "model.safetensors").write_bytes(b"half"), "is damaged"),
        (lambda run: (run / "source.tokenizer.json").unlink(), "must hold tokenizer.json"),
        (lambda run: (run / "model.json").write_text('{"format": "other"}'), "has format 'other'"),
        (lambda run: (run / "config.yaml").write_text("decoding: {beam: 4}"), "there is no key 'decoding.beam'"),
    ],
)
def test_what_is_no_run_gets_one_clear_sentence(run, tmp_path, spoil, words):
    spoilt = tmp_path / "spoilt"
    shutil.copytree(run, spoilt)
    spoil(spoilt)
    with pytest.raises(ValueError, match=words) as caught:
        sixfold.load(spoilt)
    assert "\n" not in str(caught.value)
    assert "spoilt" in str(caught.value)
