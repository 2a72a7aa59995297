"""Model directories of format sixfold-model-1, and files written for sixfold 0.1.0, give what they gave then."""

import json
from pathlib import Path

import pytest

import sixfold
from sixfold.api.load import open_run
from sixfold.scoring.likelihood import likelihood

LEGACY = Path(__file__).parents[1] / "data" / "legacy"
EXPECTED = json.loads((LEGACY / "expected.json").read_text(encoding="utf-8"))
WAYS = {"greedy": {"beam_size": 1}, "beam": {"beam_size": 4, "n_best": 2}}


def _corpus(name):
    return (LEGACY / "corpus" / name).read_text(encoding="utf-8").splitlines()[:8]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_run_gives_the_same_text_and_scores(name, precision, way):
    made = sixfold.load(LEGACY / name, device="cpu")
    write = made.generate if name == "language_model" else made.translate
    search = {"sample": False} if name == "language_model" else {}
    found = write(EXPECTED[name]["lines"], precision=precision, **WAYS[way], **search)
    wanted = EXPECTED[name][f"{precision} {way}"]
    assert [each.text for each in found] == [each["text"] for each in wanted]
    assert [each.score for each in found] == pytest.approx([each["score"] for each in wanted], abs=1e-4)
    assert [each.log_prob for each in found] == pytest.approx([each["log_prob"] for each in wanted], abs=1e-4)
    assert [[other.text for other in each.others] for each in found] == [
        [text for text, _ in each["others"]] for each in wanted
    ]


@pytest.mark.parametrize("name", EXPECTED)
def test_an_old_run_finds_texts_as_likely_as_before(name):
    opened = open_run(LEGACY / name, "cpu")
    sources, targets = (
        ([None] * 8, _corpus("test.en")) if name == "language_model" else (_corpus("test.en"), _corpus("test.ne"))
    )
    found = likelihood(opened.model, opened.tokenizers, zip(sources, targets, strict=True))
    wanted = EXPECTED[name]["log_prob of the test text"]
    assert [each.log_prob for each in found] == pytest.approx(wanted, abs=1e-4)
