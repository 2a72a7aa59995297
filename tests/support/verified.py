"""Runs to verify, and what is found of them."""

from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from sixfold.verify.report import EQUALITIES, verify
from tests.support import tiny

ALL = [each.key for each in EQUALITIES]
ALONE = [key for key in ALL if key != "processes"]  # what needs no other processes, which take seconds to start


def trained_run(folder, **settings):
    """A run of twelve steps on words and their letters backwards."""
    usual = {
        "training__metric": "symbol_error_rate",
        "training__learning_rate": 0.01,
        "decoding__max_length": 8,
    }
    train(tiny.config(tiny.corpus(folder), **{**usual, **settings}), folder / "run", display=Quiet())
    return folder / "run"


def results(run, only=ALONE, **options):
    """What is found of a run: key → finding."""
    return {found.key: found for found in verify(run, only=only, device="cpu", **options)}


def failing(run, only=ALONE, **options):
    return {key for key, found in results(run, only, **options).items() if found.result == "fail"}
