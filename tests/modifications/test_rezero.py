"""ReZero, alone and with norms."""

import math

import pytest
import torch
from torch import nn

from sixfold import Batch
from sixfold.modifications.rms_norm import RMSNorm
from tests.support.small import assert_close, random_ids, seeded, small_model

NAMES = ("rezero", "rezero_layer_norm", "rezero_rms_norm")
every = pytest.mark.parametrize("name", NAMES)


def alphas(model):
    return {name: p for name, p in model.named_parameters() if name.endswith("alpha")}


def some_alphas(model, value=None):
    with torch.no_grad():
        for p in alphas(model).values():
            p.fill_(value) if value is not None else p.normal_(generator=seeded(5))
    return model


@every
@torch.no_grad()
def test_at_first_every_stack_is_the_identity_up_to_its_final_norm(name):
    model, ids = small_model(modifications=(name,)), random_ids(2, 5, seeded(1))
    seen = []
    for entrance in (model.encoder_input, model.decoder_input):
        entrance.register_forward_hook(lambda part, given, got: seen.append(got[0]))
    memory = model.encode(ids)
    states = model.decode(ids, memory)
    assert torch.equal(memory.states[-1], model.encoder.final(seen[0]))
    assert torch.equal(states, model.decoder.final(seen[1]))
    if name == "rezero":
        assert torch.equal(states, seen[1])


def learns(model, part):
    """Whether all, or none, of the α of a stack have a gradient, and the same of its other weights."""
    mine = {n: p for n, p in model.named_parameters() if n.startswith(f"{part}.layers.")}
    own = [bool((p.grad != 0).any()) for n, p in mine.items() if n.endswith("alpha")]
    others = [bool((p.grad != 0).any()) for n, p in mine.items() if not n.endswith("alpha")]
    assert len(set(own)) == len(set(others)) == 1
    return own[0], others[0]


@every
def test_learning_spreads_from_the_alphas_of_the_decoder(name):
    """Weights wait for their α; the encoder waits until the decoder has let cross-attention in."""
    model, ids = small_model(modifications=(name,)), random_ids(4, 6, seeded(2))
    batch, optimizer = Batch(source=ids, inputs=ids, targets=ids.flip(1)), torch.optim.Adam(model.parameters(), lr=1e-2)
    for decoder, encoder in [
        ((True, False), (False, False)),
        ((True, True), (True, False)),
        ((True, True), (True, True)),
    ]:
        optimizer.zero_grad()
        model(batch).sum.backward()
        assert learns(model, "decoder") == decoder
        assert learns(model, "encoder") == encoder
        optimizer.step()


@torch.no_grad()
def test_with_every_alpha_one_the_normed_form_is_the_plain_transformer():
    plain, ids = small_model(seed=3), random_ids(2, 5, seeded(3))
    model = some_alphas(small_model(modifications=("rezero_layer_norm",)), 1.0)
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert (set(missing), unexpected) == (set(alphas(model)), [])
    assert_close(model.decode(ids, model.encode(ids)), plain.decode(ids, plain.encode(ids)), within=1e-12)


@every
@torch.no_grad()
def test_a_sub_layer_is_scaled_after_it_has_run(name):
    layer = some_alphas(small_model("encoder_only", (name,))).stack.layers[0]
    around, x = layer.around_attention, torch.randn(2, 3, 16, dtype=torch.float64, generator=seeded(4))
    norm = around.norm if name != "rezero" else lambda x: x
    got = around(x, lambda x, call: x**3, None)
    assert_close(got, x + around.alpha * norm(x) ** 3, within=1e-12)
    assert around.alpha.shape == (1,)


def test_where_there_are_norms_and_which():
    for name, kind, norms in zip(NAMES, (nn.LayerNorm, nn.LayerNorm, RMSNorm), (0, 12, 12), strict=True):
        model = small_model(modifications=(name,))
        assert sum(isinstance(m, nn.LayerNorm | RMSNorm) for m in model.modules()) == norms
        assert sum(isinstance(m, kind) for m in model.modules()) == norms
        assert len(alphas(model)) == 2 * 2 + 2 * 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rezero", "'rms_norm' fills the slot 'norm', which nothing reads: ReZero"),
        ("rezero_layer_norm", "both fill the slot 'norm'"),
        ("rezero_rms_norm", "both fill the slot 'norm'"),
    ],
)
def test_another_norm_is_refused(name, why):
    for order in (("rms_norm", name), (name, "rms_norm")):
        with pytest.raises(ValueError, match=why):
            small_model(modifications=order)


@torch.no_grad()
def test_the_first_loss_with_a_table_of_its_own_is_that_of_guessing_and_with_a_shared_one_is_higher():
    """A stack that copies lets a shared softmax bet on the word just read: its logit is √D = 16."""
    words, ids = 2000, torch.randint(3, 2000, (16, 16), generator=seeded(6))
    batch, first = Batch(source=ids, inputs=ids, targets=ids.flip(1)), {}
    for tables in ((), ("tied_inputs",)):
        model = small_model(modifications=("rezero", "no_positions", *tables), vocab=words, d_model=256)
        losses = model(batch)
        first[tables] = (losses.sum / losses.tokens).item()
    assert first["tied_inputs",] == pytest.approx(math.log(words), rel=0.1)
    assert first[()] == pytest.approx(math.sqrt(256), rel=0.1)


def test_an_alpha_does_not_decay():
    model = small_model(modifications=("rezero",))
    still = {id(p) for group in model.groups() if not group.decay for p in group.parameters}
    assert all(id(p) in still for p in alphas(model).values())
