"""Forms: records of what a part computes, for other implementations of it (the CPU step, exports).

A part offers its form in its class line, if its attributes have the names of the form's fields, or by a method:

    class FeedForward(ModelPart, form=forms.FeedForwardForm): …

    class Gated(ModelPart):
        def form(self):
            return FeedForwardForm(self.inner, self.outer, self.gate, gated=True)

A form promises that the part computes its formula in evaluation mode. It belongs to the class that states it: a
subclass, which may compute something else, has no form unless it states one. Call `form_of(part)`, never `part.form()`.

Letters: O outputs, I inputs, V words, D width, H heads, K head width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, Self

from torch import Tensor, nn

Child = Any  # a module with a form of its own, or that form once `form_of` was called


@dataclass(frozen=True, eq=False)
class Form:
    """The base of all forms."""

    @classmethod
    def of(cls, part: Any) -> Self:
        """Fill each field without a default from the part's attribute of the same name."""
        return cls(**{field.name: getattr(part, field.name) for field in fields(cls) if field.default is MISSING})


# Maps and norms ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LinearForm(Form):
    """x Wᵀ + b"""

    weight: Tensor  # W (O, I)
    bias: Tensor | None  # b (O,)


@dataclass(frozen=True, eq=False)
class Int8LinearForm(Form):
    """x Wᵀ + b with W in int8."""

    matrix: Any  # a sixfold.int8.Matrix
    bias: Tensor | None


@dataclass(frozen=True, eq=False)
class NormForm(Form):
    """g ⊙ (x − mean) / √(variance + ε) + b if centred, else g ⊙ x / √(mean of x_i², i ≤ channels, + ε)"""

    weight: Tensor  # g (D,)
    bias: Tensor | None  # b (D,)
    epsilon: float
    centred: bool
    channels: int


@dataclass(frozen=True, eq=False)
class IdentityForm(Form):
    """x"""


# Parts of a layer, and stacks of layers -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ResidualForm(Form):
    """A residual connection with a norm; `gain` multiplies the sub-layer's output unless it is None."""

    norm: Child
    gain: Tensor | None = None  # (1,)


@dataclass(frozen=True, eq=False)
class PreNormForm(ResidualForm):
    """x + gain · Sublayer(Norm(x))"""


@dataclass(frozen=True, eq=False)
class PostNormForm(ResidualForm):
    """Norm(x + gain · Sublayer(x))"""


@dataclass(frozen=True, eq=False)
class AttentionForm(Form):
    """softmax(Q Kᵀ / √K) V of each head, then the output map; the position rotates, biases, adds to values."""

    qkv: Child  # W_Q, W_K, W_V side by side
    output: Child
    heads: int
    position: Child  # a sixfold.transformer.Position


@dataclass(frozen=True, eq=False)
class CrossAttentionForm(Form):
    """`AttentionForm` with keys and values from the memory, without positions."""

    q: Child
    kv: Child  # W_K, W_V side by side
    output: Child
    heads: int


@dataclass(frozen=True, eq=False)
class FeedForwardForm(Form):
    """outer(φ(inner(x))); gated: outer(φ(a) ⊙ b), a and b the halves of inner(x)"""

    inner: Child
    outer: Child
    activation: Callable[[Tensor], Tensor]  # φ
    gated: bool = False


@dataclass(frozen=True, eq=False)
class EncoderLayerForm(Form):
    """Attention, then feed-forward, each in its residual connection."""

    attention: Child
    around_attention: Child
    feed_forward: Child
    around_feed_forward: Child

    @property
    def residuals(self) -> list[Child]:
        return [self.around_attention, self.around_feed_forward]


@dataclass(frozen=True, eq=False)
class DecoderLayerForm(EncoderLayerForm):
    """Attention, cross-attention, feed-forward."""

    cross: Child
    around_cross: Child

    @property
    def residuals(self) -> list[Child]:
        return [self.around_attention, self.around_cross, self.around_feed_forward]


@dataclass(frozen=True, eq=False)
class StackForm(Form):
    """Layer after layer, then `final`. A layer that is applied N times is listed N times."""

    layers: Sequence[Child]
    final: Child


@dataclass(frozen=True, eq=False)
class LastStateForm(Form):
    """Every decoder layer reads the encoder's last state."""


# Words ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class EmbeddingForm(Form):
    """In: √D · E[id]. Out: x Eᵀ. E is the weight, or weight · projectionᵀ."""

    weight: Tensor  # (V, D), or (V, I)
    projection: Tensor | None = None  # (D, I)


@dataclass(frozen=True, eq=False)
class Int8EmbeddingForm(Form):
    """`EmbeddingForm` with an int8 matrix for the logits."""

    weight: Tensor
    matrix: Any  # a sixfold.int8.Matrix


@dataclass(frozen=True, eq=False)
class InputForm(Form):
    """position(√D · E[id])"""

    position: Child  # a sixfold.transformer.Position


@dataclass(frozen=True, eq=False)
class SoftmaxForm(Form):
    """p(word | x) = softmax(x Eᵀ)"""


# Positions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PositionForm(Form):
    """The base of the forms of positions."""


@dataclass(frozen=True, eq=False)
class NoPositionForm(PositionForm):
    """No positions."""


@dataclass(frozen=True, eq=False)
class SinusoidForm(PositionForm):
    """Sinusoids, added to the embedding."""


@dataclass(frozen=True, eq=False)
class LearnedPositionsForm(PositionForm):
    """Rows of a table, added to the embedding."""

    table: Tensor | None  # (positions, D); None in a layer


@dataclass(frozen=True, eq=False)
class RotaryForm(PositionForm):
    """Pairs of neighbouring numbers of queries and keys are turned by t·base^(−2i/K)."""

    base: float


@dataclass(frozen=True, eq=False)
class ShawForm(PositionForm):
    """Vectors for distances −r … r, clipped, on keys and values."""

    keys: Tensor | None  # (H or 1, 2r + 1, K); None at the stack
    to_values: Tensor | None


@dataclass(frozen=True, eq=False)
class T5BiasForm(PositionForm):
    """A number for each head and bucket of distances, added to the scores."""

    table: Tensor | None  # (buckets, H); None where another part has it: the stack, or each layer
    buckets: int
    max_distance: int
    causal: bool
    per_layer: bool


# Asking -----------------------------------------------------------------------------------------------------


def torch_form(part: nn.Module) -> Form | None:
    """The form of torch's own modules, of exactly these types."""
    if type(part) is nn.Linear:
        return LinearForm(part.weight, part.bias)
    if type(part) is nn.LayerNorm and part.elementwise_affine and len(part.normalized_shape) == 1:
        return NormForm(part.weight, part.bias, part.eps, centred=True, channels=len(part.weight))
    return IdentityForm() if type(part) is nn.Identity else None


def altered(part: nn.Module) -> bool:
    """Whether this one module has hooks or a forward of its own, so that its class's form does not hold."""
    return bool(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part))
