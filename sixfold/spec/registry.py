"""Modifications by name: registering them, finding them, and reading their options.

    @modification("2003.04887")                      # the paper's arXiv number, if there is one
    def rezero(spec: Spec) -> Spec:
        \"\"\"One line for `sixfold list`. Then the formula and further facts.\"\"\"
        return replace(spec, residual=ReZero, final=no_norm)

The parameters after the first, with types and defaults, are its options: `t5_bias:buckets=16,per_layer=true`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import pkgutil
import sys
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sixfold.core.names import did_you_mean
from sixfold.core.place import Sizes
from sixfold.core.quote import quoted
from sixfold.spec.moved import where_now
from sixfold.spec.options import as_text, check_size, pairs, read_value
from sixfold.spec.spec import SLOTS, Spec


@dataclass(frozen=True)
class Modification:
    """A named change of a Spec."""

    change: Callable[..., Spec]
    paper: str | None = None
    adds: Callable[..., int] | None = None  # (sizes, **options) → parameters added to the plain encoder-decoder
    most: Mapping[str, float] = field(default_factory=dict)  # option → its largest value

    @property
    def name(self) -> str:
        return self.change.__name__

    @property
    def own(self) -> bool:
        """Whether sixfold itself defines it."""
        return self.change.__module__.startswith(_PACKAGES)

    @property
    def group(self) -> str:
        """The package of its file, under which it is listed: "modifications" (also a user's own) or "baselines"."""
        return "baselines" if self.change.__module__.startswith("sixfold.baselines.") else "modifications"

    @property
    def page(self) -> str:
        """Its documentation."""
        return inspect.getdoc(self.change) or ""

    @property
    def summary(self) -> str:
        return self.page.split("\n", 1)[0]

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        return dict([*inspect.signature(self.change).parameters.items()][1:])

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots it fills when applied to the plain Transformer."""
        plain = Spec(sizes=Sizes(vocab=8))
        return changed_slots(plain, self.change(plain))


def changed_slots(before: Spec, after: Spec) -> tuple[str, ...]:
    return tuple(slot for slot in SLOTS if getattr(before, slot) is not getattr(after, slot))


@dataclass(frozen=True)
class Chosen:
    """A modification by name, with the options that were given."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        values = ",".join(f"{key}={as_text(value)}" for key, value in self.options.items())
        return f"{self.name}:{values}" if values else self.name


_registered: dict[str, Modification] = {}
_imported: dict[str, str] = {}  # modification → path of the user's file, as it was given
_PACKAGES = ("sixfold.modifications.", "sixfold.baselines.")  # their modules register sixfold's own modifications
_MOST = 1e15  # limit of a number whose modification sets none


def modification(
    paper: str | None = None, *, adds: Callable[..., int] | None = None, most: Mapping[str, float] | None = None
) -> Callable[[Callable[..., Spec]], Callable[..., Spec]]:
    """Register the function below as a modification under its own name.

    `adds(sizes, **options)` is the number of parameters it adds to an encoder-decoder. `most` is the largest value of
    each option: a mistyped number is refused before a model is built.
    """
    if callable(paper):
        raise TypeError("write @modification() with parentheses")

    def register(change: Callable[..., Spec]) -> Callable[..., Spec]:
        new = Modification(change, paper, adds, most or {})
        if not new.own:
            all_modifications()  # so that a name of sixfold's own is refused here, not at a later import
        old = _registered.get(change.__name__)
        if old is not None and _origin(old.change) != _origin(change):
            raise ValueError(
                f"modification {new.name!r} of {_origin(change)} has the name of one in {_origin(old.change)}; "
                f"give it another name"
            )
        _check_parameters(new)
        _registered[new.name] = new
        return change

    return register


def _check_parameters(new: Modification) -> None:
    """Raise a ValueError unless the first parameter takes the spec, and the others have names, types and defaults."""
    first = next(iter(inspect.signature(new.change).parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise ValueError(f"modification {new.name!r} takes no spec: write def {new.name}(spec: Spec) -> Spec")
    for option in new.options.values():
        if option.kind not in (option.POSITIONAL_OR_KEYWORD, option.KEYWORD_ONLY):
            raise ValueError(
                f"modification {new.name!r} can't have {option}: an option has a name, as in power: int = 2"
            )
        if option.annotation is option.empty or option.default is option.empty:
            default = 2 if option.default is option.empty else option.default
            kind = "int | None" if default is None else type(default).__name__
            raise ValueError(
                f"option {option.name!r} of modification {new.name!r} needs a type and a default, "
                f"as in {option.name}: {kind} = {default!r}"
            )


def _origin(change: Callable[..., Spec]) -> str:
    """The file that defines it. The same origin may register again (a notebook cell), another file may not."""
    return inspect.getsourcefile(change) or change.__module__ if change.__module__ != "__main__" else "__main__"


def all_modifications() -> dict[str, Modification]:
    """All registered modifications by name; sixfold's own are imported first."""
    _import_own()
    return dict(sorted(_registered.items()))


@functools.cache
def _import_own() -> None:
    """Import modifications/ and baselines/ by name: this layer lies below them, and may not import them directly."""
    for package in _PACKAGES:
        for module in pkgutil.iter_modules(importlib.import_module(package.rstrip(".")).__path__):
            if not module.name.startswith("_"):
                importlib.import_module(f"{package}{module.name}")


def find(name: str) -> Modification:
    known = all_modifications()
    if name not in known:
        if {*name} & {",", " "}:
            raise ValueError(f"{name!r} is not the name of a modification; for several, give --modify once for each")
        raise ValueError(
            f"there is no modification {name!r}{did_you_mean(name, known)}; `sixfold list` shows all, "
            f"and a modification of your own must be imported first (--import FILE, or sixfold.import_file)"
        )
    return known[name]


def choose(entry: str | Chosen | tuple[str, Mapping[str, Any]] | Mapping[str, Any]) -> Chosen:
    """Read "t5_bias", "t5_bias:buckets=16", ("t5_bias", {"buckets": 16}) or {"t5_bias": {"buckets": 16}}."""
    name, values = _split(entry)
    found = find(name)
    options, hints = found.options, typing.get_type_hints(found.change, localns={"Spec": Spec})
    for key in values:
        if key not in options:
            raise ValueError(f"modification {name!r} has no option {key!r}{_instead(name, key, options)}")
    read = {}
    for key, value in values.items():
        what = f"option {key!r} of modification {name!r}"
        read[key] = read_value(value, hints[key], what)
        check_size(read[key], found.most.get(key, _MOST), what)
    return Chosen(name, read)


def _instead(name: str, key: str, options: Mapping[str, Any]) -> str:
    """Advice after an unknown option: the variant that has its name, or the options there are."""
    if (variant := f"{name}_{key}") in all_modifications():
        return f"; use {variant!r} instead of {name!r}"
    has = f"it has {', '.join(options)}" if options else "it has none"
    return f"{did_you_mean(key, options)}; {has}"


def _split(entry: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(entry, Chosen):
        return entry.name, entry.options
    if isinstance(entry, str):
        name, _, text = entry.partition(":")
        return name.strip(), pairs(text, entry)
    if isinstance(entry, Mapping) and len(entry) == 1:
        entry = next(iter(entry.items()))
    if isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str):
        name, options = entry
        if options is None or isinstance(options, Mapping):
            return name, options or {}
    raise ValueError(f"a modification is given as NAME or NAME:key=value, got {quoted(entry)}")


def import_file(path: str | Path) -> None:
    """Run a user's Python file, which registers its modifications."""
    given, path = str(path), Path(os.path.realpath(path))  # `resolve` fails at a loop of links
    if not path.is_file():
        raise ValueError(f"there is no file {path} to import")
    if path.suffix != ".py":
        raise ValueError(f"{path} is not a Python file: its name must end in .py")
    before = all_modifications()
    module = types.ModuleType(f"sixfold_import_{path.stem}_{zlib.crc32(str(path).encode())}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    try:  # compiled each time: cached bytecode may be older than an edit in a notebook
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        _registered.clear()
        _registered.update(before)
        advice = where_now(error) if isinstance(error, ImportError) else ""
        raise ValueError(f"{path} could not be imported: {type(error).__name__}: {error}{advice}") from error
    _imported.update({name: given for name, new in _registered.items() if before.get(name) is not new})


def files_of(modifications: Iterable[Any]) -> list[str]:
    """The files, as they were given, that `import_file` ran to register these modifications."""
    names = [_split(entry)[0] for entry in modifications]
    return [*dict.fromkeys(_imported[name] for name in names if name in _imported)]
