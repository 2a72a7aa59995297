"""The README of an export: a program that uses it, the run's settings, and the settings that are not carried over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sixfold.foreign.programs import program

_SAID = {
    "ctranslate2": """\
A model for CTranslate2, written by sixfold: tokens in, tokens out. Its vocabularies have the token names of the
tokenizer files, so the engine reads `Tokenizer.encode(…).tokens`; it appends the end token of a source itself.

The program below decodes as the run does. It reads export.json: `decoding` has the run's settings, `options` those that
CTranslate2 supports. The program itself applies the length limit of each line (`max_ratio`), and ranks the outputs of a
beam by the run's length formula. CTranslate2 ends a beam search after 2 · `beam_size` outputs, sixfold when no open
hypothesis can still win, so a few lines may differ. `limits` has the most tokens that the engine can read, including
the end token: with more it throws an error. `room` has the most tokens that the program lets it read and write.
""",
    "torch": """\
Programs of torch.export, written by sixfold.

    encoder.pt2   source (B, n) ids, padded with 0 at the end   →  mask (B, n), kept …
    step.pt2      ids (B, L), mask, [kept …], [past …]          →  log p (B, V) of the next token, past …

All rows of a batch have read the same number of tokens. `past` in export.json has the shapes for one row that has read
nothing yet; the last axis but one grows. A language model has no encoder: its mask is None, and `kept` is empty.

The program below decodes as the run does, one line at a time. `decoding` in export.json has the run's settings.
""",
    "safetensors": """\
The weights of a model, written by sixfold, each tensor once. export.json has its sizes, its modifications, its
tokenizers (in the format of the library `tokenizers`; a tokenizer that both sides share is stored as the target's), and
in `tables` the embedding table of the source, of the target, and of the output.
""",
}


def readme(to: str, reads_source: bool, about: Mapping[str, Any]) -> str:
    """The text of the README; `about` is the content of export.json."""
    return f"{_SAID[to]}{_settings(about)}\n```python\n{program(to, reads_source)}```\n"


def _settings(about: Mapping[str, Any]) -> str:
    if "decoding" not in about:
        return ""
    carried = ", ".join(f"{name} {value}" for name, value in about["decoding"].items())
    missing = [f"- {sentence}\n" for sentence in about["not_carried"]] or ["- nothing\n"]
    return f"\nSettings of the run: {carried}.\n\nNot carried over:\n\n{''.join(missing)}"
