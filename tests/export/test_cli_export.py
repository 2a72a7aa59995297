"""`sixfold export`, as a person uses it, and the programs that its READMEs show."""

import io
import json
import re
import sys
from functools import partial

import pytest
import torch

import sixfold as package
from sixfold.export import export
from sixfold.text.tokenizer import UNK
from tests import runs
from tests.decoding.test_writer import WORDS
from tests.export.small_runs import directory, opened, saved


@pytest.fixture
def shown_program(monkeypatch, capsys):
    """Run the program of a README on lines. → what it prints"""

    def run(folder, *lines):
        (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        monkeypatch.setattr(sys, "argv", ["program", str(folder)])
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        capsys.readouterr()
        exec(compile(program, "README.md", "exec"), {})
        return capsys.readouterr().out.splitlines()

    return run


def texts(run, *lines, **keys):
    return [found.text for found in package.load(run, device="cpu").translate(lines, **keys)]


def test_a_run_is_exported_and_its_readme_translates(sixfold, shown_program, tmp_path):
    run = runs.translating(tmp_path / "run")
    code, out, err = sixfold("export", run, "--to", "ctranslate2", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "the same, token by token" in out
    assert "100 (100.0%)" in out
    lines = ["a b c", "i h g", "d"]
    assert shown_program(tmp_path / "out", *lines) == texts(run, *lines, max_length=256, max_ratio=1e6)


def test_a_language_model_is_exported_and_its_readme_goes_on(sixfold, shown_program, tmp_path):
    run = runs.writing(tmp_path / "run")
    code, out, _ = sixfold("export", run, "--to", "ctranslate2", "--out", tmp_path / "out", "--lines", 5, "--json")
    assert code == 0
    assert json.loads(out)["compared"]["same"] == 5
    writer = package.load(run, device="cpu")
    prompts = ["the cat", "how"]
    right = [each.text for each in writer.generate(prompts, sample=False, max_length=256)]
    assert "\n".join(shown_program(tmp_path / "out", *prompts)) == "\n".join("\n".join(right).splitlines())


def test_programs_and_weights_are_exported_with_programs_that_read_them(sixfold, shown_program, tmp_path):
    run = directory(tmp_path / "run", encoder_layers=1, decoder_layers=1)
    code, out, _ = sixfold("export", run, "--to", "torch", "--out", tmp_path / "torch", "--lines", 5)
    assert code == 0
    assert "5 (100.0%)" in out
    assert shown_program(tmp_path / "torch", "a b c", "p o") == texts(
        run, "a b c", "p o", max_length=256, max_ratio=1e6
    )
    code, out, _ = sixfold("export", run, "--to", "safetensors", "--out", tmp_path / "weights")
    assert (code, out) == (0, f"wrote {tmp_path / 'weights'}\n")
    assert "tables.0.weight (21, 16)" in shown_program(tmp_path / "weights")


@pytest.mark.parametrize(
    ("to", "kind"), [("ctranslate2", "encoder_decoder"), ("ctranslate2", "decoder_only"), ("torch", "decoder_only")]
)
def test_programs_write_unknown_words_and_ends_of_lines_as_we_do(to, kind, shown_program, tmp_path):
    made = opened(kind, source=WORDS, target=WORDS, encoder_layers=1, decoder_layers=1)
    instead = {UNK: "cat"} if kind == "encoder_decoder" else {UNK: "cat", WORDS.encode("\n")[0]: "how"}
    with torch.no_grad():
        table = made.model._table["output"].weight
        table[[*instead]] = 1.01 * table[[WORDS.encode(word)[0] for word in instead.values()]]
    run = saved(made, tmp_path / "run")
    export(run, to, tmp_path / "out", lines=3)
    loaded, lines = package.load(run, device="cpu"), ["the cat", "how", "sat on"]
    write = loaded.translate if kind == "encoder_decoder" else partial(loaded.generate, sample=False)
    right = "\n".join(found.text for found in write(lines, max_length=256, max_ratio=1e6))
    assert "<unk>" in right
    assert ("\n\n" in right) == (kind == "decoder_only")  # who reads lines never writes their end
    assert "\n".join(shown_program(tmp_path / "out", *lines)) == right


def test_a_file_can_be_the_sample(sixfold, tmp_path):
    run, file = runs.translating(tmp_path / "run"), tmp_path / "sample.txt"
    file.write_text("a b\n\nc d e\nf\n")
    code, out, _ = sixfold("export", run, "--to", "ctranslate2", "--out", tmp_path / "out", "--sample", file, "--json")
    assert code == 0
    assert json.loads(out)["compared"]["texts"] == 3


def test_a_mistake_is_one_line(sixfold, tmp_path):
    run = directory(tmp_path / "run", wishes=("softplus",))
    code, out, err = sixfold("export", run, "--to", "ctranslate2", "--out", tmp_path / "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("sixfold: softplus can't be exported to CTranslate2, whose activations are")
    assert not (tmp_path / "out").exists()
