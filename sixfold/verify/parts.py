"""The contract of every model, checked on the run's own weights by the checks of `check_part`."""

from __future__ import annotations

from sixfold.verify.contract import reading, running
from sixfold.verify.contract.check import Check
from sixfold.verify.contract.part import result_of
from sixfold.verify.contract.subject import Subject
from sixfold.verify.equality import Measured, equality
from sixfold.verify.subject import NotApplicable, VerifiedRun

_RUNNING = tuple(each for each in vars(running).values() if isinstance(each, Check))
CHECKS = (reading.causality, reading.padding, reading.source_padding, reading.alone_and_in_a_batch, *_RUNNING)
_POSITIONS = 12  # the checks write rows of up to so many tokens, with their padding


@equality(
    "contract",
    "the contract of the parts",
    left="checks of causality, padding, batches and caches",
    right="those that hold, in float64",
    tolerance=0.0,
)
def contract(subject: VerifiedRun) -> Measured:
    """The states of random words, in batches, in beams and through caches, are those of each row alone."""
    model = subject.model
    if short := [limit for limit in model.limits.values() if limit < _POSITIONS]:
        raise NotApplicable(f"the checks need {_POSITIONS} positions, and the model has {min(short)}")
    copied = Subject.of(model)
    found = [result_of(check, copied) for check in CHECKS if check.concerns(copied.type)]
    failed = [each for each in found if each.result == "fail"]
    note = "; ".join(f"{each.check}: {each.note}" for each in failed)
    return Measured(len(failed), note, left=f"{len(found)} checks of causality, padding, batches and caches")
