"""Adaptive input embeddings: rare words have narrow vectors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.factorized import Factors, vocabularies
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec


def edges_of(words: int, cutoffs: tuple[int, ...], sentinels: int = 0) -> list[int]:
    """The first id of each cluster, and the end of the last: 0, …, words. The default is that of Narang et al."""
    first = max(1, round(words * 2500 / 32128))
    inner = cutoffs or (first, max(first + 1, round(words * 8500 / 32128)))
    edges = [0, *inner, *([words - sentinels] if sentinels else []), words]
    if any(end <= start for start, end in pairwise(edges)):
        raise ValueError(f"cutoffs must divide {words} words into clusters that are not empty, got {edges[1:-1]}")
    return edges


def columns(width: int, factor: int) -> int:
    """width / factor, but at least 8 (or width): fewer can't distinguish a cluster's words."""
    return max(width // factor, min(width, 8))


class Clusters(nn.Module):
    """Ids from start_c to end_c − 1 have a table A_c (words, w_c) and a matrix B_c (w_c, D); none if w_c = D.

    In: √D · A_c[id − start_c] B_c. Out: the logits (x B_cᵀ) A_cᵀ of all clusters side by side.
    """

    def __init__(
        self, spec: Spec, place: Place, cutoffs: tuple[int, ...], factors: tuple[int, ...], sentinels: int = 0
    ):
        super().__init__()
        width = spec.sizes.d_model
        self.edges = edges_of(spec.sizes.vocabulary(place.stack), cutoffs, sentinels)
        self.clusters = nn.ModuleList()
        for (start, end), factor in zip(pairwise(self.edges), factors, strict=True):
            inner = columns(width, factor)
            self.clusters.append(Factors(end - start, inner, width, project=inner != width))

    def forward(self, ids: Tensor) -> Tensor:
        vectors = []  # each cluster embeds all ids, and zeroes those outside: shapes do not depend on ids
        for (start, end), cluster in zip(pairwise(self.edges), self.clusters, strict=True):
            inside = (ids >= start) & (ids < end)
            vectors.append(cluster((ids - start).clamp(0, end - start - 1)) * inside[..., None])
        return sum(vectors[1:], vectors[0])

    def logits(self, x: Tensor) -> Tensor:
        return torch.cat([cluster.logits(x) for cluster in self.clusters], -1)  # type: ignore[operator]


def check(name: str, cutoffs: tuple[int, ...], factors: tuple[int, ...]) -> None:
    clusters = len(cutoffs or (0, 0)) + 1
    if len(factors) != clusters or min(factors) < 1:
        raise ValueError(f"{name}: {clusters} clusters need as many factors of at least 1, got {factors}")


def added(
    sizes: Sizes, cutoffs: tuple[int, ...] = (), factors: tuple[int, ...] = (1, 3, 12), sentinels: int = 0
) -> int:
    more = 0
    for words in vocabularies(sizes):
        edges = edges_of(words, cutoffs, sentinels)
        more -= words * sizes.d_model
        for start, end, factor in zip(edges, edges[1:], factors, strict=False):
            inner = columns(sizes.d_model, factor)
            more += (end - start) * inner + (0 if inner == sizes.d_model else inner * sizes.d_model)
    return more


@modification("1809.10853", adds=added, most={"cutoffs": 10_000_000, "factors": 65_536})
def adaptive_input(spec: Spec, *, cutoffs: tuple[int, ...] = (), factors: tuple[int, ...] = (1, 3, 12)) -> Spec:
    """Frequent words have wide vectors, rare ones narrow vectors and a matrix up to d_model.

        ids     0 ───── 2500 ──────── 8500 ───────────────────── 32128        for d_model 768
        width      768         256                 64
        matrix    none      256 × 768           64 × 768

        x_t = √D · A_c[id − start_c] B_c        logits = [x A_0ᵀ ; (x B_1ᵀ) A_1ᵀ ; (x B_2ᵀ) A_2ᵀ]

    Ids must be sorted by frequency. The softmax is the ordinary one, over all logits. `cutoffs` are the first ids
    of the second cluster and of those after it. By default they divide the vocabulary in the proportions above,
    those of Narang et al. (2021). Cluster c has d_model / factors[c] columns, but at least 8. The paper has
    factors=1/4/16 and a matrix for the first cluster too.
    Parameters: (words + d_model) · width for each cluster, words · d_model if its width is d_model.
    """
    check("adaptive_input", cutoffs, factors)
    return replace(spec, embedding=partial(Clusters, cutoffs=cutoffs, factors=factors))
