"""YAML as a configuration needs it: plain values, no aliases, no tags, little nesting.

An alias lets nine lines stand for 9⁹ items, a tag names a type to construct, and deep nesting exhausts Python's stack.
A configuration needs none of them, so they are refused before a value is built.
"""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

DEEPEST = 20  # lists and mappings inside each other; the deepest key of the configuration needs 6
LONGEST = 1 << 18  # characters of a file; the parser takes seconds for this many


def parse(text: str, where: str) -> Any:
    """YAML 1.2: 4e-3 is a number and `no` is a word. `where` is the file or option that errors name."""
    if len(text) > LONGEST:
        raise ValueError(f"{where}: a configuration has at most {LONGEST:,} characters, got {len(text):,}")
    try:
        refused = _refusal(text)
        value = None if refused else YAML(typ="safe", pure=True).load(io.StringIO(text))
    except YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{where}{line}: {problem}") from None
    except (ValueError, OverflowError) as error:  # 2024-99-99 looks like a date; an integer may have too many digits
        raise ValueError(f"{where}: a value can't be read ({error}); quote it if it is text") from None
    if refused:
        raise ValueError(f"{where}, {refused}")
    return value


def _refusal(text: str) -> str:
    """The first alias, tag or too deep nesting; empty if there is none. The parser of events does not recurse."""
    depth = 0
    for event in YAML(typ="safe", pure=True).parse(io.StringIO(text)):
        here = f"line {event.start_mark.line + 1}"
        if isinstance(event, AliasEvent):
            return f"{here}: *{event.anchor} is an alias, which a configuration can't have; repeat the value"
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
            return f"{here}: {event.tag} is a tag, which a configuration can't have; leave it out"
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEEPEST:
            return f"{here}: values are nested more than {DEEPEST} deep, and no key of a configuration needs that"
    return ""
