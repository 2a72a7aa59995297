"""A part by itself: built as in a small model, and called without one."""

import torch
from torch import nn

from sixfold.core.call import Call
from sixfold.core.inputs import begin
from sixfold.core.masks import LazySight, Sight
from sixfold.core.place import Place
from sixfold.models.build import MODELS
from sixfold.spec.assemble import assemble
from tests.support.small import seeded, small_sizes


def spec_of(*modifications, model="decoder_only", **sizes):
    return assemble(small_sizes(**sizes), modifications, MODELS[model]).spec


def attention_in(modification, causal, seed=0, **sizes):
    """The self-attention that a modification puts into the first of two layers, in float64."""
    spec = spec_of(modification, **sizes)
    torch.manual_seed(seed)
    place = Place("only", layers=2, causal=causal, layer=0, name="attention")
    return spec.attention(spec, place).to(torch.float64).eval()


def call_for(x, causal, **rest):
    """The call for x (B, L, D) without padding."""
    return begin(torch.ones(x.shape[:2], dtype=torch.long), None, causal=causal, **rest)


def padded_call(real, causal):
    """The call for tokens of which some are padding (B, L)."""
    return begin(torch.ones_like(real, dtype=torch.long), real, causal=causal)


def call_at(positions, keys=None):
    """A call for queries at these positions (B, L), with keys at these (B, M)."""
    positions = torch.as_tensor(positions)
    keys = positions if keys is None else torch.as_tensor(keys)
    return Call(positions=positions, key_positions=keys, lazy_sight=LazySight.of(Sight()), causal=False)


def randomly(module, seed=0):
    for p in module.parameters():
        nn.init.normal_(p, generator=seeded(seed), std=0.5)
    return module
