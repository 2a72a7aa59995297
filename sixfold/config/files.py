"""Configurations from and to YAML files. The command line wins over the file, and the file over the defaults."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from itertools import takewhile
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from sixfold.config.plain_yaml import LONGEST, parse
from sixfold.config.schema import EMBEDDED, SECTIONS, Config, Files, explained
from sixfold.config.settings import giving_way, of_other_text
from sixfold.core.names import unknown
from sixfold.core.quote import quoted
from sixfold.disk.atomic import write_text
from sixfold.disk.reading import read_bytes


def read_config(
    recipe: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    translate: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    say: Callable[[str], Any] | None = None,
) -> Config:
    """A recipe (a file, or the name of one that comes with sixfold) with settings such as {"model.heads": 4}.

    A text is read as on the command line: {"model.heads": "4"} is the same. Who gives data.train replaces the recipe's
    validation and test text, too; `say` is told. `translate` changes the sections of a file of an older format.
    """
    tree = {} if recipe is None else _read_recipe(recipe)
    tree = tree if translate is None else translate(tree)
    given: dict[str, dict[str, Any]] = {}
    for key, value in _flat(settings or {}):
        section, _, name = key.partition(".")
        if key == "task":
            tree["task"] = value
            continue
        given.setdefault(section, {})[name] = _read_setting(value, f"--{key}")
    if dropped := of_other_text(tree.get("data") or {}, given.get("data", {})):
        tree["data"] = {key: value for key, value in tree["data"].items() if key not in dropped}
        if say is not None:
            keys = ", ".join(f"data.{key}" for key in dropped)
            say(f"data.train replaces the text of the recipe {recipe}: these keys of it are left out, too: {keys}")
    for section, values in given.items():
        tree[section] = {**giving_way(tree.get(section) or {}, values), **values}
    try:
        return Config.model_validate(
            {section: values or {} for section, values in tree.items() if values or section != "task"}
        )
    except ValidationError as error:
        if recipe is not None and settings:
            # if the mistake is in the file, this raises an error that names it
            read_config(recipe, translate=translate)
        raise ValueError(("" if recipe is None or settings else f"{recipe}: ") + explained(error)) from None


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys such as "training.steps" with their values; a whole section may be given by its name."""
    if not isinstance(settings, Mapping) or not all(isinstance(key, str) for key in settings):
        raise ValueError(f'settings are keys with values, such as {{"training.steps": 4}}, got {quoted(settings)}')
    for key, value in settings.items():
        if key in SECTIONS and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", of) for name, of in value.items())
        else:
            yield key, value


def _read_setting(value: Any, where: str) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return parse(value, where) if isinstance(value, str) else value


def write_config(config: Config, path: Path) -> None:
    """Write every key as it was resolved."""
    text = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style, yaml.width = False, 4096
    yaml.dump(config.model_dump(mode="json"), text)
    write_text(path, text.getvalue())


def with_whole_paths(config: Config) -> Config:
    """A copy whose text files, and the run whose plan is repeated, have absolute paths."""
    parts = {part: _whole(getattr(config.data, part)) for part in ("train", "valid", "test")}
    training = config.training.model_copy(update={"plan": _whole(config.training.plan)})
    return config.model_copy(update={"data": config.data.model_copy(update=parts), "training": training})


def _whole(corpus: Any) -> Any:
    if isinstance(corpus, list):
        return [_whole(item) for item in corpus]
    if isinstance(corpus, Files):
        own = {name: _whole(getattr(corpus, name)) for name in ("path", "source", "target")}
        return corpus.model_copy(update=own)
    return corpus if corpus is None or corpus.startswith(EMBEDDED) else str(Path(os.path.expanduser(corpus)).absolute())


def recipes() -> dict[str, Path]:
    """The recipes that come with sixfold, by name."""
    folder = Path(str(resources.files("sixfold.config") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def about_recipes() -> dict[str, str]:
    """The comment at the top of each recipe."""
    about = {}
    for name, path in recipes().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        comment = takewhile(lambda line: line.startswith("#"), lines)
        about[name] = " ".join(line.removeprefix("#").strip() for line in comment)
    return about


def _read_recipe(recipe: str | Path) -> dict[str, Any]:
    path = recipes().get(str(recipe), Path(recipe))
    if path.is_dir():
        raise ValueError(f"{path} is a directory, not a recipe; if it is a run, --resume {path} continues it")
    if not path.exists():
        raise ValueError(f"{unknown('recipe', str(recipe), recipes())}, or give a file")
    try:
        tree = parse(_read_text(path), str(path))
    except ValueError as error:
        raise ValueError(f"{error}{_or_text(path)}") from None
    if tree is not None and not isinstance(tree, dict):
        sections = ", ".join(SECTIONS)
        raise ValueError(f"{path} must hold sections ({sections}), got {type(tree).__name__}{_or_text(path)}")
    for section, values in (tree or {}).items():
        if section in SECTIONS and not isinstance(values, dict | None):
            raise ValueError(f"{path}: {section} must hold keys and values, got {quoted(values)}")
    return tree or {}


def _or_text(path: Path) -> str:
    """A hint for a file without YAML's suffix: perhaps it is training text."""
    return "" if path.suffix in (".yaml", ".yml") else f"; if it is text to train on, give --data.train {path}"


def _read_text(path: Path) -> str:
    try:
        return read_bytes(path, 4 * LONGEST).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise ValueError(f"{path} can't be read as a configuration: {error}") from None
