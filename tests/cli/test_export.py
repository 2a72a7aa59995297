"""`sixfold export`, as a person uses it, and the programs that its READMEs show."""

import io
import json
import re
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import sixfold as package
from sixfold.core.ids import UNK
from sixfold.foreign.export import export
from tests.support import runs
from tests.support.generators import WORDS
from tests.support.small_runs import directory, opened, saved


@pytest.fixture
def shown_program(monkeypatch, capsys):
    """Run the program of a README on lines. → what it prints"""

    def run(folder, *lines):
        (program,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        monkeypatch.setattr(sys, "argv", ["program", str(folder)])
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        capsys.readouterr()
        exec(compile(program, "README.md", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out.splitlines()

    return run


def by_the_run(run, lines):
    """What the run itself writes, without chance."""
    loaded = package.load(run, device="cpu")
    write = loaded.translate if loaded.model.kind == "encoder_decoder" else partial(loaded.generate, sample=False)
    return [found.text for found in write(lines)]


def without_chance(folder):
    """Let the program of an exported language model take the likeliest words."""
    about = json.loads((folder / "export.json").read_text())
    about["decoding"]["sample"] = False
    about.setdefault("options", {})["sampling_topk"] = 1
    (folder / "export.json").write_text(json.dumps(about))


def test_a_run_is_exported_and_its_readme_translates(sixfold, shown_program, tmp_path):
    run = runs.translating(tmp_path / "run")
    code, out, err = sixfold("export", run, "--to", "ctranslate2", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "identical, token by token" in out
    assert "100 (100.0%)" in out
    lines = ["a b c", "i h g", "d"]
    assert shown_program(tmp_path / "out", *lines) == by_the_run(run, lines)


def test_a_language_model_is_exported_and_its_readme_goes_on(sixfold, shown_program, tmp_path):
    run = runs.writing(tmp_path / "run")
    code, out, _ = sixfold("export", run, "--to", "ctranslate2", "--out", tmp_path / "out", "--lines", 5, "--json")
    assert code == 0
    assert json.loads(out)["compared"]["same"] == 5
    prompts = ["the cat", "how"]
    without_chance(tmp_path / "out")
    right = "\n".join(by_the_run(run, prompts))
    assert shown_program(tmp_path / "out", *prompts) == right.splitlines()


def test_programs_and_weights_are_exported_with_programs_that_read_them(sixfold, shown_program, tmp_path):
    run = directory(tmp_path / "run", encoder_layers=1, decoder_layers=1)
    code, out, _ = sixfold("export", run, "--to", "torch", "--out", tmp_path / "torch", "--lines", 5)
    assert code == 0
    assert "5 (100.0%)" in out
    assert shown_program(tmp_path / "torch", "a b c", "p o") == by_the_run(run, ["a b c", "p o"])
    code, out, _ = sixfold("export", run, "--to", "safetensors", "--out", tmp_path / "weights")
    assert (code, out) == (0, f"wrote {tmp_path / 'weights'}\n")
    assert "tables.0.weight (21, 16)" in shown_program(tmp_path / "weights")


@pytest.mark.parametrize(
    ("to", "kind"), [("ctranslate2", "encoder_decoder"), ("ctranslate2", "decoder_only"), ("torch", "decoder_only")]
)
def test_programs_write_unknown_words_and_ends_of_lines_as_we_do(to, kind, shown_program, tmp_path):
    wishes = ("no_positions", "untied")
    made = opened(kind, wishes, source=WORDS, target=WORDS, encoder_layers=1, decoder_layers=1)
    ends = [] if kind == "encoder_decoder" else WORDS.encode("\n")  # who reads lines never writes their end
    say_in_turn(made.model, [*WORDS.encode("the"), UNK, *ends, *WORDS.encode("cat")])
    run, lines = saved(made, tmp_path / "run"), ["the cat", "how", "sat on"]
    export(run, to, tmp_path / "out", lines=3)
    without_chance(tmp_path / "out")
    right = by_the_run(run, lines)
    assert all("<unk>" in text and ("\n" in text) == (kind == "decoder_only") for text in right)
    assert "\n".join(shown_program(tmp_path / "out", *lines)) == "\n".join(right)


@torch.no_grad()
def say_in_turn(model, words):
    """Let it say these words, round and round: the one that it said last decides, since all else in it is small."""
    for name, parameter in model.named_parameters():
        if name.endswith((".output.weight", ".outer.weight", ".bias")):
            parameter *= 0.01
    read, write = (model.roles[role].weight.zero_() for role in ("target", "output"))
    read[:, 0] = 1  # each of these words has a coordinate of its own, and all others share one
    for index, (word, after) in enumerate(zip(words, [*words[1:], words[0]], strict=True), 1):
        read[word] = F.one_hot(torch.tensor(index), read.shape[1])
        write[after, index] = 9
    write[words[0], 0] = 9


@pytest.mark.parametrize(
    ("to", "kind", "length"),
    [
        ("ctranslate2", "decoder_only", 3),
        ("ctranslate2", "decoder_only", 10),
        ("ctranslate2", "decoder_only", 17),
        ("ctranslate2", "encoder_decoder", 17),
        ("torch", "decoder_only", 17),
        ("torch", "encoder_decoder", 17),
    ],
)
def test_positions_that_end_bound_what_is_compared_and_what_programs_read_and_write(
    to, kind, length, shown_program, tmp_path
):
    wishes = (f"learned_positions:length={length}",)
    run = directory(tmp_path / "run", kind, wishes, encoder_layers=1, decoder_layers=1)
    lines = ["a", "a b c d e f g h i j k l m n o p", 10 * "c b a "]
    assert export(run, to, tmp_path / "out", texts=lines).agreement.share == 1
    written = json.loads((tmp_path / "out" / "export.json").read_text())["room"]["written"]
    assert written == min(9, length // 2 if kind == "decoder_only" else length - 1)  # 9: decoding.max_length
    without_chance(tmp_path / "out")
    assert shown_program(tmp_path / "out", *lines) == by_the_run(run, lines)


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
