"""Messages for a name that does not exist, with the nearest one that does; and for a package that is not installed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar known name, ignoring case, or None. `cutoff`: 0 accepts any name, 1 only the same."""
    by_lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'near'?)", or nothing if no known name is near."""
    near = nearest(name, known)
    return "" if near is None else f" (did you mean {near!r}?)"


def unknown(what: str, name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """ "there is no metric 'blue'; did you mean 'bleu'? there are bleu, chrf, ter" """
    known = list(known)
    near = nearest(name, known, cutoff)
    hint = "" if near is None else f"did you mean {near!r}? "
    return f"there is no {what} {name!r}; {hint}there are {', '.join(known)}"


def to_install(extra: str) -> str:
    """The command that installs an optional part of sixfold."""
    return f"pip install -c constraints.txt -e '.[{extra}]' in the directory of sixfold's source"
