"""A check of the contract: a function of a subject that raises `Broken` where a promise does not hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from torch import Tensor

from sixfold.verify.contract.subject import Subject

WITHIN = 1e-9  # differences in float64 that come from the order of a sum
ACTS = 1e-6  # differences from which on something has an effect
_FLOAT32 = 1e-5  # differences below it may come from rounding to float32

Holds = Callable[..., "str | None"]  # (subject, **form) → None, or the reason why there was nothing to check


class Broken(AssertionError):  # noqa: N818  (it is a finding, not a failure of the check)
    """A promise that does not hold: what was seen."""


@dataclass(frozen=True)
class Check:
    """One promise of the contract. It is called with a subject, and with a value for each of its axes."""

    holds: Holds
    advice: str  # what to do where it does not hold
    needs: tuple[str, ...] = ()  # what a model must be able to do: "writes_text", "reads_source"
    slow: bool = False
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # the forms in which it is checked

    @property
    def name(self) -> str:
        return self.holds.__name__

    @property
    def promise(self) -> str:
        return (self.holds.__doc__ or "").partition("\n")[0]

    def __call__(self, subject: Subject, **form: Any) -> str | None:
        return self.holds(subject, **form)

    def forms(self) -> Iterator[dict[str, Any]]:
        """All combinations of the values of its axes."""
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))

    def concerns(self, model: type) -> bool:
        return all(getattr(model, need) for need in self.needs)


def check(advice: str, *, needs: tuple[str, ...] = (), slow: bool = False, **axes: Sequence[Any]) -> Callable[..., Any]:
    """Turn a function into a check. Its name is the check's, the first line of its docstring the promise."""
    return lambda holds: Check(holds, advice, needs, slow, axes)


def need_same(got: Tensor, expected: Tensor, what: str, within: float = WITHIN) -> None:
    """Raise `Broken` unless two tensors are equal. NaN equals nothing."""
    if got.shape != expected.shape:
        raise Broken(f"{what}: shape {tuple(got.shape)} instead of {tuple(expected.shape)}")
    difference = _furthest(got, expected)
    if not difference <= within:
        rounded = within < difference < _FLOAT32
        why = "; is something computed in float32? Create tensors with the dtype of x" if rounded else ""
        raise Broken(f"{what} (difference {difference:.2g}{why})")


def need_difference(got: Tensor, other: Tensor, what: str) -> None:
    """Raise `Broken` if two tensors are equal."""
    if not _furthest(got, other) > ACTS:
        raise Broken(what)


def _furthest(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max()) if left.numel() else 0.0
