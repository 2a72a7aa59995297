"""The README in an exported directory: a program that uses it, the run's settings, and those that are not carried."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sixfold.foreign.programs import program

_SAID = {
    "ctranslate2": """\
A model for CTranslate2, written by sixfold: tokens in, tokens out. Its vocabularies call tokens as the tokenizer files
do, so `Tokenizer.encode(…).tokens` are what the engine reads; it adds what ends a source by itself.

The program below decodes as the run does. It reads export.json: `decoding` are the run's settings, `options` those that
CTranslate2 has. The program itself applies the length limit of each line (`max_ratio`), and ranks the outputs of a beam
by the run's length formula. CTranslate2 ends a beam search when it has found 2 · `beam_size` outputs, sixfold when no
open hypothesis can still win: a few lines may differ for that. `limits` are the most tokens that the engine can read,
with the one that ends them: beyond, it throws. `room` are the most that the program lets it read and write.
""",
    "torch": """\
Programs of torch.export, written by sixfold.

    encoder.pt2   source (B, n) ids, padded with 0 at the end   →  mask (B, n), kept …
    step.pt2      ids (B, L), mask, [kept …], [past …]          →  log p (B, V) of the next token, past …

All rows of a batch have read the same number of tokens. `past` in export.json are the shapes of one row that has read
nothing yet; its last axis but one grows. A language model has no encoder: its mask is None, and nothing is kept.

The program below decodes as the run does, one line at a time. `decoding` in export.json are the run's settings.
""",
    "safetensors": """\
The weights of a model, written by sixfold, each tensor once. export.json has its sizes, its modifications, its
tokenizers (files of the library `tokenizers`; the source has none of its own where both share one), and in `tables`
which table reads the source, which reads the target, and which writes.
""",
}


def readme(to: str, reads_source: bool, about: Mapping[str, Any]) -> str:
    """`about` is what stands in export.json."""
    return f"{_SAID[to]}{_settings(about)}\n```python\n{program(to, reads_source)}```\n"


def _settings(about: Mapping[str, Any]) -> str:
    if "decoding" not in about:
        return ""
    carried = ", ".join(f"{name} {value}" for name, value in about["decoding"].items())
    missing = [f"- {sentence}\n" for sentence in about["not_carried"]] or ["- nothing\n"]
    return f"\nSettings of the run: {carried}.\n\nNot carried:\n\n{''.join(missing)}"
