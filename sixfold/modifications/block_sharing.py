"""Block sharing: one layer, applied repeatedly."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import Stack, run


class SharedStack(ModelPart):
    """x ← Layer(x), `place.layers` times. → the states before and after each application; and the call."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.layer, self.times = one_layer(spec, place, "block_sharing"), place.layers
        self.final = spec.final(spec, place.named("final"))

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states = [x]
        for depth in range(self.times):
            states.append(run(self.layer, states[-1], replace(call, depth=depth)))
        return [*states[:-1], self.final(states[-1])], call

    def units(self) -> tuple[nn.Module]:
        return (self.layer,)

    def form(self) -> forms.StackForm:
        return forms.StackForm([self.layer] * self.times, self.final)


def one_layer(spec: Spec, place: Place, who: str) -> nn.Module:
    """The shared layer. All layers must have the same parameters; otherwise some would be lost silently."""
    layer = spec.decoder_layer if place.stack == "decoder" else spec.encoder_layer
    with torch.device("meta"):
        first, *others = (
            {(n, p.shape) for n, p in layer(spec, place.at(i)).named_parameters()} for i in range(place.layers)
        )
    for i, other in enumerate(others, 1):
        if first != other:
            part = min(first ^ other)[0].partition(".")[0]
            raise ValueError(
                f"{who} applies one layer repeatedly, but the {part} of layer {i} differs from that of layer 0; choose "
                f"options that make all layers alike, such as every=1, or leave out the modification of {part!r}"
            )
    return layer(spec, place.at(0))


def stack(spec: Spec, place: Place, stacks: str) -> nn.Module:
    """A shared stack if `stacks` names it, else a plain one. The only stack of a model counts as decoder if causal."""
    role = place.stack if place.stack != "only" else "decoder" if place.causal else "encoder"
    if stacks in ("both", role):
        return SharedStack(spec, place)
    if place.stack == "only":
        raise ValueError(f"block_sharing: stacks={stacks}, but the only stack of this model is its {role}")
    return Stack(spec, place)


def added(sizes: Sizes, stacks: str = "both") -> int:
    attention = 4 * sizes.d_model * sizes.heads * sizes.d_head
    feed_forward = 2 * sizes.d_model * sizes.d_ff + sizes.d_ff + sizes.d_model
    norm = 2 * sizes.d_model
    encoder = (sizes.encoder_layers - 1) * (attention + feed_forward + 2 * norm)
    decoder = (sizes.decoder_layers - 1) * (2 * attention + feed_forward + 3 * norm)
    return -(encoder if stacks != "decoder" else 0) - (decoder if stacks != "encoder" else 0)


@modification("1909.11942", adds=added)
def block_sharing(spec: Spec, *, stacks: Literal["both", "encoder", "decoder"] = "both") -> Spec:
    """All layers of a stack share their weights: one layer is applied repeatedly.

        x ← Layer(x), N times        (encoder and decoder each have their own layer)

    The norms of a layer and the tables of its position part are shared, too. Layers that differ can't be shared,
    for instance if only some have experts. The weights take less memory; computing takes as long as before.
    `stacks` selects the stacks that share.
    Parameters: in each stack that shares, those of one layer instead of all.
    """
    share = partial(stack, stacks=stacks)
    if stacks == "encoder":
        return replace(spec, stack=share)
    return replace(spec, stack=share, decoder_stack=share)  # the stack of a language model lies in `stack`
