"""All equalities of `sixfold verify`, measured one after the other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

from sixfold.core.names import unknown
from sixfold.spec.registry import import_file
from sixfold.verify import decoding, export, files, parts, scores, training
from sixfold.verify.equality import Equality, EqualityResult
from sixfold.verify.keys import KEYS
from sixfold.verify.subject import VerifiedRun

_MODULES = (files, parts, decoding, training, export, scores)
_MEASURED = [each for module in _MODULES for each in vars(module).values() if isinstance(each, Equality)]
EQUALITIES: tuple[Equality, ...] = tuple(sorted(_MEASURED, key=lambda each: KEYS.index(each.key)))


def choose(keys: Sequence[str] = ()) -> list[Equality]:
    """The equalities with these keys; without keys, all."""
    known = {each.key: each for each in EQUALITIES}
    for key in keys:
        if key not in known:
            raise ValueError(unknown("equality", key, known))
    return [each for each in EQUALITIES if not keys or each.key in keys]


def verify(
    run: str | Path, *, only: Sequence[str] = (), device: str = "auto", imports: Sequence[str | Path] = ()
) -> Generator[EqualityResult]:
    """One finding per equality. Nothing is written to the run's directory."""
    chosen = choose(only)
    for file in imports:
        import_file(Path(file))
    with tempfile.TemporaryDirectory(prefix="sixfold-verify-") as folder:
        subject = VerifiedRun(run, Path(folder), device, [os.path.realpath(file) for file in imports])
        for each in chosen:
            yield each.result(subject)
