"""`sixfold score`: of texts, of a run, of a likelihood; and the number that training saw."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

import sixfold as package
from sixfold import BOS, EOS
from sixfold.runs.run import Run
from sixfold.scoring.metrics import METRICS
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from tests.support import runs, tiny
from tests.support.plain_text import recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on words and their letters backwards; some have two right answers."""
    folder = tiny.corpus(tmp_path_factory.mktemp("corpus"))
    with open(folder / "valid.w", "a") as words, open(folder / "valid.r", "a") as letters:
        first = Path(folder / "valid.w").read_text().split()[0]
        words.write(f"{first}\n{first}\n")
        letters.write(f"a b\n{' '.join(first)}\n")
    config = tiny.config(
        folder,
        training__steps=60,
        training__validate_every=30,
        training__checkpoint_every=30,
        training__learning_rate=0.01,
        training__metric="symbol_error_rate",
        decoding__beam_size=2,
    )
    train(config, folder / "run", display=Quiet())
    return folder


def scores(out):
    return {each["name"]: each["value"] for each in json.loads(out)["scores"]}


def test_it_is_the_number_that_training_saw(sixfold, trained):
    best = [r for r in Run(trained / "run").records() if r["kind"] == "valid" and r["best"]][-1]
    code, out, _ = sixfold("score", trained / "run", "--part", "valid", "--json", "--device", "cpu")
    assert code == 0
    assert 0 < best["symbol_error_rate"] < 100
    assert scores(out) == {"symbol_error_rate": best["symbol_error_rate"]}
    assert json.loads(out)["texts"] == 10  # equal sources are one


def test_a_language_model_has_the_loss_that_training_saw(sixfold, tmp_path):
    config = recipe(tmp_path, "lm")
    train(config, tmp_path / "run", display=Quiet())
    best = [r for r in Run(tmp_path / "run").records() if r["kind"] == "valid" and r["best"]][-1]
    code, out, _ = sixfold("score", tmp_path / "run", "--part", "valid", "--json", "--device", "cpu")
    found = json.loads(out)
    assert (code, found["loss"], found["perplexity"]) == (0, best["loss"], best["perplexity"])
    size = len((tmp_path / "valid.txt").read_bytes())
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * found["tokens"] / math.log(2) / size)
    code, _, err = sixfold("score", tmp_path / "run")
    assert (code, "no data.test" in err) == (2, True)


def test_texts_and_several_references(sixfold):
    Path("hyp").write_text("the cat sat\na dog\n\n")
    Path("one").write_text("the cat sat down\na dog\nx\n")
    Path("two").write_text("the cat sat\nthe dog\ny\n")
    hypotheses, references = (
        ["the cat sat", "a dog", ""],
        [("the cat sat down", "the cat sat"), ("a dog", "the dog"), "xy"],
    )
    for refs in (["--ref", "one", "two"], ["--ref", "one", "--ref", "two"]):
        code, out, err = sixfold("score", "--hyp", "hyp", *refs, "--json")
        assert code == 0, err
        expected = {
            name: value
            for metric in ("bleu", "chrf", "ter")
            for name, value in METRICS[metric].score(hypotheses, [tuple(each) for each in references]).items()
        }
        assert scores(out) == expected
    code, out, _ = sixfold("score", "--hyp", "hyp", "--ref", "one", "two", "--metric", "bleu,exact_match")
    assert code == 0
    assert "3 texts" in out
    assert "nrefs:2|case:mixed|eff:no|tok:13a|smooth:exp" in out
    assert f"exact_match  {200 / 3:.2f}" in out


def test_two_systems_compared(sixfold):
    right = [f"word {number} here" for number in range(12)]
    Path("ref").write_text("".join(f"{line}\n" for line in right))
    Path("good").write_text("".join(f"{line}\n" for line in right))
    Path("bad").write_text("".join(f"{line}\n" if n < 3 else "no\n" for n, line in enumerate(right)))
    code, out, _ = sixfold(
        "score", "--hyp", "bad", "--ref", "ref", "--compare", "good", "--metric", "exact_match", "--json"
    )
    (found,) = json.loads(out)["scores"]
    assert (code, found["better"]) == (0, "second")
    assert found["difference"]["value"] == 75
    assert found["p_randomisation"] == pytest.approx(2 / 2**9)  # of the nine that differ, all or none are exchanged
    out = sixfold("score", "--hyp", "bad", "--ref", "ref", "--compare", "good", "--metric", "exact_match")[1]
    assert "good − bad" in out
    assert "approximate randomisation" in out


def test_a_run_decodes_and_is_scored(sixfold, tmp_path):
    run = runs.translating(tmp_path / "run")
    Path("source").write_text("a b c\n\nc\n")
    found = [t.text for t in package.load(run, device="cpu").translate(["a b c", "", "c"], beam_size=2)]
    Path("right").write_text(f"{found[0]}\nB\nB\n")
    code, out, _ = sixfold(
        *("score", run, "--source-file", "source", "--ref", "right", "--metric", "exact_match", "--beam_size", "2"),
        *("--json", "--out", "kept", "--device", "cpu"),
    )
    assert (code, scores(out)["exact_match"]) == (0, pytest.approx(100 / 3))
    assert Path("kept").read_text() == "".join(f"{text}\n" for text in found)
    again = sixfold("score", "--hyp", "kept", "--ref", "right", "--metric", "exact_match", "--json")[1]
    assert scores(again) == scores(out)
    code, out, _ = sixfold("score", run, "--source-file", "source", "--ref", "right", "--json", "--device", "cpu")
    assert [*scores(out)][:3] == ["bleu", "chrf", "ter"]


def by_hand(run, source, target):
    """The sum of teacher-forced log-probabilities, and the tokens."""
    translator = package.load(run, device="cpu")
    ids = translator.tokenizers.target.encode(target)
    model = translator.model
    memory = (
        () if source is None else (model.encode(torch.tensor([[*translator.tokenizers.source.encode(source), EOS]])),)
    )
    log_p = model.log_probs(model.decode(torch.tensor([[BOS, *ids]]), *memory))[0]
    return log_p[range(len(ids) + 1), [*ids, EOS]].sum().item(), len(ids) + 1


def test_likelihood(sixfold, tmp_path):
    run, lm = runs.translating(tmp_path / "run"), runs.writing(tmp_path / "lm")
    Path("source").write_text("a b c\ni\n")
    Path("target").write_text("A B\nC D E F\n")
    texts = [("a b c", "A B"), ("i", "C D E F")]
    code, out, err = sixfold("score", run, "--source-file", "source", "--target-file", "target", "--likelihood")
    assert code == 0
    expected = [by_hand(run, *pair) for pair in texts]
    for line, (log_prob, tokens) in zip(out.splitlines(), expected, strict=True):
        assert [*map(float, line.split("\t"))] == pytest.approx(
            [log_prob, tokens, math.exp(-log_prob / tokens)], abs=1e-3
        )
    total = sum(log_prob for log_prob, _ in expected)
    summary = dict(line.split() for line in err.splitlines())
    assert float(summary["bits_per_byte"]) == pytest.approx(
        -total / math.log(2) / 10, abs=1e-3
    )  # without ends of lines
    code, out, _ = sixfold("score", lm, "--target-file", "target", "--likelihood", "--json")
    assert code == 0
    assert [each["log_prob"] for each in json.loads(out)["each"]] == pytest.approx(
        [by_hand(lm, None, text)[0] for _, text in texts], abs=1e-3
    )


def test_what_is_to_be_known_of_a_likelihood_is_said(sixfold, tmp_path):
    run = runs.translating(tmp_path / "run")
    Path("source").write_text("a\nb\nc\n")
    Path("target").write_text("A B\nA Z\nZ Z C\n")
    given = ("score", run, "--source-file", "source", "--target-file", "target", "--likelihood")
    code, out, err = sixfold(*given)
    assert (code, len(out.splitlines())) == (0, 3)
    assert err.splitlines()[:2] == [
        "line 2: 1 of 2 tokens are not in the vocabulary and were scored as unknown",
        "line 3: 2 of 3 tokens are not in the vocabulary and were scored as unknown",
    ]
    code, whole, err_of_json = sixfold(*given, "--json")
    found = json.loads(whole)
    rows = [[each[key] for key in ("log_prob", "tokens", "perplexity")] for each in found["each"]]
    assert (code, [[round(value, 6) for value in row] for row in rows]) == (
        0,
        [[*map(float, line.split("\t"))] for line in out.splitlines()],
    )
    assert (found["texts"], found["texts_with_unknown_tokens"]) == (3, 2)
    assert [each.get("note", "") != "" for each in found["each"]] == [False, True, True]
    assert err_of_json.splitlines() == err.splitlines()[:2]


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_texts_are_read_and_answered_in_windows(sixfold, tmp_path, monkeypatch, form):
    """What comes after the second window can't keep it from being answered: it has not been read yet."""
    monkeypatch.setattr("sixfold.scoring.likelihood._WINDOW", 2)
    lm, run = runs.writing(tmp_path / "lm"), runs.translating(tmp_path / "run")
    Path("target").write_bytes(b"A\nB\nC\nD\nE\n\xff\n")
    code, out, err = sixfold("score", lm, "--target-file", "target", "--likelihood", *form)
    assert (code, out.count("log_prob" if form else "\n")) == (2, 4)
    assert "target, line 6: byte 0xff" in err
    pipes = []
    for data in (b"a\n" * 5, b"A\n" * 7):
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        pipes.append(f"/dev/fd/{reading}")
    code, out, err = sixfold("score", run, "--source-file", pipes[0], "--target-file", pipes[1], "--likelihood", *form)
    assert (code, out.count("log_prob" if form else "\n")) == (2, 4)
    assert "has 5 lines, but" in err
    assert "has 7: line n of one" in err


def test_files_of_different_length_are_found_before_the_first_text_is_scored(sixfold, tmp_path, monkeypatch):
    monkeypatch.setattr("sixfold.scoring.likelihood._WINDOW", 2)
    run = runs.translating(tmp_path / "run")
    Path("source").write_text("a\n" * 5)
    Path("target").write_text("A\n" * 7)
    code, out, err = sixfold("score", run, "--source-file", "source", "--target-file", "target", "--likelihood")
    assert (code, out) == (2, "")
    assert "source has 5 lines, but target has 7" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "nothing to score"),
        (["--hyp", "two"], "no references to score against"),
        (["--hyp", "two", "--ref", "one"], "two has 2 lines, but one has 1"),
        (["--hyp", "none", "--ref", "one"], "there is no file 'none'"),
        (["--hyp", "two", "--ref", "two", "--metric", "blue"], "did you mean 'bleu'"),
        (["--hyp", "two", "--ref", "two", "--beam_size", "3"], "decoding.beam_size can't be given with --hyp"),
        (["--hyp", "two", "--ref", "two", "--likelihood"], "--likelihood can't be given with --hyp"),
        (["nowhere"], "there is no directory nowhere"),
        (["RUN"], "has no data.test"),
        (["RUN", "--ref", "one"], "--ref needs --source-file"),
        (["RUN", "--source-file", "two", "--ref", "one"], "two has 2 lines, but one has 1"),
        (["RUN", "--source-file", "two", "--likelihood"], "--likelihood needs --target-file"),
        (["RUN", "--target-file", "two", "--likelihood"], "--likelihood needs --source-file"),
        (["RUN", "--target-file", "two", "--source-file", "one", "--likelihood"], "one has 1 lines, but two has 2"),
        (
            ["RUN", "--target-file", "two"],
            "--target-file is for --likelihood; for metrics give the reference texts as --ref",
        ),
        (["RUN", "--likelihood", "--ref", "one"], "--ref can't be given with --likelihood"),
    ],
)
def test_a_mistake_gets_one_sentence(sixfold, tmp_path, arguments, words):
    run = runs.translating(tmp_path / "run")
    Path("one").write_text("a\n")
    Path("two").write_text("a\nb\n")
    code, out, err = sixfold("score", *(run if each == "RUN" else each for each in arguments))
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_ter_is_left_out_for_endless_lines_unless_asked_for(sixfold, tmp_path):
    (tmp_path / "long.txt").write_text("a " * 2001 + "\n")
    code, out, err = sixfold("score", "--hyp", "long.txt", "--ref", "long.txt", "--json")
    assert (code, scores(out).keys()) == (0, {"bleu", "chrf"})
    assert "ter is left out" in err
    assert "2,001 words" in err
    code, out, _ = sixfold("score", "--hyp", "long.txt", "--ref", "long.txt", "--metric", "ter", "--json")
    assert (code, scores(out)) == (0, {"ter": 0.0})
