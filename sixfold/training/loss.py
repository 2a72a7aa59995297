"""Cross-entropy over a large vocabulary without ever holding the logits of a whole batch.

Letters: N tokens, D model width, V words, c tokens of one chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sixfold.call import PAD

CHUNK = 512  # tokens whose logits exist at one time: enough for a fast product, few enough for the cache


def chunked_cross_entropy(
    logits_of: Callable[[Tensor], Tensor],
    x: Tensor,
    targets: Tensor,
    parameters: Sequence[Tensor],
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Σ −log p(target) over the targets that are not PAD, and their number.

    The smoothed target has 1 − ε on the right word and ε/(V − 1) on every other but PAD.

    `logits_of` maps (c, D) to (c, V) by `parameters`, and must not need its own output in its
    backward. While a chunk's logits are there, their gradient is computed in their place and sent
    back at once to x and the parameters: nothing is computed twice, and N×V numbers never exist.
    """
    x_ND, targets_N = x.reshape(-1, x.shape[-1]), targets.reshape(-1)
    tokens = (targets_N != PAD).sum()
    if torch.compiler.is_compiling():
        return _plain(logits_of, x_ND, targets_N, smoothing), tokens
    if torch.is_grad_enabled() and any(t.requires_grad for t in (x, *parameters)):
        return _Chunked.apply(logits_of, targets_N, smoothing, x_ND, *parameters), tokens
    parts = [_plain(logits_of, xs, ts, smoothing) for xs, ts in _chunks(x_ND, targets_N)]
    return torch.stack(parts).sum(), tokens


def smoothed_cross_entropy(logits_NV: Tensor, targets_N: Tensor, smoothing: float, ignore: int | None = None) -> Tensor:
    """Σ −log p(target), in plain words: 1 − ε on the right one and ε/(V − 1) on the others.

    `ignore` is a target that is not scored, and a word that gets no share.
    """
    others = smoothing / max(logits_NV.shape[1] - 1, 1)
    log_p = logits_NV.log_softmax(-1)
    losses_N = -(1 - smoothing - others) * log_p.gather(1, targets_N[:, None])[:, 0] - others * log_p.sum(-1)
    if ignore is None:
        return losses_N.sum()
    return ((losses_N + others * log_p[:, ignore]) * (targets_N != ignore)).sum()


def _plain(logits_of: Callable[[Tensor], Tensor], x_ND: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    return smoothed_cross_entropy(_exact(logits_of(x_ND)), targets_N, smoothing, ignore=PAD)


def gradient_in_place(logits_NV: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    """The same, PAD ignored; afterwards `logits_NV` holds the gradient of the sum.

    With q the smoothed target and Q = Σ q:  loss = Q·log Z − Σ q·logit,  gradient = Q·p − q.
    """
    others = smoothing / (logits_NV.shape[1] - 1)
    mass = 1 - others if smoothing else 1.0  # PAD's share is given to nobody
    real_N1 = (targets_N != PAD).to(logits_NV.dtype)[:, None]
    right_N1 = logits_NV.gather(1, targets_N[:, None])
    rest_N1 = others * (logits_NV.sum(-1, keepdim=True) - logits_NV[:, PAD, None]) if smoothing else 0.0
    highest_N1 = logits_NV.amax(-1, keepdim=True)
    z_N1 = logits_NV.sub_(highest_N1).exp_().sum(-1, keepdim=True)
    loss_N1 = mass * (z_N1.log() + highest_N1) - (1 - smoothing - others) * right_N1 - rest_N1
    logits_NV.mul_(real_N1 * mass / z_N1)
    if smoothing:
        logits_NV.sub_(real_N1 * others)
        logits_NV[:, PAD, None] += real_N1 * others
    logits_NV.scatter_add_(1, targets_N[:, None], -(1 - smoothing - others) * real_N1)
    return (loss_N1 * real_N1).sum()


class _Chunked(torch.autograd.Function):
    """The sum over all chunks; its gradients are ready when the forward is done."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_of: Callable[[Tensor], Tensor],
        targets_N: Tensor,
        smoothing: float,
        x_ND: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        total = x_ND.new_zeros((), dtype=torch.promote_types(x_ND.dtype, torch.float32))
        grad_x = torch.empty_like(x_ND)
        wanted = [p for p in parameters if p.requires_grad]
        grads: list[Tensor] = []
        for xs, ts, grad_xs in _chunks(x_ND, targets_N, grad_x):
            xs = xs.detach().requires_grad_()
            with torch.enable_grad():
                logits = logits_of(xs)
            gradient = _exact(logits.detach())
            total += gradient_in_place(gradient, ts, smoothing)
            new_x, *new = torch.autograd.grad(logits, [xs, *wanted], gradient.to(logits.dtype))
            grad_xs.copy_(new_x)
            grads = [old.add_(g) for old, g in zip(grads, new, strict=True)] if grads else list(new)
        ctx.wanted = [p.requires_grad for p in parameters]
        ctx.save_for_backward(grad_x, *grads)
        return total

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, *grads = (g * scale for g in ctx.saved_tensors)
        each: Iterator[Tensor] = iter(grads)
        return None, None, None, grad_x, *(next(each) if wanted else None for wanted in ctx.wanted)


def _chunks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(t.split(CHUNK) for t in tensors), strict=True)


def _exact(logits: Tensor) -> Tensor:
    """At least float32: a sum over 30,000 words is no task for half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
