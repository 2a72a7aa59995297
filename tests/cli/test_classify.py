"""`sixfold classify`, as a person or a script uses it; a stand-in loads the run, and gives a small classifier."""

import gzip
import json
import sys
from pathlib import Path

import pytest
import torch

from sixfold.cli import main
from sixfold.cli.classify import classify_lines
from sixfold.config.schema import change_decoding
from tests.support.classifiers import TEXTS, small_classifier
from tests.support.standard_input import Stdin
from tests.support.translators import small_translator


@pytest.fixture
def loaded():
    """Calls of `load`, each with what was asked of it."""
    return []


@pytest.fixture
def sixfold(monkeypatch, capsysbinary, tmp_path, loaded):
    """→ exit code, standard output and standard error"""
    monkeypatch.chdir(tmp_path)

    def load(runs, device, imports, settings):
        loaded.append((runs, device, imports, settings))
        if runs == [Path("translator")]:
            return small_translator()
        classifier = small_classifier(dtype=torch.float32)
        classifier.decoding = change_decoding(
            classifier.decoding,
            {key.partition(".")[2]: int(value) if value.isdecimal() else value for key, value in settings.items()},
        )
        return classifier

    monkeypatch.setattr("sixfold.api.load.load", load)

    def command(*arguments, stdin=b"", terminal=False):
        monkeypatch.setattr(sys, "argv", ["sixfold", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", Stdin(stdin, terminal))
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsysbinary.readouterr()
        return left.value.code or 0, out.decode(), err.decode()

    return command


def found(*texts, **keys):
    return small_classifier(dtype=torch.float32).classify(texts, **keys)


def expected(*texts, **keys):
    return "".join(f"{each.label}\t{each.probability:.4f}\n" if each.label else "\n" for each in found(*texts, **keys))


def test_line_in_label_and_probability_out(sixfold):
    text = "".join(f"{text}\n" for text in TEXTS)
    code, out, err = sixfold("classify", "run", stdin=text.encode())
    assert (code, out) == (0, expected(*TEXTS))
    assert (out.splitlines()[1], len({line.partition("\t")[0] for line in out.splitlines()})) == ("", 4)
    assert err.startswith("10 lines in ")
    Path("in.txt").write_text(text)
    assert sixfold("classify", "run", "in.txt", "--window", "2")[1] == out
    with gzip.open("in.txt.gz", "wb") as file:
        file.write(b"\xef\xbb\xbf" + text.encode())
    assert sixfold("classify", "run", "in.txt.gz", "--out", "out.tsv")[:2] == (0, "")
    assert Path("out.tsv").read_text() == out
    assert sixfold("classify", "run", stdin=b"")[1] == ""


def test_jsonl_has_all_probabilities(sixfold):
    code, out, _ = sixfold("classify", "run", "--format", "jsonl", stdin=b"a b\n\n")
    (answer,) = found("a b")
    first, empty = map(json.loads, out.splitlines())
    assert (code, first["text"], first["label"], first["note"]) == (0, "a b", answer.label, "")
    assert first["probability"] == pytest.approx(answer.probability, abs=1e-6)
    assert first["probabilities"] == pytest.approx(answer.probabilities, abs=1e-6)
    assert empty == {"text": "", "label": "", "probability": 0.0, "probabilities": {}, "note": ""}


def test_options_reach_what_loads_the_run(sixfold, loaded):
    Path("part.py").write_text("")
    arguments = ("--max_source", "2", "--precision", "int8", "--device", "cpu", "--import", "part.py")
    code, out, err = sixfold("classify", "run", *arguments, stdin=b"a b c\n")
    settings = {"decoding.max_source": "2", "decoding.precision": "int8"}
    assert loaded == [([Path("run")], "cpu", [Path("part.py")], settings)]
    assert (code, out) == (0, expected("a b c", max_source=2, precision="int8"))
    assert "line 1: the text has 3 tokens and was truncated to 2 (decoding.max_source)" in err
    assert sixfold("classify", "run", "--decoding.max_source", "2", stdin=b"a b c\n")[1] == expected("a b")


def test_the_help_knows_what_makes_sense_here(sixfold):
    code, out, _ = sixfold("classify", "--help")
    assert code == 0
    assert "  --max_source " in out
    assert "beam_size" not in out


def test_a_mistake_names_its_line_after_all_before_it_are_done(sixfold):
    code, out, err = sixfold("classify", "run", "--too_long", "refuse", "--max_source", "2", stdin=b"a\nb\na b c\nc\n")
    assert (code, out) == (2, expected("a", "b"))
    assert "line 3: the text has 3 tokens, and no more than 2 are taken" in err
    code, out, err = sixfold("classify", "run", stdin=b"a\n\xff\n")
    assert (code, out) == (2, expected("a"))
    assert "standard input, line 2: byte 0xff" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["classify", "run", "none.txt"], "there is no file 'none.txt'; give a text as: echo none.txt | sixfold"),
        (["classify", "run", "here.txt", "--out", "here.txt"], "--out here.txt is also the input"),
        (["classify", "run", "here.csv"], "each line of the input must be a text"),
        (["classify", "run", "here.txt", "more.txt"], "'more.txt' was given, too; give a text as: echo more.txt"),
        (["classify", "translator", "here.txt"], "is a model of kind encoder_decoder: use `sixfold translate`"),
        (["classify", "run", "here.txt", "--beam_size", "2"], "beam_size"),
    ],
)
def test_a_mistake_gets_one_sentence(sixfold, arguments, words):
    Path("here.txt").write_text("a\n")
    Path("here.csv").write_text("a,b\n")
    code, out, err = sixfold(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert Path("here.txt").read_text() == "a\n"


def test_a_classifier_is_not_for_translating(sixfold):
    code, _, err = sixfold("translate", "run", stdin=b"a\n")
    assert (code, "is a model of kind encoder_only: use `sixfold classify`" in err) == (2, True)


def test_a_prompt_on_a_terminal(sixfold, monkeypatch):
    lines = iter(["a b", "", "a " * 2000])

    def asked(prompt):
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", asked)
    code, out, err = sixfold("classify", "run", terminal=True)
    assert (code, out) == (0, expected("a b", "", "a " * 1024))
    assert err.startswith("A text to classify; Ctrl-D to leave.")
    assert "truncated to 1,024" in err


def test_a_prompt_on_a_terminal_writes_no_file(sixfold):
    code, out, err = sixfold("classify", "run", "--out", "out.tsv", terminal=True)
    assert (code, out, Path("out.tsv").exists()) == (2, "", False)
    assert err.startswith("sixfold: --out can't be given with lines typed one by one; give FILE, or -")


def test_a_mistake_in_an_option_leaves_the_output_alone(tmp_path):
    (tmp_path / "out.tsv").write_text("keep me\n")
    with pytest.raises(ValueError, match="at least one line"):
        classify_lines(small_classifier(), ["a"], tmp_path / "out.tsv", "text", window=0)
    assert (tmp_path / "out.tsv").read_text() == "keep me\n"


def test_any_classifier_will_do(tmp_path):
    classify_lines(small_classifier(labels=("a\nb", "c\nd")), ["a", None, "", "i h"], tmp_path / "out.tsv", "text", 4)
    first, empty, last, end = (tmp_path / "out.tsv").read_text().split("\n")
    assert {line.partition("\t")[0] for line in (first, last)} <= {"a b", "c d"}
    assert (empty, end) == ("", "")
