"""The object that writes text with a model, whatever its kind."""

from __future__ import annotations

from typing import Any

from sixfold.config.schema import Decoding
from sixfold.decoding.front import Front
from sixfold.decoding.generator import Generator
from sixfold.decoding.translator import Translator
from sixfold.text.tokenizer import Tokenizers


def front_of(model: Any, tokenizers: Tokenizers, decoding: Decoding) -> Front[Any, Any]:
    """A Translator of a model that reads a source, a Generator of a decoder alone."""
    front: Any = Translator if model.reads_source else Generator
    return front(model, tokenizers, decoding)
