"""Runs that break off, files before and after, and a display that remembers."""

from contextlib import contextmanager

import pytest

from sixfold.training.observers.display import Display


class BrokenOffError(Exception):
    """In the place of a kill."""


def broken_off(*_, **__):
    raise BrokenOffError


@contextmanager
def breaking_off_at(owner, name):
    """Does in the test what a kill there would do."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, broken_off)
        with pytest.raises(BrokenOffError):
            yield


def contents(run):
    return {p: p.read_bytes() for p in run.directory.rglob("*") if p.is_file() and p.name != "lock"}


class Listener(Display):
    """Remembers what it is told."""

    def __init__(self):
        super().__init__()
        self.records, self.words = [], []

    def record(self, record):
        self.records.append(record)

    def say(self, text):
        self.words.append(text)


@contextmanager
def breaking_off_after(owner, name, times):
    """The same, once a method was called this many times."""
    real, calls = getattr(owner, name), []

    def counted(self, *arguments, **named):
        if len(calls) == times:
            raise BrokenOffError
        calls.append(1)
        return real(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, counted)
        with pytest.raises(BrokenOffError):
            yield
