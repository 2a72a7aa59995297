"""Alignments between the words of source and output, from cross-attention.

One pass reads the source and the output, with a tap at the cross-attention of one decoder layer: the last but one,
whose mean over the heads follows word order best in translation (arXiv 1909.02074); in a decoder of one layer, that
one. A token is aligned to the source piece with the largest weight when the token was predicted. EOS of the source is
left out, because heads that find nothing attend to it.

Letters: B rows, L target length with the end, n source length with the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from sixfold.core.ids import BOS, UNK
from sixfold.core.tap import Tap
from sixfold.decoding.records import Alignment
from sixfold.decoding.step import batches, gates_for, gates_of_rows, padded
from sixfold.models.model import Gates, Model
from sixfold.text.tokenizer import Tokenizer, Tokenizers

IdPair = tuple[Sequence[int], Sequence[int]]  # source with EOS, target without

_CROSS = "decoder.*.cross"
_TOKENS = 8192  # source and target tokens that are read together


def watched_layer(model: Model) -> str | None:
    """The name of the cross-attention that alignments are read from; None if a model has none."""
    names = [name for name, kind in model.maps.items() if kind == "softmax" and fnmatchcase(name, _CROSS)]
    return names[max(len(names) - 2, 0)] if names else None


@torch.inference_mode()
def looks(
    models: Sequence[Model], pairs: Sequence[IdPair], gates: Sequence[Gates | None] | None = None
) -> list[Tensor | None]:
    """For each source (with EOS) and target (without): weights (L, n), the mean over heads and models.

    `gates` are those under which each target was found. None if a model has no such weights, or shortens its source.
    """
    found: list[Tensor | None] = []
    for part in batches((len(source) + len(target) for source, target in pairs), _TOKENS):
        rows = slice(part.start, part.stop)
        some, own_gates = pairs[rows], gates[rows] if gates else ()
        several = [_looks(model, some, own_gates) for model in models]
        for number, (source, target) in enumerate(some):
            own = [weights[number, : len(target) + 1, : len(source)] for weights in several if weights is not None]
            complete = len(own) == len(models) and all(w.shape[-1] == len(source) for w in own)
            found.append(torch.stack(own).mean(0) if complete else None)
    return found


def _looks(model: Any, pairs: Sequence[IdPair], own_gates: Sequence[Gates | None]) -> Tensor | None:
    name = watched_layer(model)
    if name is None:
        return None
    device, tap = next(model.parameters()).device, Tap(name)
    source = padded([source for source, _ in pairs], device)
    gates = gates_for(model, gates_of_rows(own_gates, 1, device))
    memory = model.encode(source, gates=gates)
    if memory.states[0].shape[1] != source.shape[1]:  # each state of a funnel represents several pieces
        return None
    model.decode(padded([(BOS, *target) for _, target in pairs], device), memory, tap=tap, gates=gates)
    return tap[name].mean(1).float().cpu()


def align(look_Ln: Tensor, source: Sequence[int], target: Sequence[int], tokenizers: Tokenizers) -> Alignment:
    """The alignment by these weights; source (with EOS) and target (without) are ids."""
    ids = source[:-1]
    weights = look_Ln[: len(target), : len(ids)]
    tokens = weights.argmax(1).tolist() if weights.numel() else []
    words = _align_words(weights, word_numbers(tokenizers.source, ids), word_numbers(tokenizers.target, target))
    return Alignment(tuple(tokenizers.source.pieces(ids)), tuple(tokens), tuple(words))


def _align_words(
    weights_Ln: Tensor, source: Sequence[int | None], target: Sequence[int | None]
) -> Iterator[tuple[int, int]]:
    """For each word of the target, the source word with the largest sum of weights over the pieces of both."""
    columns = range(max((w for w in source if w is not None), default=-1) + 1)
    if not columns:
        return
    weights = torch.stack([weights_Ln[:, [w == number for w in source]].sum(1) for number in columns], 1)
    for word in sorted({w for w in target if w is not None}):
        rows = weights[[w == word for w in target]]
        yield word, int(rows.sum(0).argmax())


def word_numbers(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int | None]:
    """For each piece the number of its word, from 0, or None for a space. Words are separated by spaces."""
    if not tokenizer.spells:
        return list(range(len(ids)))
    numbers: list[int | None] = []
    word, inside = -1, False
    for id_ in ids:
        text = tokenizer.decode([id_])
        if text and not text.strip():
            numbers.append(None)
            inside = False
            continue
        if not inside or text[:1].isspace():
            word += 1
        inside = not text[-1:].isspace()
        numbers.append(word)
    return numbers


def words_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text, which `word_numbers` counts."""
    return text.split() if tokenizer.spells else [word for word in text.split(" ") if word]


def words_in_place_of_unknown(
    target: Sequence[int], look_Ln: Tensor, source: Sequence[int], text: str, tokenizers: Tokenizers
) -> list[str | None]:
    """For each UNK of the output, the source word with the largest weight; None for other tokens."""
    words = words_of(tokenizers.source, text)
    numbers = word_numbers(tokenizers.source, source[:-1])
    weights = look_Ln[:, : len(numbers)].clone()
    weights[:, [number is None or number >= len(words) for number in numbers]] = -1
    found: list[str | None] = []
    for index, id_ in enumerate(target):
        number = numbers[int(weights[index].argmax())] if id_ == UNK and numbers else None
        found.append(words[number] if number is not None and number < len(words) else None)
    return found
