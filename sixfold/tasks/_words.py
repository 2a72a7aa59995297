"""What the tasks that predict words share: their losses, and the arrays of a batch as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sixfold.core.batch import Batch, Term

if TYPE_CHECKING:
    from sixfold.models.model import Model


def make_batch(counts: dict[str, int], **arrays: Any) -> Batch:
    """A batch of arrays: ids as int64, masks as they are."""
    import torch

    def tensor(values: Any) -> torch.Tensor:
        array = np.asarray(values)
        return torch.from_numpy(array if array.dtype == bool else array.astype(np.int64, copy=False))

    return Batch(counts=counts, **{name: tensor(values) for name, values in arrays.items()})


def word_losses(model: Model, batch: Batch, smoothing: float = 0.0, recompute: bool = False) -> dict[str, Term]:
    """−log p of the words that are scored; and what parts ask to be minimised, for each of these words."""
    reading = model.read(batch, recompute=recompute)
    scored = model.score_words(reading.x, batch, smoothing)
    terms = {"words": Term(scored.sum, scored.plain)}
    return {**terms, **auxiliary_terms(reading.auxiliary, scored.tokens)}


def auxiliary_terms(auxiliary: list[Any], count: Any) -> dict[str, Term]:
    """What parts ask to be minimised, such as the balance of experts, is a mean: it weighs as much as its batch."""
    if not auxiliary:
        return {}
    import torch

    total = torch.stack(auxiliary).sum() * count
    return {"auxiliary": Term(total, total.detach())}
