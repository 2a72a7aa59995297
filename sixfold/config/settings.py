"""Settings that a user gives: one value in place of a list, and which values of a recipe yield to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import permutations
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator

T = TypeVar("T")


def _as_list(value: Any) -> Any:
    """One value where a list is expected is a list of one; YAML reads a word of digits as a number."""
    if value is None:
        return []
    return [str(value) if type(value) is int else value] if isinstance(value, str | int | dict) else value


OneOrSeveral = Annotated[list[T], BeforeValidator(_as_list)]

_MOST_STEPS = 1_000_000_000


def _steps_or_share(value: Any) -> Any:
    """Steps are a whole number, a share of the run is below 1: 0.1, or "10 %"."""
    if isinstance(value, str) and value.strip().endswith("%"):
        with suppress(ValueError):
            value = float(value.strip().removesuffix("%")) / 100
    steps = type(value) is int and 0 <= value <= _MOST_STEPS
    if not steps and not (isinstance(value, float) and 0 < value < 1):
        raise ValueError(f"give steps (0 to {_MOST_STEPS:,}) or a share of the run (such as 10 %), got {value!r}")
    return value


StepsOrShare = Annotated[int | float, BeforeValidator(_steps_or_share)]

_YIELDING: tuple[
    tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...
] = (  # a key, the key that yields to it, and a condition
    *((wins, yields, lambda v: True) for wins, yields in permutations(("steps", "minutes", "plan"), 2)),
    ("sample", "beam_size", lambda v: v["sample"] and v["beam_size"] > 1),
    ("sample", "beam_groups", lambda v: v["sample"] and v["beam_groups"] > 1),
    ("sample", "n_best", lambda v: not v["sample"] and v["n_best"] > v.get("beam_size", 1)),
    ("beam_size", "sample", lambda v: v["sample"] and v["beam_size"] > 1),
    ("beam_size", "n_best", lambda v: not v.get("sample") and v["n_best"] > v["beam_size"]),
    ("beam_size", "beam_groups", lambda v: v["beam_size"] % v["beam_groups"] > 0),
    ("max_length", "min_length", lambda v: v["min_length"] > v["max_length"]),
)


def giving_way(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe, or a run, without those that conflict with given ones: then the default holds.

    `--sample true` wins over a recipe's beam, for example.
    """
    kept = dict(values)
    for wins, yields, conflict in _YIELDING:
        if wins in given and yields in kept and yields not in given:
            with suppress(TypeError, ZeroDivisionError):  # a value is not a number, or is 0; validation reports it
                if conflict({**kept, **given}):
                    del kept[yields]
    return kept
