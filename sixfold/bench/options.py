"""The options of `sixfold bench`, checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sixfold.core.quote import quoted

SHARES = {"training": 0.2, "decoding": 0.5, "length": 0.3}  # each section's share of the time
PRECISIONS = ("float32", "int8")
WAYS = ("batch", "alone")
PEERS = ("ctranslate2", "transformers", "x-transformers")

_MOST = {"rounds": 1_000_000, "steps": 1_000_000, "threads": 4_096, "sentences": 1_000_000, "beams": 10_000}
_MOST_SECONDS = 1_000_000

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Which sections to measure, how, and for how long."""

    only: Sequence[str] = tuple(SHARES)
    rounds: int = 10  # at most
    steps: int = 4  # optimiser steps of one timing
    threads: int = 1
    sentences: int = 1000  # at most
    beams: Sequence[int] = (1, 4)
    ways: Sequence[str] = WAYS  # sentences in batches, and one at a time
    precisions: Sequence[str] = PRECISIONS
    peers: Sequence[str] = ()
    seconds: float = 300.0  # for all sections together
    file: str | None = None  # the name of the file to decode
    texts: Sequence[str] = ()  # its lines

    def __post_init__(self) -> None:
        for name, known in (("only", SHARES), ("ways", WAYS), ("precisions", PRECISIONS), ("peers", PEERS)):
            _need_known(name, getattr(self, name), known)
        if not (self.only and self.beams and self.ways and self.precisions):
            raise ValueError("--only, --beams, --ways and --precisions each need at least one name or number")
        for name, most in _MOST.items():
            given = getattr(self, name)
            for value in given if name == "beams" else (given,):
                if not 1 <= value <= most:
                    raise ValueError(f"--{name} must be at least 1 and at most {most:,}, got {quoted(value)}")
        if not 0 < self.seconds <= _MOST_SECONDS:
            raise ValueError(f"--seconds must be more than 0 and at most {_MOST_SECONDS:,}, got {self.seconds:g}")

    def json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "texts"}


def names(text: str) -> list[str]:
    """The names in a comma-separated list, each once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def numbers(text: str, option: str) -> list[int]:
    try:
        return [int(part) for part in names(text)]
    except ValueError:
        raise ValueError(f"{option} takes whole numbers such as 1,4, got {text!r}") from None


def peers(text: str) -> list[str]:
    """The peers named by "all", "none", or a comma-separated list."""
    return list(PEERS) if text == "all" else [] if text == "none" else names(text)


def _need_known(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    for each in given:
        if each not in known:
            raise ValueError(f"--{option}: there is no {each!r}; there are {', '.join(known)}")
