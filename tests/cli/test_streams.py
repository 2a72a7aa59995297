"""Standard streams that are closed or full: what is lost is said, and a verb that does not need them works."""

import io
import os
import subprocess
import sys

import pytest

from sixfold.cli import streams
from sixfold.cli.streams import take_closed
from tests.support.runs import translating

CLOSED = "sixfold: the stream is closed, and the output is lost: standard output\n"


def shell(redirection, *arguments):
    """The command in a shell, with redirections such as ">&-". → exit code, standard output, standard error"""
    found = start(redirection, "-m", "sixfold", *arguments)
    return found.returncode, found.stdout, found.stderr


def start(redirection, *arguments):
    """Python in a shell."""
    return subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        timeout=300,
    )


@pytest.mark.parametrize(
    ("redirection", "code", "err"),
    [
        (">&-", 1, CLOSED),
        ("> /dev/full", 1, "sixfold: No space left on device\n"),
        (">&- 2>&-", 1, ""),
        ("<&- 2>&-", 0, ""),
    ],
)
def test_help_is_printed_or_its_loss_is_said(redirection, code, err):
    found = shell(redirection, "train", "--help")
    assert (found[0], found[2]) == (code, err)
    assert found[1].startswith("Usage: " if code == 0 else "")
    assert bool(found[1]) == (code == 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streams")
    translating(folder / "run")
    (folder / "in.txt").write_text("abc\nde\n")
    return folder / "run"


def test_a_file_is_written_whatever_is_closed(run):
    """Without a guard the output file would be number 1, and what others print would land in it."""
    code, out, err = shell("<&- >&- 2>&-", "translate", run, run.parent / "in.txt", "--out", run.parent / "out.txt")
    assert (code, out, err) == (0, "", "")
    assert (run.parent / "out.txt").read_text().count("\n") == 2


def test_translations_that_are_lost_are_no_success(run, sixfold, monkeypatch):
    with open(os.open(os.devnull, os.O_RDONLY), "wb", buffering=0) as closed:
        output = io.TextIOWrapper(io.BufferedWriter(streams._Output(closed.fileno(), "w", closefd=False)))
        monkeypatch.setattr("sys.stdout", output)
        code, _, err = sixfold("translate", run, run.parent / "in.txt")
        output.close()  # which goes nowhere by now
    assert code == 1
    assert err.endswith(CLOSED)


@pytest.mark.parametrize(
    ("opened", "why"), [((os.devnull, os.O_WRONLY), "it is closed"), (("/", os.O_RDONLY), "Is a directory")]
)
def test_an_input_that_cannot_be_read_is_said(run, sixfold, monkeypatch, opened, why):
    with io.TextIOWrapper(io.BufferedReader(Raw(os.open(*opened)))) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, out, err = sixfold("translate", run)
    assert (code, out) == (2, "")
    assert err.endswith(f"sixfold: standard input can't be read: {why}\n")


class Raw(io.RawIOBase):
    """A descriptor, whatever it leads to."""

    def __init__(self, descriptor):
        super().__init__()
        self.descriptor = descriptor

    def fileno(self):
        return self.descriptor

    def readable(self):
        return True

    def close(self):
        if not self.closed:
            os.close(self.descriptor)
        super().close()


def program(redirection, *lines):
    """The exit code of a Python program that begins with the guard."""
    text = "\n".join(
        ["import sys", "from sixfold.cli.streams import abandon_output, take_closed", "take_closed()", *lines]
    )
    return start(redirection, "-c", text).returncode


def test_the_numbers_of_closed_streams_are_taken_at_once():
    opened = "sys.exit(open(sys.executable, 'rb').fileno())"
    assert program("<&- >&- 2>&-", opened) > 2
    assert program(">&-", opened) > 2


def test_whoever_uses_a_closed_stream_gets_an_error():
    tried = "try: {}\nexcept OSError: abandon_output(); sys.exit(7)"  # or Python would try once more at its end
    assert program("<&-", tried.format("sys.stdin.read()")) == 7
    assert program(">&-", tried.format("print('lost', flush=True)")) == 7


def test_output_that_was_given_up_and_messages_that_nobody_hears_go_nowhere():
    assert program(">&- 2>&-", "abandon_output()", "print(1, flush=True)", "print(1, file=sys.stderr, flush=True)") == 0


def test_open_streams_stay_as_they_are(capsys):
    before = sys.stdin, sys.stdout, sys.stderr
    take_closed()
    assert (sys.stdin, sys.stdout, sys.stderr) == before
