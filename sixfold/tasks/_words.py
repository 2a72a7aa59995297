"""Shared by the tasks that predict words: their losses, and a batch made of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sixfold.core.batch import Batch, Term

if TYPE_CHECKING:
    from sixfold.models.model import Model

_LARGEST = 100.0  # weight of a divergence


def make_batch(counts: dict[str, int], **arrays: Any) -> Batch:
    """A batch whose fields are arrays turned into tensors: ids become int64, masks stay bool."""
    import torch

    def tensor(values: Any) -> torch.Tensor:
        array = np.asarray(values)
        return torch.from_numpy(array if array.dtype == bool else array.astype(np.int64, copy=False))

    return Batch(counts=counts, **{name: tensor(values) for name, values in arrays.items()})


@dataclass(frozen=True)
class RDropOptions:
    """R-Drop (2106.14448): two passes over a batch differ by their dropout; their predictions should agree."""

    r_drop: float = 0.0  # weight of the divergence of the two passes; 0: one pass

    def __post_init__(self) -> None:
        if not 0 <= self.r_drop <= _LARGEST:
            raise ValueError(f"r_drop is a weight from 0 to {_LARGEST:g}, got {self.r_drop:g}")


def passes(options: Any) -> float:
    """The passes over each batch: `Task.work`. As in `word_losses`, a task may have other options."""
    return 2.0 if isinstance(options, RDropOptions) and options.r_drop else 1.0


def word_losses(
    model: Model, batch: Batch, smoothing: float = 0.0, recompute: bool = False, options: Any = None, **how: Any
) -> dict[str, Term]:
    """−log p of the scored words, and the auxiliary losses of parts, times the number of these words.

    `how` is for `model.read`.
    """
    if isinstance(options, RDropOptions) and options.r_drop and model.training:
        return _agreeing(model, batch, smoothing, recompute, options.r_drop)
    reading = model.read(batch, recompute=recompute, **how)
    scored = model.score_words(reading.x, batch, smoothing)
    return {"words": Term(scored.sum, scored.plain), **reading.auxiliary_terms(scored.tokens)}


def _agreeing(model: Model, batch: Batch, smoothing: float, recompute: bool, weight: float) -> dict[str, Term]:
    """R-Drop: (−log p₁ − log p₂)/2 + weight · (KL(p₁‖p₂) + KL(p₂‖p₁))/4, half of the paper's loss."""
    import torch

    twice = batch.replaced(**{name: torch.cat([tensor, tensor]) for name, tensor in batch.fields.items()})
    reading = model.read(twice, recompute=recompute)
    scored = model.score_words(reading.x, twice, smoothing)
    first, second = reading.x.chunk(2)
    apart = model.divergence(first, second, batch)
    words = Term((scored.sum + weight * apart) / 2, scored.plain / 2)
    return {"words": words, **reading.auxiliary_terms(scored.tokens // 2)}
