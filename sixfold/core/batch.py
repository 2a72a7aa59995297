"""The input of a training step (`Batch`), and its losses (`Term`, `Losses`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Batch:
    """The tensors of one pass, by name, and the number of scored targets of each term.

        Batch(source=ids, inputs=ids, targets=ids, weights=mask, counts={"words": 812})

    The encoder reads `source` (S, n), the decoder `inputs` (B, L). `targets` are the right answers; `weights` are their
    weights in the loss, 0 for a target that is not scored. Features of tokens are fields, too: `source_segments` (S, n)
    reaches the encoder's Call as the feature `segments`, `inputs_depth` the decoder's as `depth`.
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
        """The features of the tokens of `source` or `inputs`, without the prefix of their names."""
        start = f"{of}_"
        return {name.removeprefix(start): tensor for name, tensor in self.fields.items() if name.startswith(start)}

    def replaced(self, **fields: Any) -> Batch:
        """A copy with these fields in place of its own, or besides them; the counts stay."""
        return Batch(counts=self.counts, **{**self.fields, **fields})

    def need_terms(self, terms: Mapping[str, Term]) -> None:
        """Raise a ValueError unless there is a term for each count."""
        if missing := [name for name in self.counts if name not in terms]:
            raise ValueError(f"the batch counts {', '.join(missing)}, but the losses are {', '.join(terms) or 'none'}")

    def to(self, device: torch.device) -> Batch:
        return Batch(counts=self.counts, **{name: tensor.to(device) for name, tensor in self.fields.items()})

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in self.fields.items())
        return f"Batch({shapes}; {self.counts})"


class Term(NamedTuple):
    """One loss of a task. Both fields are sums, so that micro-batches and processes add up to one batch."""

    sum: Tensor  # the weighted sum that is minimised
    shown: Tensor  # the sum that is reported: no smoothing, no gradient


class Losses(NamedTuple):
    """The result of `model(batch)`: sums over the words, or the classes, of a batch."""

    sum: Tensor  # Σ −log p over the scored targets
    tokens: Tensor  # the number of scored targets
    auxiliary: Tensor  # losses of parts, such as the balance loss of experts
    plain: Tensor  # Σ −log p without smoothing and without gradient, for reports
