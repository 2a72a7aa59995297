"""The configuration: typed, strict, from a YAML file and the command line.

Every key is declared here once; `--help` and the errors know it from here. What the command line says
wins over the file, and the file over the defaults. torch is not imported.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

if TYPE_CHECKING:
    from sixfold.spec import Sizes


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Vocabularies(Section):
    """Sizes of separate vocabularies."""

    source: int
    target: int


class Data(Section):
    """The text."""

    vocabulary: int | Vocabularies | None = Field(
        None, description="words of the joint vocabulary, or {source: N, target: N} for separate ones"
    )


class Model(Section):
    """The architecture."""

    kind: Literal["encoder_decoder", "decoder_only", "encoder_only"] = Field(
        "encoder_decoder", description="encoder_decoder, decoder_only or encoder_only"
    )
    d_model: int = Field(512, description="width of the model")
    d_ff: int = Field(2048, description="width inside the feed-forward layers")
    heads: int = Field(8, description="attention heads")
    d_head: int | None = Field(None, description="width of a head [default: d_model / heads]")
    layers: int | None = Field(None, description="layers of each stack [default: 6]")
    encoder_layers: int | None = Field(None, description="layers of the encoder, where it differs")
    decoder_layers: int | None = Field(None, description="layers of the decoder, where it differs")
    classes: int = Field(0, description="classes, for an encoder_only model that classifies whole texts")
    dropout: float = Field(0.1, description="dropout on embeddings and sub-layer outputs")
    modifications: list[str | dict[str, dict[str, Any] | None]] = Field(
        [], description="names, or NAME:key=value; `sixfold list` shows them"
    )


class Config(Section):
    """A whole run."""

    data: Data = Data()
    model: Model = Model()

    def sizes(self) -> Sizes:
        """The sizes of the model."""
        from sixfold.spec import Sizes

        words = self.data.vocabulary
        if words is None:
            raise ValueError("how many words? Give --data.vocabulary, or a recipe that says it")
        vocabulary = {"vocab": words} if isinstance(words, int) else {f"{k}_vocab": v for k, v in words}
        model, both = self.model, 6 if self.model.layers is None else self.model.layers
        return Sizes(
            d_model=model.d_model,
            d_ff=model.d_ff,
            heads=model.heads,
            d_head=model.d_head or 0,
            encoder_layers=both if model.encoder_layers is None else model.encoder_layers,
            decoder_layers=both if model.decoder_layers is None else model.decoder_layers,
            classes=model.classes,
            dropout=model.dropout,
            **vocabulary,
        )


def keys() -> Iterator[tuple[str, FieldInfo]]:
    """Every key that can be set, such as "model.d_model", with its description and default."""
    for section, field in Config.model_fields.items():
        kind = cast("type[Section]", field.annotation)
        for key, leaf in kind.model_fields.items():
            yield f"{section}.{key}", leaf


def read_config(recipe: str | Path | None = None, settings: Mapping[str, str] | None = None) -> Config:
    """A recipe (a file, or the name of one that comes with sixfold) with settings such as {"model.heads": "4"}."""
    tree = {} if recipe is None else _read_recipe(recipe)
    for key, text in (settings or {}).items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})
        tree[section] = {**(tree[section] or {}), name: _parse(text, f"--{key}")}
    try:
        return Config.model_validate({section: values or {} for section, values in tree.items()})
    except ValidationError as error:
        raise ValueError(_explain(error, "" if recipe is None else f"{recipe}: ")) from None


def recipes() -> dict[str, Path]:
    """The recipes that come with sixfold, by name."""
    folder = Path(str(resources.files("sixfold") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _read_recipe(recipe: str | Path) -> dict[str, Any]:
    path = recipes().get(str(recipe), Path(recipe))
    if not path.is_file():
        near = difflib.get_close_matches(str(recipe), recipes(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no recipe {str(recipe)!r}; {hint}there are {', '.join(recipes())}, or give a file")
    try:
        tree = _parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if tree is not None and not isinstance(tree, dict):
        raise ValueError(f"{path} must hold sections ({', '.join(Config.model_fields)}), got {type(tree).__name__}")
    for section, values in (tree or {}).items():
        if section in Config.model_fields and not isinstance(values, dict | None):
            raise ValueError(f"{path}: {section} must hold keys and values, got {values!r}")
    return tree or {}


def _parse(text: str, where: str) -> Any:
    """YAML 1.2: 4e-3 is a number and `no` is a word."""
    try:
        return YAML(typ="safe", pure=True).load(io.StringIO(text))
    except YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ValueError(f"{where}{line}: {problem}") from None


def _explain(error: ValidationError, where: str) -> str:
    """The first mistake in words a user knows."""
    mistake = error.errors()[0]
    path = [str(word) for word in mistake["loc"]]
    key = ".".join(path[:2])
    if mistake["type"] == "extra_forbidden":
        known = list(Config.model_fields) if len(path) == 1 else [k for k, _ in keys() if k.startswith(f"{path[0]}.")]
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        return f"{where}there is no key {key!r}; {hint}"
    return f"{where}{key}: {mistake['msg'][0].lower()}{mistake['msg'][1:]}, got {mistake['input']!r}"
