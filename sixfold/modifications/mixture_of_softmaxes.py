"""Mixture of softmaxes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

import torch
from torch import Tensor, nn

from sixfold.core.init import linear
from sixfold.core.loss import CHUNK, Scored, chunked_likelihood
from sixfold.core.place import Place
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import SoftmaxHead, TokenEmbedding


class MixtureHead(nn.Module):
    """p = Σ_j π_j softmax(c_j Eᵀ),  π = softmax(x P),  c_j = tanh(x C_j),  for J components."""

    def __init__(self, spec: Spec, place: Place, components: int):
        super().__init__()
        width = spec.sizes.d_model
        self.mixture = linear(width, components, bias=False)  # P
        self.contexts = linear(width, components * width, bias=False)  # C_1 … C_J side by side
        self.softmax = SoftmaxHead(spec, place)

    def log_probs(self, x: Tensor, table: TokenEmbedding) -> Tensor:
        """log p = logsumexp_j (log π_j + log softmax(c_j Eᵀ)), one component at a time to save memory."""
        mixture = self.mixture(x)
        mixture = mixture.log_softmax(-1, dtype=torch.promote_types(mixture.dtype, torch.float32))
        contexts = self.contexts(x).tanh().chunk(mixture.shape[-1], -1)
        parts = (
            weight[..., None] + self.softmax.log_probs(context, table)
            for weight, context in zip(mixture.unbind(-1), contexts, strict=True)
        )
        return reduce(torch.logaddexp, parts)

    def loss(
        self, x: Tensor, table: TokenEmbedding, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None
    ) -> Scored:
        parameters = [*table.parameters(), *self.parameters()]
        rows = max(1, CHUNK // self.mixture.out_features)  # with as many logits as CHUNK rows of one softmax
        log_probs = partial(self.log_probs, table=table)
        return chunked_likelihood(log_probs, x, targets, parameters, smoothing, rows, weights)


@modification(
    "1711.03953",
    adds=lambda sizes, components=15: components * (sizes.d_model + 1) * sizes.d_model,
    most={"components": 1_000},
)
def mixture_of_softmaxes(spec: Spec, *, components: int = 15) -> Spec:
    """The next word's probability is a mixture of several softmaxes.

        p(v | x) = Σ_j π_j · softmax(c_j Eᵀ)_v        π = softmax(x P),  c_j = tanh(x C_j),  j = 1 … components

    Probabilities are mixed, not logits: the log-probabilities of one softmax have rank d_model + 1 at most; those
    of a mixture have no such limit. All components share the plain table E; each takes a product with all words,
    so the output costs `components` times as much. P and C start as N(0, 1/D).
    Parameters: components · (d_model² + d_model).
    """
    if components < 1:
        raise ValueError(f"mixture_of_softmaxes: components must be at least 1, got {components}")
    return replace(spec, head=partial(MixtureHead, components=components))
