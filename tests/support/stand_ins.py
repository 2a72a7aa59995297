"""Small text on disk, and the configuration that reads it."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from sixfold.config.schema import Config, Data, ModelConfig


def write(path: Path, text: str | bytes) -> str:
    """A file with exactly these bytes, packed if its name ends with .gz. → its name"""
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def pairs(train: Any, **data: Any) -> Config:
    """Of an encoder-decoder that reads characters, or what `data` says."""
    return Config(data=Data(train=train, **{"tokenizer": "characters", **data}))


def text(train: Any, kind: str = "decoder_only", **data: Any) -> Config:
    """Of a language model."""
    model = ModelConfig(kind=kind)  # type: ignore[arg-type]
    return Config(data=Data(train=train, **{"tokenizer": "bytes", "context": 4, **data}), model=model)
