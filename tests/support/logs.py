"""Logs of runs that never ran, and their courses."""

from sixfold.config.files import read_config
from sixfold.doctor.course import Course

PLAIN = {"data.valid": "v", "training.steps": 1000, "training.warmup": 100, "training.learning_rate": 1e-3}


def train(losses, *, every=100, epoch=3, **columns):
    """Lines of the kind "train"; further columns are lists as long as the losses, or one value for all."""
    usual = {"epoch": epoch, "learning_rate": 1e-3, "gradient": 0.5}
    return [
        {
            "kind": "train",
            "step": every * number,
            "loss": loss,
            "tokens": 2000 * every * number,
            **usual,
            **{key: of[number - 1] if isinstance(of, list) else of for key, of in columns.items()},
        }
        for number, loss in enumerate(losses, 1)
    ]


def valid(losses, *, every=100, **columns):
    """Lines of the kind "valid"; the best is the one of the lowest loss so far."""
    found = []
    for number, loss in enumerate(losses, 1):
        others = {key: of[number - 1] if isinstance(of, list) else of for key, of in columns.items()}
        found.append(
            {"kind": "valid", "step": every * number, "best": loss == min(losses[:number]), "loss": loss, **others}
        )
    return found


def event(kind, step, **fields):
    return {"kind": kind, "step": step, **fields}


def course(*records, text=None, stopped=True, **settings):
    """The course of a run with these lines, in the order of their steps; `stopped` ends it after the last one."""
    lines = sorted((line for several in records for line in several), key=lambda line: line["step"])
    if stopped:
        lines.append(event("stopped", lines[-1]["step"], reason="all steps are done"))
    given = {key.replace("__", "."): value for key, value in settings.items()}
    return Course(lines, read_config(None, {**PLAIN, **given}), text)
