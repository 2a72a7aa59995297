"""Every check of the contract finds the mistake that it is there for."""

import random
import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sixfold import ModelPart
from sixfold.core import forms
from sixfold.core.init import linear
from sixfold.core.masks import past
from sixfold.spec import registry
from sixfold.transformer import FeedForward, PreNorm, merge_heads, split_heads
from sixfold.verify.contract import training
from sixfold.verify.contract.part import CHECKS
from sixfold.verify.contract.subject import SMALL, Subject
from tests.support.own_parts import fills

ENCODER_DECODER, DECODER, ENCODER = "encoder_decoder", "decoder_only", "encoder_only"


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


# A self-attention and a cross-attention without a mistake; each of those below changes one thing ------------


class Good(ModelPart):
    map = "softmax"
    position_places = ("rotate", "bias", "values")

    def __init__(self, spec, place):
        super().__init__()
        width = spec.sizes.d_model
        self.place, self.heads = place, spec.sizes.heads
        self.qkv, self.output = linear(width, 3 * width), linear(width, width)
        self.position = spec.position(spec, place)

    def forward(self, x, call):
        q, k, v = split_heads(self.qkv(x), self.heads, 3)
        q, k = self.rotated(q, call), self.rotated(k, call)
        k, v = self.all_so_far(call, k, v)
        bias = self.position.bias(q, call)
        scores = q @ k.transpose(-2, -1)
        weights = self.weigh(scores if bias is None else scores + bias, call)
        heads = weights @ v + self.position.values(weights, call)
        self.show(call, weights)
        return self.output(merge_heads(self.gated(call, heads)))

    def rotated(self, heads, call):
        return self.position.rotate(heads, call)

    def all_so_far(self, call, k, v):
        return call.grow(self.place, k, v)

    def weigh(self, scores, call):
        return call.sight.softmax(scores)

    def show(self, call, weights):
        call.show(self.place, weights=weights)

    def gated(self, call, heads):
        return call.gate(self.place, heads)


class GoodCross(Good):
    map = "softmax"

    def forward(self, x, call):
        q, *_ = split_heads(self.qkv(x), self.heads, 3)
        k, v = self.of_memory(call)
        weights = self.weigh(q @ k.transpose(-2, -1), call)
        self.show(call, weights)
        return self.output(merge_heads(self.gated(call, weights @ v)))

    def make(self, memory):
        return split_heads(self.qkv(memory), self.heads, 3)[1:]

    def of_memory(self, call):
        return call.keep(self.place, self.make)

    def weigh(self, scores, call):
        return call.memory_sight.softmax(scores)


class SeesTheFuture(Good):
    def weigh(self, scores, call):
        return scores.softmax(-1)


class SeesPadding(Good):
    def weigh(self, scores, call):
        hidden = ~past(scores.shape[-1], scores.device) if call.causal else torch.tensor(False)
        return scores.masked_fill(hidden, -1e9).softmax(-1)


class CrossSeesPadding(GoodCross):
    def weigh(self, scores, call):
        return scores.softmax(-1)


class NaNForNothing(Good):
    def weigh(self, scores, call):
        mask = call.sight.written_out(scores)
        return scores.softmax(-1) if mask is None else scores.masked_fill(~mask, -torch.inf).softmax(-1)


class Forgets(Good):
    def all_so_far(self, call, k, v):
        call.grow(self.place, k, v)
        return k, v

    def weigh(self, scores, call):
        return scores.softmax(-1) if call.cache else super().weigh(scores, call)


class SeesTheWholeChunk(Good):
    def weigh(self, scores, call):
        return scores.softmax(-1) if call.cache and scores.shape[-2] > 1 else super().weigh(scores, call)


class ReadsMemoryItself(GoodCross):
    def of_memory(self, call):
        return self.make(call.memory.states[call.depth])


class NeverShown(Good):
    def show(self, call, weights):
        pass


class Undeclared(Good):
    map = "none"


class ShowsAMean(Good):
    def show(self, call, weights):
        call.show(self.place, weights=weights.mean(1, keepdim=True))


class ShowsBeforeTheMask(Good):
    def show(self, call, weights):
        call.show(self.place, weights=torch.full_like(weights, 1 / weights.shape[-1]))


class ShowsHalf(Good):
    def show(self, call, weights):
        call.show(self.place, weights=weights / 2)


class ShownWithoutCacheOnly(Good):
    def show(self, call, weights):
        if call.cache is None:
            super().show(call, weights)


class WatchedIsAnother(Good):
    def weigh(self, scores, call):
        return super().weigh(scores / 2 if call.watched(self.place) else scores, call)


class NotGated(Good):
    def gated(self, call, heads):
        return heads


class GateLost(Good):
    def gated(self, call, heads):
        call.gate(self.place, heads)
        return heads


class GatedTwiceAsLoud(Good):
    def gated(self, call, heads):
        return call.gate(self.place, heads) * (1 if call.gates is None else 2)


class GateOfTheFirstRow(Good):
    def gated(self, call, heads):
        gate = call.gate(self.place, torch.ones_like(heads))
        return heads * gate[:1]


class GatedWithoutCacheOnly(Good):
    def gated(self, call, heads):
        gated = call.gate(self.place, heads)
        return heads if call.cache else gated


class NotRotated(Good):
    def rotated(self, heads, call):
        return heads


# A running sum ------------------------------------------------------------------------------------------


class Sum(nn.Module):
    """y_t = x_1 + … + x_t, over real tokens."""

    def __init__(self, spec, place):
        super().__init__()
        self.place = place

    def forward(self, x, call):
        return call.carry(self.place, x, lambda memory: (x.new_zeros(1, x.shape[-1]),), self.update(x, call))

    def update(self, x, call):
        return lambda total: self.added(total, x if call.real is None else x * call.real[..., None])

    def added(self, total, x):
        sums = total[:, None] + x.cumsum(1)
        return sums, (sums[:, -1],)


class CountsPadding(Sum):
    def update(self, x, call):
        return lambda total: self.added(total, x)


class ChangesItsState(Sum):
    """It writes into its state, once that is a tensor of its own."""

    def added(self, total, x):
        sums = total[:, None] + x.cumsum(1)
        return sums, (total.copy_(sums[:, -1]) if total.stride(0) else sums[:, -1],)


class Remembers(Sum):
    """It keeps its state in an attribute."""

    def forward(self, x, call):
        first = call.cache is None or not call.cache.lengths.any()
        sums, (after,) = self.update(x, call)(x.new_zeros(1, x.shape[-1]) if first else self.total)
        self.total = after
        return sums


# Feed-forward networks and residuals ----------------------------------------------------------------------


class OverTheBatch(FeedForward):
    def forward(self, x, call):
        return super().forward(x - x.mean(0), call)


class Counting(FeedForward):
    runs = 0

    def forward(self, x, call):
        self.runs += 1
        return super().forward(x, call) * self.runs


class NeedsAValue(FeedForward):
    def forward(self, x, call):
        return super().forward(x / max(1.0, x.abs().max().item()), call)


class AnotherForm(FeedForward, form=forms.FeedForwardForm):
    def forward(self, x, call):
        return 2 * super().forward(x, call)


class CanNotBeCopied(FeedForward):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.lock = threading.Lock()


class NotSaved(FeedForward):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.factor = self.made()

    def made(self):
        return 1 + random.random()

    def forward(self, x, call):
        return super().forward(x, call) * self.factor


class TensorNotSaved(NotSaved):
    def made(self):
        return torch.ones(1)


class Unused(FeedForward):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.unused = nn.Parameter(torch.ones(3))


class Draws(FeedForward):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.inner = nn.Linear(spec.sizes.d_model, spec.sizes.d_ff)


class Uninitialised(Unused):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.unused = nn.Parameter(torch.empty(3))


class Scalar(Unused):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.unused = nn.Parameter(torch.tensor(1.0))


class NoDropout(PreNorm):
    def after(self, x, y):
        return x + y


class AlwaysDropout(PreNorm):
    def after(self, x, y):
        return x + F.dropout(y, 0.1)


class Deaf(nn.Module):
    """A cross-attention that reads nothing."""

    def __init__(self, spec, place):
        super().__init__()

    def forward(self, x, call):
        return torch.zeros_like(x)


class PoolsPadding(nn.Module):
    def __init__(self, spec, place):
        super().__init__()

    def forward(self, x, real):
        return x.mean(1)


BROKEN = [
    ("meta", DECODER, {"feed_forward": NeedsAValue}, "meta"),
    ("declared_weights", DECODER, {"feed_forward": Draws}, "stack.layers.0.feed_forward.inner.weight was drawn"),
    ("declared_weights", DECODER, {"feed_forward": Uninitialised}, "stack.layers.0.feed_forward.unused has no first"),
    ("declared_weights", DECODER, {"feed_forward": Scalar}, "stack.layers.0.feed_forward.unused has no dimension"),
    ("saved_and_loaded", ENCODER, {"feed_forward": NotSaved}, "the loaded model gives other states"),
    ("saved_and_loaded", ENCODER, {"feed_forward": TensorNotSaved}, "device meta"),
    ("positions", DECODER, {"attention": NotRotated}, "NotRotated declares 'rotate' in position_places, but rotary"),
    ("fast_step", ENCODER_DECODER, {"feed_forward": AnotherForm}, "log-probabilities by the fast step"),
    ("int8", DECODER, {"feed_forward": CanNotBeCopied}, "cannot pickle '_thread.lock'"),
    ("causality", DECODER, {"attention": SeesTheFuture}, "the state of token 0 depends on token 1"),
    ("padding", ENCODER, {"attention": SeesPadding}, "1 tokens of padding at the left matter"),
    ("source_padding", ENCODER_DECODER, {"cross": CrossSeesPadding}, "of the source matter to the decoder"),
    ("alone_and_in_a_batch", ENCODER, {"feed_forward": OverTheBatch}, "a row of 5 tokens, padded at the left"),
    ("class_in_a_batch", ENCODER, {"pool": PoolsPadding}, "log-probabilities of classes, padded at the left"),
    ("only_padding", ENCODER, {"attention": NaNForNothing}, "infinite or NaN"),
    ("token_by_token", DECODER, {"attention": Forgets}, "row 0 of 3 differs from what it is without a cache"),
    ("chunks", DECODER, {"attention": SeesTheWholeChunk}, "without a cache"),
    ("ragged_prompts", DECODER, {"attention": CountsPadding}, "without a cache"),
    ("pauses", DECODER, {"attention": CountsPadding}, "without a cache"),
    ("selected_rows", DECODER, {"attention": Remembers}, ""),
    ("without_the_longest", DECODER, {"attention": Remembers}, ""),
    ("forks", DECODER, {"attention": ChangesItsState}, "without a cache"),
    ("beams", ENCODER_DECODER, {"cross": ReadsMemoryItself}, "must match"),
    ("ragged_beams", ENCODER_DECODER, {"cross": ReadsMemoryItself}, "must match"),
    ("joins", DECODER, {"attention": Remembers}, ""),
    ("joins_a_fresh_row", DECODER, {"attention": Remembers}, ""),
    ("joins_beams", DECODER, {"attention": Remembers}, ""),
    ("search_without_cache", DECODER, {"attention": Forgets}, "differ with a cache and without"),
    ("search_in_company", DECODER, {"feed_forward": OverTheBatch}, "for each sentence alone and for all in one batch"),
    ("search_in_company", DECODER, {"attention": Remembers}, ""),
    (
        "tap_changes_nothing",
        DECODER,
        {"attention": NeverShown},
        "only.0.attention declares the map 'softmax', but shows",
    ),
    ("tap_changes_nothing", DECODER, {"attention": Undeclared}, "only.0.attention shows weights, but declares no map"),
    ("tap_changes_nothing", DECODER, {"attention": WatchedIsAnother}, "an open tap changes the states"),
    ("tap_weights", DECODER, {"attention": ShowsAMean}, "have shape (2, 1, 5, 5) instead of (2, 2, 5, 5)"),
    ("tap_weights", DECODER, {"attention": ShowsBeforeTheMask}, "on a token that is hidden"),
    ("tap_weights", DECODER, {"attention": ShowsHalf}, "do not sum to one"),
    ("tap_on_beams", DECODER, {"attention": ShownWithoutCacheOnly}, "with a cache a tap sees []"),
    ("gate_of_ones", DECODER, {"attention": GatedTwiceAsLoud}, "gates of ones at only.0.attention"),
    ("gate_of_zero", DECODER, {"attention": NotGated}, "its forward never calls call.gate"),
    ("gate_of_zero", DECODER, {"attention": GateLost}, "for head 0 of only.0.attention changes nothing"),
    ("gate_of_a_row", DECODER, {"attention": GateOfTheFirstRow}, "gates of one row"),
    ("gates_on_beams", DECODER, {"attention": GatedWithoutCacheOnly}, "gates act in another way in a beam"),
    ("dropout", ENCODER, {"residual": NoDropout}, "no dropout acts on the output of stack.layers.0.attention"),
    ("no_chance_in_evaluation", ENCODER, {"residual": AlwaysDropout}, "different seeds"),
    (
        "every_parameter_learns",
        ENCODER,
        {"feed_forward": Unused},
        "no gradient reaches stack.layers.0.feed_forward.unu",
    ),
    ("recomputing", ENCODER, {"feed_forward": Counting}, "when layers are recomputed"),
    ("loss_by_rows", ENCODER, {"feed_forward": OverTheBatch}, "of a batch is not the sum over its rows"),
    ("copying", ENCODER_DECODER, {"cross": Deaf}, "it did not learn to copy in 20 steps"),
]
CHECK = {check.name: check for check in CHECKS}


def tried(name, subject):
    """Check all forms."""
    for form in CHECK[name].forms():
        CHECK[name](subject, **form)


@pytest.mark.filterwarnings("ignore:.*without a declared distribution")
@pytest.mark.parametrize(
    ("name", "kind", "slots", "words"),
    BROKEN,
    ids=[f"{name}-{min(slots.values(), key=str).__name__}" for name, _, slots, _ in BROKEN],
)
def test_a_mistake_is_found(name, kind, slots, words, monkeypatch):
    monkeypatch.setattr(training, "_STEPS", 20)
    with pytest.raises((AssertionError, ValueError, RuntimeError, TypeError)) as error:
        tried(name, Subject(kind, (fills(**slots),), replace(SMALL, classes=3 if "pool" in slots else 0)))
    assert words in str(error.value)


def test_every_check_finds_a_mistake():
    assert {name for name, *_ in BROKEN} == CHECK.keys()


@pytest.mark.parametrize("slots", [{"attention": Good, "cross": GoodCross}, {"attention": Sum}], ids=["Good", "Sum"])
@pytest.mark.parametrize("kind", [ENCODER_DECODER, DECODER])
def test_without_the_mistake_nothing_is_found(slots, kind):
    used = slots if kind == ENCODER_DECODER else {"attention": slots["attention"]}
    subject = Subject(kind, (fills(**used),))
    for name in dict.fromkeys(name for name, _, broken, _ in BROKEN if broken.keys() & used.keys()):
        if CHECK[name].concerns(subject.type) and not CHECK[name].slow:
            tried(name, subject)
