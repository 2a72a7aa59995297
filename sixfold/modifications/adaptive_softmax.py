"""Adaptive softmax."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from sixfold.core.init import linear
from sixfold.core.loss import Scored, chunked_likelihood, chunked_loss
from sixfold.core.place import Place, Sizes
from sixfold.modifications.adaptive_input import Clusters, check
from sixfold.modifications.adaptive_input import added as added_by_clusters
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def log_softmax(logits: Tensor) -> Tensor:
    return logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


class AdaptiveHead(nn.Module):
    """First a softmax over the frequent words and one entry for each tail, then one within that tail.

    log p(v) = log p_head(v), or log p_head(tail c) + log p_c(v). The words' vectors are the table's.
    """

    def __init__(self, spec: Spec, place: Place, tails: int):
        super().__init__()
        self.tails = linear(spec.sizes.d_model, tails, bias=False)

    def head(self, x: Tensor, table: Clusters) -> Tensor:
        """(…, D) → (…, frequent words + tails)"""
        return log_softmax(torch.cat([table.clusters[0].logits(x), self.tails(x)], -1))  # type: ignore[operator]

    def log_probs(self, x: Tensor, table: Clusters) -> Tensor:
        frequent, *tails = self.head(x, table).split([table.edges[1]] + [1] * self.tails.out_features, -1)
        inside = [log_softmax(cluster.logits(x)) for cluster in list(table.clusters)[1:]]  # type: ignore[operator]
        return torch.cat([frequent, *(tail + p for tail, p in zip(tails, inside, strict=True))], -1)

    def loss(
        self, x: Tensor, table: Clusters, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> Scored:
        """A tail is computed only for the targets in it; with smoothing for all, as that needs every probability."""
        parameters = [*table.parameters(), *self.parameters()]
        if smoothing or x.is_meta or torch.compiler.is_compiling():  # meta and the compiler need fixed shapes
            return chunked_likelihood(
                partial(self.log_probs, table=table), x, targets, parameters, smoothing, weights=weights
            )
        return chunked_loss(partial(self.loss_of_targets, table), x, targets, parameters, weights=weights)

    def loss_of_targets(
        self, table: Clusters, x_ND: Tensor, targets_N: Tensor, weights_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Σ −weight · log p(target), twice: without smoothing, the sum to minimise and the plain sum are the same."""
        entries_N = targets_N.clone()
        total = x_ND.new_zeros(())
        for tail, (start, end) in enumerate(list(pairwise(table.edges))[1:]):
            (there,) = ((targets_N >= start) & (targets_N < end)).nonzero(as_tuple=True)
            entries_N[there] = table.edges[1] + tail
            log_p = log_softmax(table.clusters[tail + 1].logits(x_ND[there]))  # type: ignore[operator]
            total = total - (log_p.gather(1, targets_N[there, None] - start)[:, 0] * weights_N[there]).sum()
        chosen_N = self.head(x_ND, table).gather(1, entries_N[:, None])[:, 0]
        total = total - (chosen_N * weights_N).sum()
        return total, total


def added(
    sizes: Sizes,
    cutoffs: tuple[int, ...] = (),
    factors: tuple[int, ...] = (1, 3, 12),
    projection: bool = True,
    sentinels: int = 0,
) -> int:
    widths = _factors(factors, projection, sentinels)
    return added_by_clusters(sizes, cutoffs, widths, sentinels) + (len(widths) - 1) * sizes.d_model


def _factors(factors: tuple[int, ...], projection: bool, sentinels: int) -> tuple[int, ...]:
    return (*(factors if projection else (1,) * len(factors)), *((1,) if sentinels else ()))


@modification("1609.04309", adds=added, most={"cutoffs": 10_000_000, "factors": 65_536, "sentinels": 10_000_000})
def adaptive_softmax(
    spec: Spec,
    *,
    cutoffs: tuple[int, ...] = (),
    factors: tuple[int, ...] = (1, 3, 12),
    projection: bool = True,
    sentinels: int = 0,
) -> Spec:
    """Rare words are predicted in two steps, first their cluster, then the word; the input is adaptive, too.

        head      p_0(frequent words, tail 1, tail 2) = softmax(x [A_0 ; T]ᵀ)
        tail c    p_c(its words) = softmax((x B_cᵀ) A_cᵀ)
        p(v) = p_0(v) for a frequent word,  p_0(tail c) · p_c(v) for a word in tail c

    Tables A and matrices B are those of `adaptive_input`, with which words are also read; ids must be sorted by
    frequency. In training a tail is computed only where a target lies in it; label smoothing needs all words,
    so with smoothing everything is computed. `projection=false` gives all words d_model columns. With
    `sentinels=128`, as in the study, the last 128 ids are one more tail of full width. The paper has factors=1/4/16.
    Before training, a word in a tail has probability 1 / (entries of the head · words of the tail), not 1/V.
    Parameters: those of adaptive_input, and d_model for each tail.
    """
    check("adaptive_softmax", cutoffs, factors)
    if sentinels < 0:
        raise ValueError(f"adaptive_softmax: sentinels must be at least 0, got {sentinels}")
    clusters = _factors(factors, projection, sentinels)
    return replace(
        spec,
        embedding=partial(Clusters, cutoffs=cutoffs, factors=clusters, sentinels=sentinels),
        head=partial(AdaptiveHead, tails=len(clusters) - 1),
    )
