"""Post-norm, the residual connection of 2017."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.dropout import Dropout
from sixfold.core.place import Place
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Residual


class PostNorm(Residual, form=forms.PostNormForm):
    """x ← Norm(x + Drop(Sublayer(x)))"""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.norm = spec.norm(spec, place)
        self.dropout = Dropout(spec.sizes.dropout)

    def after(self, x: Tensor, y: Tensor) -> Tensor:
        return self.norm(x + self.dropout(y))


def no_norm(spec: Spec, place: Place) -> nn.Module:
    return nn.Identity()


@modification("1706.03762", adds=lambda sizes: -4 * sizes.d_model)
def post_norm(spec: Spec) -> Spec:
    """The norm comes after the residual connection, as in the paper of 2017.

        pre-norm    x ─┬─ norm ─ sublayer ─ drop ─ + ──────── x        … and a norm at the end of the stack
                       └───────────────────────────┘
        post-norm   x ─┬─ sublayer ─ drop ─ + ─ norm ──────── x        … and nothing at the end
                       └────────────────────┘

    Gradients reach the lower layers through every norm, so deep stacks need a warm-up to train.
    Parameters: 4·d_model fewer than pre-norm in an encoder-decoder (no final norms).
    """
    return replace(spec, residual=PostNorm, final=no_norm)
