"""Shared by the tasks that predict words: their losses, and a batch made of arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sixfold.core.batch import Batch, Term

if TYPE_CHECKING:
    from sixfold.models.model import Model


def make_batch(counts: dict[str, int], **arrays: Any) -> Batch:
    """A batch whose fields are arrays turned into tensors: ids become int64, masks stay bool."""
    import torch

    def tensor(values: Any) -> torch.Tensor:
        array = np.asarray(values)
        return torch.from_numpy(array if array.dtype == bool else array.astype(np.int64, copy=False))

    return Batch(counts=counts, **{name: tensor(values) for name, values in arrays.items()})


def word_losses(model: Model, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> dict[str, Term]:
    """−log p of the scored words, and the auxiliary losses of parts, times the number of these words."""
    reading = model.read(batch, recompute=recompute)
    scored = model.score_words(reading.x, batch, smoothing)
    return {"words": Term(scored.sum, scored.plain), **reading.auxiliary_terms(scored.tokens)}
