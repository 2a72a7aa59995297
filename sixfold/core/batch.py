"""What a training step reads, and what it minimises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Batch:
    """What one pass reads: tensors by name, and how many things of each sort are scored.

        Batch(source=ids, inputs=ids, targets=ids, weights=mask, counts={"words": 812})

    `source` (S, n) is read by an encoder, `inputs` (B, L) by a decoder. `targets` say what is right, `weights` how much
    each target counts: 0 where it does not. What a token carries besides its id is a field, too: `source_segments`
    (S, n) reaches the encoder's Call as the feature `segments`, `inputs_depth` the decoder's as `depth`.
    """

    __slots__ = ("counts", "fields")

    def __init__(
        self,
        source: Any = None,
        inputs: Any = None,
        targets: Any = None,
        *,
        counts: Mapping[str, int] | None = None,
        **others: Any,
    ):
        named = {"source": source, "inputs": inputs, "targets": targets, **others}
        self.fields: dict[str, Any] = {name: tensor for name, tensor in named.items() if tensor is not None}
        self.counts: dict[str, int] = dict(counts or {})

    def get(self, name: str) -> Any:
        """A field, or None."""
        return self.fields.get(name)

    @property
    def source(self) -> Any:
        return self.fields.get("source")

    @property
    def inputs(self) -> Any:
        return self.fields.get("inputs")

    @property
    def targets(self) -> Any:
        return self.fields.get("targets")

    def features(self, of: str) -> dict[str, Any]:
        """What the tokens of `source` or `inputs` carry besides their ids."""
        start = f"{of}_"
        return {name.removeprefix(start): tensor for name, tensor in self.fields.items() if name.startswith(start)}

    def to(self, device: torch.device) -> Batch:
        return Batch(counts=self.counts, **{name: tensor.to(device) for name, tensor in self.fields.items()})

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in self.fields.items())
        return f"Batch({shapes}; {self.counts})"


class Term(NamedTuple):
    """One thing that is minimised: sums, so that micro-batches and processes add up to one batch."""

    sum: Tensor  # what is added up, with its weights
    shown: Tensor  # what is reported: no smoothing, no gradient


class Losses(NamedTuple):
    """What `model(batch)` gives: the sums over a batch of words, or of classes."""

    sum: Tensor  # Σ −log p over the scored targets
    tokens: Tensor  # how many these are
    auxiliary: Tensor  # what parts add to be minimised, such as the balance of experts
    plain: Tensor  # Σ −log p without smoothing: what is reported; it has no gradient
