"""Options of modifications and tasks: text ↔ typed values."""

from __future__ import annotations

import types
import typing
from typing import Any

from sixfold.core.quote import quoted

_MOST_VALUES = 1000  # of one option


def pairs(text: str, given: str) -> dict[str, str]:
    """Options from "key=value,key=value"; errors quote `given`, the text with its name."""
    options: dict[str, str] = {}
    for pair in text.split(",") if text else []:
        key, equals, value = (word.strip() for word in pair.partition("="))
        if not equals:
            raise ValueError(f"{quoted(given)}: expected NAME:key=value,key=value, got {quoted(pair)}")
        if key in options:
            raise ValueError(f"{quoted(given)}: {quoted(key)} is given twice")
        options[key] = value
    return options


def read_value(value: Any, kind: Any, what: str) -> Any:
    """Convert a value, given as text or by Python or YAML, to its declared type."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        for argument in arguments:
            if value == argument or value == as_text(argument):
                return argument
        raise ValueError(f"{what} must be one of {', '.join(map(str, arguments))}, got {quoted(value)}")
    if origin in (typing.Union, types.UnionType):  # X | None
        inner = next(a for a in arguments if a is not type(None))
        return None if value is None or value == "none" else read_value(value, inner, what)
    if origin is tuple:
        items = value.split("/") if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise ValueError(f"{what} must be several values, got {quoted(value)}")
        if len(items) > _MOST_VALUES:
            raise ValueError(f"{what} can have at most {_MOST_VALUES:,} values, got {len(items):,}")
        return tuple(read_value(item, arguments[0], what) for item in items)
    return _read_plain(value, kind, what)


def _read_plain(value: Any, kind: type, what: str) -> Any:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    try:
        if kind is bool and isinstance(value, str):
            return {"true": True, "false": False}[value.lower()]
        if (kind in (int, float) and isinstance(value, str)) or (kind is float and type(value) is int):
            return kind(value)
    except (ValueError, KeyError):
        raise ValueError(f"{what} must be {names[kind]}, got {quoted(value)}") from None
    if type(value) is not kind:
        raise ValueError(f"{what} must be {names.get(kind, kind.__name__)}, got {quoted(value)}")
    return value


def check_size(value: Any, most: float, what: str) -> None:
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and abs(number) > most:
            raise ValueError(f"{what} must be at most {most:,.15g}, got {quoted(number)}")


def as_text(value: Any) -> str:
    if isinstance(value, tuple):
        return "/".join(map(as_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
