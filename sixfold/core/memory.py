"""The record that a decoder reads of its encoder.

Letters: S sentences, n source length, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

_NOTHING: Mapping[str, Tensor] = MappingProxyType({})
Combine = Callable[[Sequence[Tensor]], Tensor]  # the tensors of one name in several memories → one tensor


class Memory(NamedTuple):
    """The encoder's output, as the decoder reads it."""

    states: tuple[Tensor, ...]  # (S, n, ·) for each decoder layer; in the plain Transformer one tensor for all
    real: Tensor | None  # (S, n): which tokens are not padding; None if all are real
    tokens: Mapping[str, Tensor] = _NOTHING  # name → (S, n, ·): further values of each source token
    sentences: Mapping[str, Tensor] = _NOTHING  # name → (S, …): values of each sentence, such as an LSTM's last state

    @property
    def rows(self) -> int:
        return self.states[0].shape[0]

    @property
    def length(self) -> int:
        return self.states[0].shape[1]

    def named(self, name: str, layer: int) -> Tensor:
        """The tensor of this name; "states" is the one for this decoder layer."""
        if name == "states":
            return self.states[layer]
        if name in self.tokens:
            return self.tokens[name]
        if name in self.sentences:
            return self.sentences[name]
        known = ", ".join(["states", *self.tokens, *self.sentences])
        raise ValueError(f"the encoder's memory has no {name!r}; it has {known}")

    def select(self, sentences: Tensor) -> Memory:
        """The memory of these sentences, as long as the longest of them."""

        def chosen(tensors: Sequence[Tensor]) -> Tensor:
            return tensors[0].index_select(0, sentences)

        return _trimmed(_combined([self], chosen, chosen))

    def join(self, other: Memory, index: Tensor, total: int) -> Memory:
        """`total` sentences: those of `other` in the rows `index`, ours in the remaining rows."""
        ours, theirs = _without(self, index), with_mask(other)
        length = max(ours.length, theirs.length)

        def of_tokens(tensors: Sequence[Tensor]) -> Tensor:
            return put_rows(_lengthened(tensors[0], length), _lengthened(tensors[1], length), index, total)

        def of_sentences(tensors: Sequence[Tensor]) -> Tensor:
            return put_rows(tensors[0], tensors[1], index, total)

        return _trimmed(_combined([ours, theirs], of_tokens, of_sentences))


def concatenate(memories: Sequence[Memory]) -> Memory:
    """The sentences of several memories, one after the other."""
    if len(memories) == 1:
        return memories[0]
    masked, length = [with_mask(memory) for memory in memories], max(memory.length for memory in memories)

    def of_tokens(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([_lengthened(tensor, length) for tensor in tensors])

    return _trimmed(_combined(masked, of_tokens, lambda tensors: torch.cat(list(tensors))))


def put_rows(ours: Tensor, theirs: Tensor, index: Tensor, total: int) -> Tensor:
    """`total` rows: `theirs` at `index`, `ours` in the remaining rows."""
    both = torch.cat([ours, ours.new_zeros(total - len(ours), *ours.shape[1:])])
    both[index] = theirs
    return both


def _combined(memories: Sequence[Memory], of_tokens: Combine, of_sentences: Combine) -> Memory:
    """Combine tensor by tensor. Decoder layers that shared a tensor share the result."""
    first, columns = memories[0], list(zip(*(memory.states for memory in memories), strict=True))
    once = {id(column[0]): column for column in columns}
    combined = {key: of_tokens(column) for key, column in once.items()}
    masks = [memory.real for memory in memories if memory.real is not None]
    return Memory(
        tuple(combined[id(states)] for states in first.states),
        of_tokens(masks) if len(masks) == len(memories) else None,
        {name: of_tokens([memory.tokens[name] for memory in memories]) for name in first.tokens},
        {name: of_sentences([memory.sentences[name] for memory in memories]) for name in first.sentences},
    )


def _trimmed(memory: Memory) -> Memory:
    """Without columns that are padding in every row, and without a mask if nothing is padding."""
    if memory.real is None:
        return memory
    columns = torch.arange(1, memory.real.shape[1] + 1, device=memory.real.device)
    length = int((memory.real * columns).max()) if memory.real.numel() else 0
    memory = _combined([memory], lambda tensors: tensors[0][:, :length], lambda tensors: tensors[0])
    assert memory.real is not None
    return memory._replace(real=None) if bool(memory.real.all()) else memory


def _without(memory: Memory, index: Tensor) -> Memory:
    """With a mask, and as long as the longest sentence outside `index`: those at `index` are to be replaced."""
    memory = with_mask(memory)
    assert memory.real is not None
    real = memory.real.clone()
    real[index[index < len(real)]] = False
    return with_mask(_trimmed(memory._replace(real=real)))


def with_mask(memory: Memory) -> Memory:
    """With a mask, also where nothing is padding."""
    if memory.real is not None:
        return memory
    states = memory.states[0]
    return memory._replace(real=torch.ones(states.shape[:2], dtype=torch.bool, device=states.device))


def _lengthened(states: Tensor, length: int) -> Tensor:
    """(S, n, …) → (S, length, …), with zeros at the end."""
    missing = length - states.shape[1]
    return states if not missing else torch.cat([states, states.new_zeros(len(states), missing, *states.shape[2:])], 1)
