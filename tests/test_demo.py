"""`make demo`, in seconds."""

import re
import subprocess
import sys

import pytest

from sixfold.demonstration import SCORED, SHOWN, Answers, demo, is_right, spread, verdict
from sixfold.text.preparation import Reference
from sixfold.training.observers.observer import Validated
from tests.support.breaking_off import Listener

TINY = {
    "data.train": "pronounce:valid",  # a small part, and so little to prepare
    "data.test": "pronounce:test",
    "model.d_model": "16",
    "model.d_ff": "16",
    "model.heads": "2",
    "model.layers": "1",
    "training.batch_tokens": "200",
    "training.metric": "loss",
    "decoding.max_length": "5",
}


def test_the_demo_trains_scores_shows_and_says_what_to_type_next(tmp_path, capsys):
    assert demo(0.005, tmp_path / "demo", TINY) == 0
    shown, said = capsys.readouterr()
    assert "for 0.005 minutes" in said
    assert f"On {SCORED} words" in shown
    rows = re.findall(r"^.+(?:right|wrong|right except for stress) *$", shown, re.MULTILINE)
    assert len(rows) == SHOWN
    assert "cross-attention of decoder layer 1 of 1" in shown
    assert re.search("[░▒▓█]", shown)
    assert f"sixfold info {tmp_path / 'demo'}" in shown
    assert f"sixfold translate {tmp_path / 'demo'}" in shown


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--minutes", "1e9"], "training.minutes"),
        (["--minutes", "nan"], "--minutes"),
        (["--out", "{file}/run"], "{file}"),
    ],
    ids=["too long", "not a number", "not a directory"],
)
def test_a_mistake_is_a_sentence_and_not_a_traceback(given, words, tmp_path):
    (tmp_path / "file").write_text("text")
    given = [word.format(file=tmp_path / "file") for word in given]
    done = subprocess.run(
        [sys.executable, "-m", "sixfold.demo", *given], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode in (1, 2)
    assert words.format(file=tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_word_is_right_if_one_pronunciation_is():
    word = Reference("tomato", ("T AH0 M EY1 T OW2", "T AH0 M AA1 T OW2"))
    assert verdict("T AH0 M AA1 T OW2", word) == "right"
    assert verdict("T AH0 M AA1 T OW0", word) == "right except for stress"
    assert verdict("T AH0 M AA1 T", word) == "wrong"
    assert is_right(word, "T AH1 M AA1 T OW1")


def test_spread_takes_evenly():
    assert spread(range(100), 4) == [0, 25, 50, 75]
    assert spread(range(3), 10) == [0, 1, 2]
    assert spread([], 10) == []


def test_the_same_words_are_followed_while_it_learns():
    words = [Reference(word, (" ".join(word.upper()),)) for word in ("a", "bb", "ccc", "dddd", "eeeee", "ffffff")]
    display = Listener()
    followed = Answers(display)
    for right in (0, 6):
        answers = [word.targets[0] if number < right else "X" for number, word in enumerate(words)]
        followed.validated(Validated(9, {"pronunciation": 100 - 100 * right / 6}, words, answers))
    followed.validated(Validated(12, {"loss": 1.0}, words, []))
    assert [" ".join(line.split()) for line in display.words] == [
        "0 % of unseen words right ffffff → X eeeee → X dddd → X",
        "100 % of unseen words right ffffff ✓ F F F F F F eeeee ✓ E E E E E dddd ✓ D D D D",
    ]
