"""Models so small that hundreds are tested in seconds, in float64 so that equal means equal to 1e-9."""

import itertools
import random
from dataclasses import asdict
from functools import cache

import torch

import sixfold
from sixfold.core.parts import declared
from sixfold.models.build import MODELS
from sixfold.spec.assemble import assemble, slots_filled
from sixfold.spec.registry import all_modifications
from sixfold.verify.contract.subject import SMALL, VOCAB, moved, pad, random_ids, random_rows, seeded

__all__ = ["VOCAB", "pad", "random_ids", "random_rows", "seeded"]  # what the contract shares with all tests

# Distances and buckets so few that six tokens get beyond them, each beside the default.
POSITIONS = {
    "sinusoid": (),
    "learned": ("learned_positions",),
    "none": ("no_positions",),
    "shaw": ("shaw",),
    "shaw per head": ("shaw:distance=2,per_head=true",),
    "t5": ("t5_bias",),
    "t5 per layer": ("t5_bias:per_layer=true,buckets=8,max_distance=6",),
    "rotary": ("rotary",),
}
NORMS = {"pre-norm": (), "post-norm": ("post_norm",)}
# What does not fit two layers of width 16 as it is by default.
OPTIONS = {
    "funnel": "blocks=2",
    "funnel_study": "blocks=2",
    "mixture_of_experts": "experts=4,every=2",
    "moe_lstm": "experts=4,k=2",
    "product_keys": "keys=8,nearest=4,heads=2,d_key=8",
    "switch": "experts=4,every=2",
    "universal_study": "steps=2",
}
# Every registered modification, as it is asked for in small models.
MODIFICATIONS = [f"{name}:{OPTIONS[name]}" if name in OPTIONS else name for name in all_modifications()]
RELATIVE = ("shaw", "shaw per head", "t5", "t5 per layer", "rotary")


def small_sizes(**changes):
    return sixfold.Sizes(**{**asdict(SMALL), "d_head": 0, **changes})


def small_model(kind="encoder_decoder", modifications=(), seed=0, dtype=torch.float64, **sizes):
    return sixfold.build(small_sizes(**sizes), modifications, kind, seed=seed).to(dtype).eval()


def moved_model(*arguments, **keywords):
    """The same model with slightly changed parameters: an initial gain of 0 would hide the effect of a part."""
    return moved(small_model(*arguments, **keywords))


def assert_close(left, right, within=1e-9):
    torch.testing.assert_close(left, right, rtol=0, atol=within)


@cache
def refusal(kind, *wishes):
    """Why a model of this kind can't be built with these modifications; None if it can."""
    try:
        assemble(small_sizes(), wishes, MODELS[kind])
    except ValueError as error:
        return str(error)
    return None


def applies(kind, *wishes):
    """Whether it can. Each modification alone must be possible in an encoder-decoder."""
    return (kind == "encoder_decoder" and len(wishes) == 1) or refusal(kind, *wishes) is None


@cache
def not_exported(*wishes):
    """Why torch.export can't trace an encoder-decoder with these modifications, as its parts declare; empty if it can.

    What can't even be built has no parts: then some other test fails.
    """
    if not applies("encoder_decoder", *wishes):
        return set()
    model = sixfold.build(small_sizes(), wishes, device="meta")
    return {why for part in model.modules() if (why := declared(part).not_exported)}


@cache
def combinations(number=30):
    """Seeded draws of three that go together."""
    triples = list(itertools.combinations(MODIFICATIONS, 3))
    random.Random(1).shuffle(triples)
    possible = (triple for triple in triples if apart(triple) and applies("encoder_decoder", *triple))
    return list(itertools.islice(possible, number))


def apart(wishes):
    """Whether they fill different slots: beside lstm, which leaves out positions, no_positions changes nothing."""
    slots = [slot for wish in wishes for slot in slots_filled(small_sizes(), [wish])]
    return len(slots) == len({*slots})


def packed(wishes, most):
    """All of these, in as few models as it takes when each has at most so many of them."""
    groups = []
    for wish in wishes:
        fitting = (each for each in groups if len(each) < most and applies("encoder_decoder", *each, wish))
        group = next(fitting, None)
        if group is None:
            groups.append([wish])
        else:
            group.append(wish)
    return [tuple(each) for each in groups]
