"""Universal Transformer: one layer, applied repeatedly; with halting, each position decides when to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from sixfold.core.call import Call
from sixfold.core.parts import ModelPart
from sixfold.core.place import Place, Sizes
from sixfold.modifications._shared.adaptive_computation import Halting, Pondered
from sixfold.modifications.block_sharing import one_layer
from sixfold.spec.registry import modification
from sixfold.spec.spec import Spec
from sixfold.transformer import LastState, Sinusoid, run

Clock = Callable[[Spec, Place], nn.Module]  # the part is called with (x, step, call) before each step


class UniversalStack(ModelPart):
    """h_t = Layer(clock_t(h_{t−1})), one Layer for all steps t; with halting, the output is Σ_t weight_t h_t."""

    def __init__(self, spec: Spec, place: Place, steps: int, clock: Clock, halting: bool = False):
        super().__init__()
        self.steps = steps
        if place.stack == "encoder" and self.steps != place.layers and spec.bridge is not LastState:
            raise ValueError(
                f"universal: {self.steps} steps give {self.steps} states, but the bridge needs one for each of "
                f"{place.layers} encoder layers; give steps={place.layers}, or leave out the modification of 'bridge'"
            )
        place = replace(place, layers=self.steps)  # so that each step has a name
        self.layer = one_layer(spec, place, "universal")
        self.clock = clock(spec, place)
        self.halting = Halting(spec, self.steps) if halting else None
        self.final = spec.final(spec, place.named("final"))

    def forward(self, x: Tensor, call: Call) -> tuple[list[Tensor], Call]:
        states, inside, pondered = [x], with_memory_for(call, self.steps), Pondered.nothing(x)
        for step in range(self.steps):
            timed = self.clock(states[-1], step, call)
            new = run(self.layer, timed, replace(inside, depth=step))
            if self.halting is not None:
                took, pondered = self.halting(timed, new, pondered, last=step == self.steps - 1)
                new = torch.where(took, new, states[-1])  # a halted position keeps its state, which others still see
            states.append(new)
        if self.halting is not None and call.losses is not None:
            call.losses.append(pondered.loss(call))
        return [*states[:-1], self.final(states[-1] if self.halting is None else pondered.mean)], call

    def units(self) -> tuple[nn.Module]:
        return (self.layer,)


def universal_stack(spec: Spec, place: Place, steps: int | None, halting: bool) -> UniversalStack:
    """A stack of `steps` steps; by default, one for each layer of the sizes."""
    return UniversalStack(spec, place, steps or place.layers, Waves, halting)


def check_steps(name: str, steps: int | None) -> None:
    if steps is not None and steps < 1:
        raise ValueError(f"{name}: steps must be at least 1, got {steps}")


def with_memory_for(call: Call, steps: int) -> Call:
    """A memory for each step: steps beyond the number of layers read the last layer's."""
    if call.memory is None:
        return call
    states = call.memory.states
    each = tuple(states[min(step, len(states) - 1)] for step in range(steps))
    return replace(call, memory=call.memory._replace(states=each))


class Waves(nn.Module):
    """h + P + T_t: positions, and sinusoids of the step t = 1, 2, …, added at every step."""

    def __init__(self, spec: Spec, place: Place):
        super().__init__()
        self.wave = Sinusoid(spec, place)

    def forward(self, x: Tensor, step: int, call: Call) -> Tensor:
        if step and call.positioner is not None:  # at the first step the embedding already contains P
            x = call.positioner.embed(x, call)
        return self.wave.embed(x, replace(call, positions=torch.full_like(call.positions[:1, :1], step + 1)))


def added(sizes: Sizes, steps: int | None = None, halting: bool = False) -> int:
    d, attention = sizes.d_model, 4 * sizes.d_model * sizes.heads * sizes.d_head
    feed_forward, norm = 2 * d * sizes.d_ff + sizes.d_ff + d, 2 * d
    encoder = (sizes.encoder_layers - 1) * (attention + feed_forward + 2 * norm)
    decoder = (sizes.decoder_layers - 1) * (2 * attention + feed_forward + 3 * norm)
    return -encoder - decoder + 2 * (d + 1) * halting


@modification("1807.03819", adds=added, most={"steps": 1_000})
def universal(spec: Spec, *, steps: int | None = None, halting: bool = False) -> Spec:
    """One layer for each stack, applied step by step; with `halting` each position decides when to stop.

        h_t = Layer(h_{t−1} + P + T_t)        t = 1 … steps (default: the number of layers)

    P are the positions and T_t sinusoids of the step, added at every step; with relative positions P is
    absent. `halting` is adaptive computation time: each position sums p_t = σ(w·h + b) until the sum exceeds
    0.99 or the steps end. Its state is then Σ_t weight_t h_t, with weight_t = p_t, except that the last weight
    completes the sum to 1. A position that has halted keeps its state, and others still see it:

        step       1     2     3     4
        "the"     0.6  +0.4    ·     ·       the state of step 2 is kept;  N = 2, R = 0.4
        "bank"    0.3   0.3   0.3  +0.1                                    N = 4, R = 0.1

    The mean of 0.01 · (N + R) over positions is added to the loss. All steps are computed for all positions, so
    halting saves no time, and a cache can hold every step's keys. The paper's layers are post-norm: add
    `post_norm`.
    Parameters: one layer for each stack; `halting` adds d_model + 1 to each.
    """
    check_steps("universal", steps)
    stack = partial(universal_stack, steps=steps, halting=halting)
    return replace(spec, stack=stack, decoder_stack=stack)
