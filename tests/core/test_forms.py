"""Forms say what parts compute, and only the class that states a form has it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from sixfold import ModelPart
from sixfold.core import forms
from sixfold.core.init import normal
from sixfold.core.parts import form_of
from sixfold.core.place import Sizes
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.step import FusedStep, make_step, unknown_part
from sixfold.decoding.step import ModelStep
from sixfold.foreign.recognise import Inexpressible, recognise
from sixfold.modifications._shared.factorized import Factors
from sixfold.modifications.gated import Gated
from sixfold.modifications.post_norm import PostNorm
from sixfold.modifications.rezero_layer_norm import NormedReZero
from sixfold.modifications.rms_norm import RMSNorm
from sixfold.spec import registry
from sixfold.spec.spec import Spec
from sixfold.transformer import Attention, FeedForward, PreNorm, TokenEmbedding
from tests.support.small import assert_close, seeded, small_model

SPEC = Spec(sizes=Sizes(vocab=9, d_model=6, d_ff=10, heads=2, dropout=0.0))
PLACE = SPEC.place("encoder")


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


def fills(**slots):
    """Register a modification that fills slots."""

    def mine(spec):
        return replace(spec, **slots)

    registry.modification()(mine)
    return "mine"


def moved(part):
    with torch.no_grad():
        for i, p in enumerate(part.parameters()):
            p += 0.3 * torch.randn(p.shape, generator=seeded(i))
    return part


def x_like(*shape):
    return torch.randn(*shape, 6, generator=seeded(9))


# A form's formula is what the part gives ----------------------------------------------------------------


def linear(part, x):
    form = form_of(part)
    return x @ form.weight.T + (0 if form.bias is None else form.bias)


def norm(part, x):
    form = form_of(part)
    if form.centred:
        x = x - x.mean(-1, keepdim=True)
    size = x[..., : form.channels].square().mean(-1, keepdim=True)
    return form.weight * x / (size + form.epsilon).sqrt() + (0 if form.bias is None else form.bias)


def feed_forward(part, x):
    form = form_of(part)
    h = linear(form.inner, x)
    a, b = h.chunk(2, -1) if form.gated else (h, 1)
    return linear(form.outer, form.activation(a) * b)


@pytest.mark.parametrize(
    "part",
    [
        nn.Linear(6, 4),
        nn.Linear(6, 4, bias=False),
    ],
    ids=["bias", "no bias"],
)
@torch.no_grad()
def test_linear_maps(part):
    assert_close(linear(part, x_like(3)), part(x_like(3)), within=1e-6)


@pytest.mark.parametrize(
    "part",
    [nn.LayerNorm(6, eps=1e-3), RMSNorm(SPEC, PLACE), RMSNorm(SPEC, PLACE, fraction=0.5)],
    ids=["layer", "rms", "half"],
)
@torch.no_grad()
def test_norms(part):
    assert_close(norm(moved(part), x_like(3)), part(x_like(3)), within=1e-5)


@pytest.mark.parametrize("part", [FeedForward(SPEC, PLACE), Gated(SPEC, PLACE, torch.sigmoid)], ids=["plain", "gated"])
@torch.no_grad()
def test_feed_forwards(part):
    assert_close(feed_forward(moved(part), x_like(2, 3)), part(x_like(2, 3), None), within=1e-5)


@pytest.mark.parametrize("kind", [PreNorm, PostNorm, NormedReZero])
@torch.no_grad()
def test_residuals(kind):
    part, x = moved(kind(SPEC, PLACE)), x_like(2, 3)
    form, sublayer = form_of(part), lambda y, call=None: (2 * y).sin()
    gain = 1 if form.gain is None else form.gain
    by_form = (
        x + gain * sublayer(norm(form.norm, x))
        if isinstance(form, forms.PreNormForm)
        else norm(form.norm, x + gain * sublayer(x))
    )
    assert_close(by_form, part(x, sublayer, None), within=1e-5)


@pytest.mark.parametrize("table", [TokenEmbedding(SPEC, PLACE), Factors(9, 3, 6)], ids=["one table", "two factors"])
@torch.no_grad()
def test_embeddings(table):
    form, ids = form_of(table), torch.tensor([3, 8])
    whole = form.weight if form.projection is None else form.weight @ form.projection.T
    assert_close(6**0.5 * whole[ids], table(ids), within=1e-6)
    assert_close(x_like(2) @ whole.T, table.logits(x_like(2)), within=1e-6)


def test_a_shared_layer_is_listed_as_often_as_it_is_applied():
    shared, plain = (form_of(small_model(modifications=w).encoder) for w in (("block_sharing",), ()))
    assert [layer is shared.layers[0] for layer in shared.layers] == [True, True]
    assert [layer is plain.layers[0] for layer in plain.layers] == [True, False]


# It belongs to the class that states it -------------------------------------------------------------------


class Doubled(FeedForward):
    """Computes something else, and states no form."""

    def forward(self, x, call):
        return 2 * super().forward(x, call)


class Renamed(FeedForward):
    """Computes the same, and states no form either: nobody can know."""


class Stating(Doubled):
    def form(self):
        return forms.FeedForwardForm(self.inner, self.outer, self.activation)


class Own(ModelPart):
    """φ(x W₁ + b₁) W₂ + b₂ with attributes of its own names."""

    def __init__(self, spec, place):
        super().__init__()
        self.up = normal(nn.Linear(spec.sizes.d_model, 12))
        self.down = normal(nn.Linear(12, spec.sizes.d_model))

    def forward(self, x, call):
        return self.down(torch.relu(self.up(x)))

    def form(self):
        return forms.FeedForwardForm(self.up, self.down, torch.relu)


class Unrelated(nn.Module):
    def form(self):
        raise AssertionError("this means something else")


def test_a_subclass_has_a_form_only_if_it_states_one():
    assert isinstance(form_of(FeedForward(SPEC, PLACE)), forms.FeedForwardForm)
    assert form_of(Doubled(SPEC, PLACE)) is None
    assert form_of(Renamed(SPEC, PLACE)) is None
    assert isinstance(form_of(Stating(SPEC, PLACE)), forms.FeedForwardForm)
    assert form_of(type("Further", (Stating,), {})(SPEC, PLACE)) is None
    assert form_of(Unrelated()) is None


def test_a_part_that_somebody_changed_has_none():
    hooked, patched = FeedForward(SPEC, PLACE), FeedForward(SPEC, PLACE)
    hook = hooked.register_forward_hook(lambda *_: None)
    patched.forward = lambda x, call: x
    assert form_of(hooked) is form_of(patched) is None
    hook.remove()
    assert form_of(hooked) is not None
    assert form_of(parametrizations.weight_norm(nn.Linear(6, 4))) is None
    assert form_of(parametrizations.weight_norm(TokenEmbedding(SPEC, PLACE))) is None
    assert form_of(torch.compile(FeedForward(SPEC, PLACE))) is None


# Who reads them ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [Doubled, Renamed, Own])
@torch.inference_mode()
def test_the_fast_step_computes_what_the_model_does(part):
    """By the form where there is one, else by the part itself."""
    model = small_model(modifications=(fills(feed_forward=part),), dtype=torch.float32)
    step, slow = FusedStep(model), ModelStep(model)
    assert (step.layers[0].fused_feed_forward is not None) == (part is Own)
    ids, sources = torch.tensor([[1], [1]]), [[5, 9, 7, 2], [8, 2]]
    fast, plain = (s(ids, s.begin(sources)) for s in (step, slow))
    assert_close(fast.scores - fast.log_z[:, None], plain.scores - plain.log_z[:, None], within=2e-5)


def test_an_attention_without_a_form_is_left_to_the_layers():
    class Mine(Attention):
        pass

    model = small_model(modifications=(fills(attention=Mine),), dtype=torch.float32)
    assert unknown_part(model) == "Mine"
    assert isinstance(make_step(model), ModelStep)


def test_one_layer_for_all_has_the_fast_step_too():
    model = small_model(modifications=("block_sharing",), dtype=torch.float32)
    assert isinstance(make_step(model), FusedStep)
    assert isinstance(make_step(quantised(model)), FusedStep)


def test_a_users_own_part_is_exported_by_the_form_that_it_offers():
    model = small_model(modifications=(fills(feed_forward=Own),))
    layer = recognise(model)["encoder"].layers[0]
    assert layer.feed_forward.inner.weight is model.encoder.layers[0].feed_forward.up.weight
    with pytest.raises(Inexpressible, match=r"^mine \(Doubled\) can't be exported .* a plain or a gated feed-forward"):
        recognise(small_model(modifications=(fills(feed_forward=Doubled),)))


def test_what_a_hook_changes_is_not_exported():
    model = small_model()
    model.decoder.layers[1].cross.register_forward_hook(lambda *_: None)
    with pytest.raises(Inexpressible, match=r"^CrossAttention with a hook can't be exported"):
        recognise(model)


def test_biases_that_would_be_lost_are_refused():
    class Biased(ModelPart, form=forms.AttentionForm):
        position_places = Attention.position_places

        def __init__(self, spec, place):
            super().__init__()
            plain = Attention(spec, place)
            self.heads, self.place, self.position = plain.heads, place, plain.position
            self.qkv, self.output = normal(nn.Linear(16, 48)), plain.output

        forward = Attention.forward

    with pytest.raises(Inexpressible, match=r"^mine \(a bias in qkv\) can't be exported"):
        recognise(small_model(modifications=(fills(attention=Biased),)))
