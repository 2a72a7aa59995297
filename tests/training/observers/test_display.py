"""What a person sees: on a terminal, in a file, and nothing at all."""

import io
import math
import re
import time

import pytest

from sixfold.training.observers import display as module
from sixfold.training.observers.display import Display, Quiet, StepSpeed, bar, clock, number, sentence
from sixfold.training.observers.observer import StepDone

TRAIN = {
    "kind": "train",
    "step": 100,
    "epoch": 2,
    "loss": math.log(2),
    "perplexity": 2.0,
    "learning_rate": 0.001,
    "gradient": 0.5,
    "tokens": 9000,
    "padding": 0.0125,
    "seconds": 3.0,
}
VALID = {"kind": "valid", "step": 100, "best": True, "loss": 0.5, "perplexity": 1.6487, "bleu": 34.567}
SKIPPED = {"kind": "skipped", "step": 101, "reason": "the loss is NaN", "loss": "NaN", "gradient": 0.25}


class Stream(io.StringIO):
    """A stream that says it is a terminal, or that it is none; and may break."""

    def __init__(self, terminal=False):
        super().__init__()
        self.terminal, self.broken = terminal, False

    def isatty(self):
        return self.terminal

    def write(self, text):
        if self.broken:
            raise BrokenPipeError
        return super().write(text)


@pytest.fixture
def paper():
    return Stream()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(module, "_BETWEEN_DRAWINGS", 0.0)
    return Stream(terminal=True)


def show(stream, steps=3):
    with Display(stream) as display:
        display.begin(0, 200)
        for step in range(1, steps + 1):
            display.step(StepDone(step, 200, math.log(2), 0.001, 300.0, 0.1, 0.0125))
        for record in (TRAIN, VALID, SKIPPED):
            display.record(record)
    return stream.getvalue()


def test_without_a_terminal_each_record_is_one_plain_line(paper):
    train, valid, skipped = show(paper).splitlines()
    assert re.fullmatch(
        r"step 100/200  epoch 2  loss 0\.693  perplexity 2\.000  rate 1\.0e-03  3,000 tokens/s  padding 1\.2%  "
        r"ETA \d:\d\d:\d\d",
        train,
    )
    assert valid == "step 100  valid  loss 0.500  perplexity 1.649  bleu 34.57  best so far"
    assert skipped == "step 101  skipped: the loss is NaN  loss NaN  gradient 0.250"


def test_without_a_terminal_there_are_no_control_codes(paper):
    display = Display(paper)
    display.say("text \x1b[31m of a user \x07")
    display.progress("encoding \x1b[2J", 5, 5)
    assert "\x1b" not in paper.getvalue() + show(paper)
    assert "text \\x1b[31m of a user \\x07\n" in paper.getvalue()


def test_a_terminal_shows_the_running_numbers_and_keeps_validations(terminal):
    shown = show(terminal)
    assert "3/200 " + "─" * 40 + " ETA" in shown
    assert "loss 0.693  perplexity 2.000  rate 1.0e-03  3,000 tokens/s  padding 1.2%" in shown
    lasting = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    assert "step 100  valid  loss 0.500  perplexity 1.649  bleu 34.57  best so far" in lasting
    assert "step 101  skipped: the loss is NaN" in lasting
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor is back


def test_a_terminal_is_left_with_the_last_numbers_and_then_the_reason(terminal):
    with Display(terminal) as display:
        display.begin(0, 100)
        display.record(TRAIN)
        assert "step 100/100  epoch 2" not in terminal.getvalue()
        display.record({"kind": "stopped", "step": 100, "reason": "all 100 steps are done"})
    first, *_, last = terminal.getvalue().splitlines()
    assert first.startswith("step 100/100  epoch 2  loss 0.693")
    assert last == "step 100  stopped: all 100 steps are done"


def test_a_dumb_terminal_gets_plain_lines(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in show(terminal)


def test_drawing_is_rare(terminal, monkeypatch):
    monkeypatch.setattr(module, "_BETWEEN_DRAWINGS", 60.0)
    display = Display(terminal)
    for step in range(1, 101):
        display.step(StepDone(step, 200, 1.0, 0.001, 300.0, 0.1, 0.0))
    assert terminal.getvalue().count("tokens/s") == 1
    display.close()


def test_a_run_outlives_the_pipe_it_speaks_to(paper, terminal):
    for stream in (paper, terminal):
        display = Display(stream)
        display.say("before")
        stream.broken = True
        display.step(StepDone(1, 2, 1.0, 1.0, 1.0, 1.0, 0.0))
        display.record(VALID)
        display.close()
        stream.broken = False
        display.say("after")
        assert "before" in stream.getvalue()
        assert "after" not in stream.getvalue()


def test_quiet_shows_nothing(capsys):
    display = Quiet()
    display.begin(0, 10)
    display.step(StepDone(1, 10, 1.0, 1.0, 1.0, 1.0, 0.0))
    display.record(TRAIN)
    display.say("hello")
    display.progress("encoding", 1, 1)
    display.close()
    assert capsys.readouterr() == ("", "")


def test_without_stderr_nothing_is_shown(monkeypatch, capfd):
    monkeypatch.setattr("sys.stderr", None)
    for display in (Display(), Quiet()):
        display.record(VALID)
        display.close()
    assert capfd.readouterr() == ("", "")


def test_everything_goes_to_stderr(capsys):
    Display().say("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_progress_on_paper_is_told_now_and_then_and_at_the_end(paper, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    display = Display(paper)
    for done in range(26):  # one a second
        now[0] = float(done)
        display.progress("encoding", done * 1000, 25_000)
    assert paper.getvalue().splitlines() == [
        "encoding: 10,000/25,000",
        "encoding: 20,000/25,000",
        "encoding: 25,000/25,000",
    ]


def test_progress_needs_no_total(paper, terminal):
    for stream in (paper, terminal):
        display = Display(stream)
        display.progress("reading", 1234, None)
        display.close()
    assert "1,234" in terminal.getvalue()


def test_on_a_terminal_work_that_is_done_leaves_no_bar(terminal):
    display = Display(terminal)
    display.progress("encoding", 1, 4)
    assert "encoding  1/4 " + "━" * 10 in terminal.getvalue()
    display.progress("encoding", 4, 4)
    display.say("next")
    assert "encoding" not in terminal.getvalue().partition("next")[2]
    display.step(StepDone(1, 200, 1.0, 0.001, 300.0, 0.1, 0.0))
    assert "1/200 ─" in terminal.getvalue()
    display.close()


def test_pace_is_tokens_per_second_of_training_and_ignores_what_is_no_loss(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace = StepSpeed()
    pace.begin(50, 100)
    assert pace.left() is None
    for step in (51, 52):
        pace.add(step, 100, 2.0, tokens=500, seconds=0.25)
    pace.add(53, 100, math.nan, tokens=500, seconds=0.25)
    now[0] = 106.0  # three steps in six seconds, validation included: 47 are left
    assert pace.speed == pytest.approx(2000)
    assert pace.loss == pytest.approx(2.0)
    assert pace.left() == pytest.approx(94)


def test_a_mean_is_weighed_by_tokens():
    pace = StepSpeed()
    pace.add(1, 2, 1.0, tokens=100 / module._MEMORY, seconds=1.0)
    pace.add(2, 2, 4.0, tokens=200, seconds=1.0)
    assert pace.loss == pytest.approx((1 * 100 + 4 * 200) / 300)


def test_small_things():
    assert clock(3723.4) == "1:02:03"
    assert clock(None) == "?"
    assert bar(25, 100) == "25/100 " + "━" * 10 + "─" * 30
    assert bar(200, 100).count("━") == 40
    assert [number(v) for v in (3, True, 12345, 0.5, 34.567, 1e-5, "NaN")] == [
        "3",
        "True",
        "12,345",
        "0.500",
        "34.57",
        "1e-05",
        "NaN",
    ]
    assert "perplexity —" in sentence({**TRAIN, "loss": "NaN"}, StepSpeed())
    assert "perplexity —" in sentence({**TRAIN, "loss": 800.0}, StepSpeed())


def test_a_line_too_long_for_the_terminal_is_broken_between_words(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    Display(terminal).say("train: 125,846 pairs: 947,152 source and 803,390 target tokens")
    assert terminal.getvalue().splitlines() == ["train: 125,846 pairs: 947,152 source and", "803,390 target tokens"]
