"""Settings that a user gives: one value in place of a list, and which values of a recipe are dropped because
they conflict with a setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator

T = TypeVar("T")


def _as_list(value: Any) -> Any:
    """One value where a list is expected is a list of one; YAML reads a word of digits as a number."""
    if value is None:
        return []
    return [str(value) if type(value) is int else value] if isinstance(value, str | int | dict) else value


OneOrSeveral = Annotated[list[T], BeforeValidator(_as_list)]

Column = Annotated[  # YAML reads a column's number as a number
    str, BeforeValidator(lambda value: str(value) if type(value) is int else value)
]

_MOST_STEPS = 1_000_000_000
_MOST_AVERAGED = 10_000  # checkpoints


def _count_or_share(value: Any, what: str, whole: str, fewest: int = 0) -> Any:
    """A whole number from `fewest` on is a count; a share is below 1: 0.1, or "10 %"."""
    if isinstance(value, str) and value.strip().endswith("%"):
        with suppress(ValueError):
            value = float(value.strip().removesuffix("%")) / 100
    count = type(value) is int and fewest <= value <= _MOST_STEPS
    if not count and not (isinstance(value, float) and 0 < value < 1):
        raise ValueError(f"give {what} ({fewest} to {_MOST_STEPS:,}) or a share of {whole} (such as 10 %)")
    return value


def _average(value: Any) -> Any:
    """A number of checkpoints, or the decay of an exponential average."""
    if value is not None and not (isinstance(value, int) and 2 <= value <= _MOST_AVERAGED) and not 0 < value < 1:
        raise ValueError(f"give a number of checkpoints (2 to {_MOST_AVERAGED:,}), or a decay between 0 and 1")
    return value


StepsOrShare = Annotated[int | float, BeforeValidator(lambda value: _count_or_share(value, "steps", "the run"))]
Interval = Annotated[int | float, BeforeValidator(lambda value: _count_or_share(value, "steps", "the run", fewest=1))]
HeldOut = Annotated[
    Literal["auto"] | int | float,
    BeforeValidator(lambda value: value if value == "auto" else _count_or_share(value, "a number", "the text")),
]
AverageSetting = Annotated[int | float | None, AfterValidator(_average)]

_YIELDING: tuple[
    tuple[str, str, Callable[[Mapping[str, Any]], bool]], ...
] = (  # a key, the key that yields to it, and a condition
    *((wins, yields, lambda v: True) for wins, yields in permutations(("steps", "minutes", "plan"), 2)),
    ("held_out", "valid", lambda v: v["held_out"] not in ("auto", 0)),
    ("valid", "held_out", lambda v: v["valid"] is not None),
    ("sample", "beam_size", lambda v: v["sample"] and v["beam_size"] > 1),
    ("sample", "beam_groups", lambda v: v["sample"] and v["beam_groups"] > 1),
    ("sample", "n_best", lambda v: not v["sample"] and v["n_best"] > v.get("beam_size", 1)),
    ("beam_size", "sample", lambda v: v["sample"] and v["beam_size"] > 1),
    ("beam_size", "n_best", lambda v: not v.get("sample") and v["n_best"] > v["beam_size"]),
    ("beam_size", "beam_groups", lambda v: v["beam_size"] % v["beam_groups"] > 0),
    ("replace_unknown", "dictionary", lambda v: not v["replace_unknown"] and v["dictionary"] is not None),
    ("max_length", "min_length", lambda v: v["min_length"] > v["max_length"]),
)


def giving_way(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe, or a run, without those that conflict with given ones: these get their defaults.

    `--sample true` wins over a recipe's beam, for example.
    """
    kept = dict(values)
    for wins, yields, conflict in _YIELDING:
        if wins in given and yields in kept and yields not in given:
            with suppress(TypeError, ZeroDivisionError):  # a value is not a number, or is 0; validation reports it
                if conflict({**kept, **given}):
                    del kept[yields]
    return kept


_TABLES = (".tsv", ".csv", ".jsonl")  # endings of files whose columns or fields data.source and data.target name


def of_other_text(data: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """The keys of a recipe's section `data` that belong to its own text, if another data.train is given.

    A model of another text would be scored on the recipe's validation and test text, which may even be part of the new
    training text.
    Suffixes and columns are kept if the new text is of the same kind of file.
    """
    if "train" not in given or data.get("train") is None:
        return []
    columns = () if same_kind(data["train"], given["train"]) else ("source", "target")
    return [key for key in ("valid", "test", *columns) if data.get(key) is not None and key not in given]


def same_kind(one: Any, other: Any) -> bool:
    """Whether two corpora name the same kinds of files, so that the same data.source and data.target can fit both."""
    return {*_kinds(one)} == {*_kinds(other)}


def _kinds(corpus: Any) -> Iterator[str]:
    """The kind of each item: a table's ending, "" for a prefix or a text, or "two files"."""
    for each in corpus if isinstance(corpus, list) else [corpus]:
        item = each.model_dump() if isinstance(each, BaseModel) else each
        path = item.get("path") if isinstance(item, Mapping) else item if isinstance(item, str) else None
        ending = Path(str(path).lower().removesuffix(".gz")).suffix
        yield "two files" if path is None else ending if ending in _TABLES else ""
