"""An equality, its measurement, and its line in the report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from sixfold.training.observers.log import strict
from sixfold.verify.contract.part import Status
from sixfold.verify.subject import NotApplicable, VerifiedRun

PASS, FAIL, EXCUSED = "pass", "fail", "does not apply"


@dataclass(frozen=True)
class Measured:
    """How far the two sides were apart."""

    difference: float
    note: str = ""
    left: str | None = None  # replaces the equality's `left` in the report
    right: str | None = None
    tolerance: float | None = None  # replaces the equality's tolerance, if that depends on the run


@dataclass(frozen=True)
class EqualityResult:
    """A line of the table."""

    key: str
    equality: str
    left: str
    right: str
    difference: float | None
    tolerance: float
    result: Status
    note: str
    seconds: float

    def json(self) -> dict[str, Any]:
        return strict(asdict(self))


@dataclass(frozen=True)
class Equality:
    """Two results that must be equal, and the function that measures their difference."""

    key: str
    name: str
    left: str
    right: str
    tolerance: float
    measure: Callable[[VerifiedRun], Measured]

    def result(self, subject: VerifiedRun) -> EqualityResult:
        """Measure the difference. An exception becomes a result, so that the other equalities are still measured."""
        began = time.perf_counter()
        try:
            found, excuse = self.measure(subject), None
        except NotApplicable as reason:
            found, excuse = Measured(math.nan, str(reason)), EXCUSED
        except (ValueError, OSError) as error:
            found, excuse = Measured(math.inf, str(error)), None
        except Exception as error:
            found, excuse = Measured(math.inf, f"{type(error).__name__}: {error}"), None
        tolerance = self.tolerance if found.tolerance is None else found.tolerance
        result: Any = excuse or (PASS if found.difference <= tolerance else FAIL)  # NaN compares false, so it fails
        return EqualityResult(
            key=self.key,
            equality=self.name,
            left=found.left or self.left,
            right=found.right or self.right,
            difference=None if excuse else found.difference,
            tolerance=tolerance,
            result=result,
            note=found.note,
            seconds=time.perf_counter() - began,
        )


def equality(
    key: str, name: str, *, left: str, right: str, tolerance: float
) -> Callable[[Callable[[VerifiedRun], Measured]], Equality]:
    """Turn a function that measures the difference of two sides into an equality."""
    return lambda measure: Equality(key, name, left, right, tolerance, measure)
