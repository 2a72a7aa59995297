"""Pydantic's errors about a configuration, in terms of the keys that its author wrote."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel, ValidationError

from sixfold.core.names import nearest
from sixfold.core.quote import quoted

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Path = Sequence[str | int]


def explain(error: ValidationError, whole: type[BaseModel], kinds: Iterable[type[BaseModel]]) -> str:
    """The first mistake in a configuration of type `whole`; `kinds` are the pydantic models of its values."""
    named = {kind.__name__: kind for kind in kinds}
    mistakes = _deepest(error.errors())
    path, key = mistakes[0]["loc"], ".".join(_keys(mistakes[0]["loc"], named))
    if mistakes[0]["type"] == "extra_forbidden":
        above = key.rpartition(".")[0]
        known = [f"{above}.{name}" if above else name for name in _fields(path[:-1], whole, named)]
        near = nearest(key, known, cutoff=0.5)
        return f"there is no key {key!r}; " + (f"did you mean {near!r}?" if near else f"there are {', '.join(known)}")
    if mistakes[0]["type"] == "missing":
        return f"{key} is missing"
    got = mistakes[0]["input"]
    of_it = [m["msg"] for m in mistakes if _keys(m["loc"], named) == _keys(path, named) and m["type"] != "model_type"]
    shown = "" if isinstance(got, dict) else f", got {quoted(got)}"  # a whole section would be too long
    return f"{key}: {_either(of_it or [mistakes[0]['msg']])}{shown}"


def _deepest(mistakes: list[ErrorDetails]) -> list[ErrorDetails]:
    """The deepest errors about the first wrong value. If it may have several types, the type that was meant is the one
    with the deepest error."""
    first = [mistake for mistake in mistakes if mistake["loc"][:2] == mistakes[0]["loc"][:2]]
    depth = max(len(mistake["loc"]) for mistake in first)
    return [mistake for mistake in first if len(mistake["loc"]) == depth]


def _keys(path: Path, kinds: Iterable[str]) -> list[str]:
    """The keys on the path to a mistake, without the names of types that pydantic puts between them."""
    tags = {*kinds, "str", "int", "float", "constrained-int"}  # the last: an int with bounds, one of several types
    return [str(word) for word in path if isinstance(word, int) or not (word in tags or "[" in word)]


def _fields(path: Path, whole: type[BaseModel], kinds: dict[str, type[BaseModel]]) -> Iterable[str]:
    """The known keys below a path: sections, the keys of a section, or those of a value."""
    if not path:
        return whole.model_fields
    kind = whole.model_fields[str(path[0])].annotation if len(path) == 1 else kinds[str(path[-1])]
    return cast("type[BaseModel]", kind).model_fields


def _either(messages: list[str]) -> str:
    """ "Input should be a valid number", "Input should be 'none'" → "input should be a valid number, or 'none'" """
    first, *others = dict.fromkeys(message.removeprefix("Value error, ") for message in messages)
    said = ", or ".join([first, *(other.removeprefix("Input should be ") for other in others)])
    return said[0].lower() + said[1:]
