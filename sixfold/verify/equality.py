"""What an equality is, and what is found when it is looked at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sixfold.training.observers.log import strict
from sixfold.verify.subject import NotApplicable, VerifiedRun

PASS, FAIL, EXCUSED = "pass", "fail", "does not apply"
Status = Literal["pass", "fail", "does not apply"]


@dataclass(frozen=True)
class Measured:
    """How far the two sides were apart."""

    difference: float
    note: str = ""  # what a person should know
    left: str | None = None  # in place of the equality's own words, where there is more to say
    right: str | None = None
    tolerance: float | None = None  # in place of the equality's own, where it depends on the run


@dataclass(frozen=True)
class Finding:
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
    """Two things that are to be the same, and how that is found out."""

    key: str
    name: str
    left: str
    right: str
    tolerance: float
    measure: Callable[[VerifiedRun], Measured]

    def look(self, subject: VerifiedRun) -> Finding:
        """Whatever goes wrong is a finding: that a check breaks off is no reason to keep silent about the others."""
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
        result: Any = excuse or (PASS if found.difference <= tolerance else FAIL)  # what is no number fails, too
        return Finding(
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
    """Make an equality of a function that measures how far its sides are apart."""
    return lambda measure: Equality(key, name, left, right, tolerance, measure)
