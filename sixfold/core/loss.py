"""Cross-entropy over a large vocabulary without ever holding the logits of a whole batch.

Letters: N tokens, D model width, V words, c tokens of one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sixfold.core.ids import PAD

CHUNK = 512  # tokens whose logits exist at one time: enough for a fast product, few enough for the cache


def perplexity_of(nats: float) -> float:
    """e^loss for a loss per token in nats, capped at e^700, which a float can hold."""
    return math.exp(min(nats, 700.0))


class Scored(NamedTuple):
    """The loss of many targets, each with its weight."""

    sum: Tensor  # the loss to minimise
    tokens: Tensor  # the number of targets whose weight is not 0
    plain: Tensor  # Σ −log p(target) without smoothing and without gradient, for reports


# One chunk of the loss: states (c, D), targets (c,), weights (c,) → the sum, the plain sum, a tensor of the graph, and
# the gradient of the sum with respect to that tensor.
ChunkLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
LossOf = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]  # the same → the sum and the plain sum


def chunked_cross_entropy(
    logits_of: Callable[[Tensor], Tensor],
    x: Tensor,
    targets: Tensor,
    parameters: Sequence[Tensor],
    smoothing: float = 0.0,
    weights: Tensor | None = None,
) -> Scored:
    """Σ −weight · log p(target), for a head that has logits. Without weights, every target but PAD has weight 1.

    The smoothed target has 1 − ε on the right word and ε/(V − 1) on every other but PAD.

    `logits_of` maps (c, D) to (c, V) by `parameters`. Its backward must not need its output, which is overwritten by
    the gradient.
    """

    def piece(xs: Tensor, ts: Tensor, ws: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        logits = logits_of(xs)
        gradient = _exact(logits.detach())
        return *gradient_in_place(gradient, ts, smoothing, ws), logits, gradient.to(logits.dtype)

    if torch.compiler.is_compiling():
        log_p = _exact(logits_of(x.flatten(0, -2))).log_softmax(-1)
        return _score_whole(lambda _, ts, ws: _both(log_p, ts, smoothing, ws), x, targets, weights)
    return chunked(piece, x, targets, parameters, weights=weights)


def chunked_likelihood(
    log_probs_of: Callable[[Tensor], Tensor],
    x: Tensor,
    targets: Tensor,
    parameters: Sequence[Tensor],
    smoothing: float = 0.0,
    rows: int | None = None,
    weights: Tensor | None = None,
) -> Scored:
    """`chunked_cross_entropy` for a head that has log-probabilities, but no logits."""

    def loss_of(xs: Tensor, ts: Tensor, ws: Tensor) -> tuple[Tensor, Tensor]:
        return _both(log_probs_of(xs), ts, smoothing, ws)

    return chunked_loss(loss_of, x, targets, parameters, rows, weights)


def chunked_loss(
    loss_of: LossOf,
    x: Tensor,
    targets: Tensor,
    parameters: Sequence[Tensor],
    rows: int | None = None,
    weights: Tensor | None = None,
) -> Scored:
    """`chunked_cross_entropy` for a head that computes the sum and the plain sum itself."""

    def piece(xs: Tensor, ts: Tensor, ws: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        loss, plain = loss_of(xs, ts, ws)
        return loss.detach(), plain.detach(), loss, torch.ones_like(loss)

    if torch.compiler.is_compiling():
        return _score_whole(loss_of, x, targets, weights)
    return chunked(piece, x, targets, parameters, rows, weights)


def chunked(
    piece: ChunkLoss,
    x: Tensor,
    targets: Tensor,
    parameters: Sequence[Tensor],
    rows: int | None = None,
    weights: Tensor | None = None,
) -> Scored:
    """The sums over pieces of `rows` (default: CHUNK) tokens.

    Each piece is differentiated right after its forward, while its intermediate results exist: nothing is computed
    twice, and the N×V logits never exist at once.
    """
    x_ND, targets_N = x.flatten(0, -2), targets.flatten()
    weights_N, rows = weights_of(targets, weights), rows or CHUNK
    tokens = (weights_N != 0).sum()
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)):
        total, plain = _Chunked.apply(piece, rows, targets_N, weights_N, x_ND, *parameters)
        return Scored(total, tokens, plain)
    sums = [torch.stack(piece(*parts)[:2]) for parts in _chunks(rows, x_ND, targets_N, weights_N)]
    total, plain = torch.stack(sums).sum(0)
    return Scored(total, tokens, plain)


def weights_of(targets: Tensor, weights: Tensor | None) -> Tensor:
    """The weight of each target (N,). By default 1, and 0 for PAD."""
    return targets.flatten() != PAD if weights is None else weights.flatten()


def _score_whole(loss_of: LossOf, x: Tensor, targets: Tensor, weights: Tensor | None) -> Scored:
    """The loss without chunks. Under torch.compile, the compiler decides which intermediate results to keep."""
    weights_N = weights_of(targets, weights)
    total, plain = loss_of(x.flatten(0, -2), targets.flatten(), weights_N)
    return Scored(total, (weights_N != 0).sum(), plain.detach())


def _both(log_p: Tensor, targets_N: Tensor, smoothing: float, weights_N: Tensor) -> tuple[Tensor, Tensor]:
    """The sum with smoothing, and without."""
    plain = smoothed_loss(log_p, targets_N, 0.0, weights_N, never=PAD)
    return (smoothed_loss(log_p, targets_N, smoothing, weights_N, never=PAD) if smoothing else plain), plain


def smoothed_loss(
    log_p: Tensor, targets_N: Tensor, smoothing: float, weights_N: Tensor | None = None, never: int | None = None
) -> Tensor:
    """Σ −weight · log p(target), for log-probabilities (N, V): 1 − ε on the right word, ε/(V − 1) on the others.

    `never` is a word that cannot be a target, and gets no share of the smoothing.
    """
    others = smoothing / max(log_p.shape[1] - 1, 1)
    losses_N = -(1 - smoothing - others) * log_p.gather(1, targets_N[:, None])[:, 0]
    if smoothing:
        shared = log_p.sum(-1) if never is None else log_p.sum(-1) - log_p[:, never]
        losses_N = losses_N - others * shared
    return losses_N.sum() if weights_N is None else (losses_N * weights_N).sum()


def divergence(log_p: Tensor, log_q: Tensor, weights_N: Tensor) -> Tensor:
    """Σ weight · (KL(p‖q) + KL(q‖p)) / 2, for log-probabilities (N, V)."""
    both_N = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(-1)
    return (both_N * weights_N).sum() / 2


def gradient_in_place(
    logits_NV: Tensor, targets_N: Tensor, smoothing: float, weights_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The loss with smoothing, and without; `logits_NV` is overwritten by the gradient of the first.

    With q the smoothed target and Q = Σ q:  loss = Q·log Z − Σ q·logit,  gradient = Q·p − q, each times its weight.
    """
    others = smoothing / (logits_NV.shape[1] - 1)
    mass = 1 - others if smoothing else 1.0  # PAD's share of the smoothing is dropped
    weight_N1 = weights_of(targets_N, weights_N).to(logits_NV.dtype)[:, None]
    right_N1 = logits_NV.gather(1, targets_N[:, None])
    rest_N1 = others * (logits_NV.sum(-1, keepdim=True) - logits_NV[:, PAD, None]) if smoothing else 0.0
    highest_N1 = logits_NV.amax(-1, keepdim=True)
    z_N1 = logits_NV.sub_(highest_N1).exp_().sum(-1, keepdim=True)
    log_z_N1 = z_N1.log() + highest_N1
    loss_N1 = mass * log_z_N1 - (1 - smoothing - others) * right_N1 - rest_N1
    logits_NV.mul_(weight_N1 * mass / z_N1)
    if smoothing:
        logits_NV.sub_(weight_N1 * others)
        logits_NV[:, PAD, None] += weight_N1 * others
    logits_NV.scatter_add_(1, targets_N[:, None], -(1 - smoothing - others) * weight_N1)
    return (loss_N1 * weight_N1).sum(), ((log_z_N1 - right_N1) * weight_N1).sum()


class _Chunked(torch.autograd.Function):
    """The sums of all pieces. The forward computes the gradient of the first sum, too."""

    @staticmethod
    def forward(
        ctx: Any, piece: ChunkLoss, rows: int, targets_N: Tensor, weights_N: Tensor, x_ND: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        total, total_plain = x_ND.new_zeros(2, dtype=torch.promote_types(x_ND.dtype, torch.float32)).unbind()
        grad_x = torch.empty_like(x_ND)
        wanted = [p for p in parameters if p.requires_grad]
        grads: list[Tensor] = []
        for number, (xs, ts, ws, grad_xs) in enumerate(_chunks(rows, x_ND, targets_N, weights_N, grad_x)):
            xs = xs.detach().requires_grad_()
            with torch.enable_grad():
                loss, plain, output, gradient = piece(xs, ts, ws)
            total, total_plain = total + loss, total_plain + plain
            new_x, *new = torch.autograd.grad(output, [xs, *wanted], gradient, materialize_grads=True)
            grad_xs.copy_(new_x)
            add = Tensor.add_ if number > 1 else Tensor.add  # the first gradients may share memory with each other
            grads = [add(old, g) for old, g in zip(grads, new, strict=True)] if number else list(new)
        ctx.wanted = [p.requires_grad for p in parameters]
        ctx.save_for_backward(grad_x, *grads)
        ctx.mark_non_differentiable(total_plain)
        return total, total_plain

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True, but the gradients have no graph
            raise RuntimeError("this loss can be differentiated once, not twice")
        grad_x, *grads = (g * scale for g in ctx.saved_tensors)
        each: Iterator[Tensor] = iter(grads)
        return None, None, None, None, grad_x, *(next(each) if wanted else None for wanted in ctx.wanted)


def _chunks(rows: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(t.split(rows) for t in tensors), strict=True)


def _exact(logits: Tensor) -> Tensor:
    """At least float32: half precision is too coarse for a sum over 30,000 words."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def scored_only(x: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """States (B, L, D), targets (B, L) and weights, without the positions of weight 0, which never reach the head.

    If all have weight 0, all stay: the head must run, so that its parameters have a gradient on every process.
    """
    if weights is None or x.is_meta or torch.compiler.is_compiling():
        return x, targets, weights
    (index_K,) = weights.flatten().nonzero(as_tuple=True)
    if len(index_K) in (0, weights.numel()):
        return x, targets, weights
    return _Take.apply(x.flatten(0, -2), index_K), targets.flatten()[index_K], weights.flatten()[index_K]


class _Take(torch.autograd.Function):
    """x[index] for distinct indices. Its backward is a copy: repeatable and parallel, unlike that of x[index]."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, index_K: Tensor) -> Tensor:
        ctx.save_for_backward(index_K)
        ctx.rows = x_ND.shape[0]
        return x_ND.index_select(0, index_K)

    @staticmethod
    def backward(ctx: Any, gradient_KD: Tensor) -> tuple[Tensor, None]:
        (index_K,) = ctx.saved_tensors
        return gradient_KD.new_zeros(ctx.rows, gradient_KD.shape[1]).index_copy_(0, index_K, gradient_KD), None
