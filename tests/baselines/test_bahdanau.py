"""An LSTM with additive attention: equal to its equations, one word after the other; what it shows, and its gate."""

import pytest
import torch

import sixfold
from sixfold import Cache, Tap
from tests.support.small import assert_close, moved_model, pad, random_ids, random_rows, seeded, small_sizes

WIDTH = 16
NAME = "decoder.0.cross"


def example(lengths=(4, 2), seed=1):
    """A model, the sources of two sentences, and texts to write (2, 3)."""
    generator = seeded(seed)
    return moved_model(modifications=("bahdanau",)), random_rows(lengths, generator), random_ids(2, 3, generator)


def lstm(cell, x, h, c):
    """A step, written down once more."""
    i, f, new, o = (cell.recurrent @ h + cell.input @ x + cell.bias).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def naive(model, memory_nM, end_of_backward, embedded_LD):
    """t_1 … t_L of one sentence in plain loops, and the weights."""
    attentive, above = model.decoder.layers
    W, U, v = attentive.cross.query.weight, attentive.cross.key.weight, attentive.cross.score
    s, upper = (
        [torch.tanh(layer.start.map.weight @ end_of_backward), torch.zeros(WIDTH).double()]
        for layer in (attentive, above)
    )
    outputs, looks = [], []
    for y in embedded_LD:
        e = torch.stack([v @ torch.tanh(W @ s[0] + U @ h_j) for h_j in memory_nM])
        alpha = e.exp() / e.exp().sum()
        context = sum(a * h_j for a, h_j in zip(alpha, memory_nM, strict=True))
        s = lstm(attentive.cell, torch.cat([y, context]), *s)
        upper = lstm(above.cell.forwards, s[0], *upper)
        outputs.append(torch.tanh(model.decoder.readout(torch.cat([upper[0], y, context]))))
        looks.append(alpha)
    return torch.stack(outputs), torch.stack(looks)


@torch.no_grad()
def test_it_is_the_loop_of_its_equations():
    model, sources, ids = example()
    tap = Tap()
    states = model.decode(ids, model.encode(pad(sources)), tap=tap)
    for row, source in enumerate(sources):
        memory = model.encode(source[None])
        backward = memory.sentences["h"][0, -1, WIDTH:]
        assert_close(backward, memory.states[0][0, 0, WIDTH:])  # ←h_1
        expected, looks = naive(model, memory.states[0][0], backward, model.roles["target"](ids[row]))
        assert_close(states[row], expected, within=1e-10)
        assert_close(tap[NAME][row, 0, :, : len(source)], looks, within=1e-10)


@torch.no_grad()
def test_weights_sum_to_one_over_the_source_and_are_zero_on_padding():
    model, sources, ids = example()
    for side in ("left", "right"):
        tap, source = Tap(), pad(sources, side)
        model.decode(ids, model.encode(source), tap=tap)
        assert list(tap) == [NAME]
        weights = tap[NAME]
        assert weights.shape == (2, 1, 3, 4)
        assert_close(weights.sum(-1), torch.ones(2, 1, 3).double(), within=1e-12)
        assert ((weights > 0) == (source != sixfold.PAD)[:, None, None]).all()


@torch.no_grad()
def test_of_one_source_token_the_context_is_its_state():
    model, _, ids = example()
    tap, memory = Tap(fields=("heads",)), model.encode(torch.tensor([[5], [7]]))
    model.decode(ids, memory, tap=tap)
    assert_close(tap[NAME, "heads"], memory.states[0][:, None].expand(-1, -1, 3, -1), within=1e-12)


@torch.no_grad()
def test_the_query_is_the_state_before_the_word():
    """The first weights do not depend on the first word, the second ones do."""
    model, sources, ids = example()
    memory, one, other = model.encode(pad(sources)), Tap(), Tap()
    model.decode(ids, memory, tap=one)
    model.decode(ids.flip(0), memory, tap=other)
    assert torch.equal(one[NAME][:, :, 0], other[NAME][:, :, 0])
    assert (one[NAME] - other[NAME])[:, :, 1].abs().max() > 1e-6


@torch.no_grad()
def test_keys_are_made_once_for_a_sentence():
    model, sources, ids = example()
    made = []
    model.decoder.layers[0].cross.key.register_forward_hook(lambda part, x, keys: made.append(keys.shape))
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0, 0], [1, 1, 1]]))
    for word in ids.repeat(3, 1).split(1, 1):
        model.decode(word, cache=cache)
    assert made == [(2, 4, WIDTH)]


# A tap and a gate --------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_tap_on_hypotheses_sees_what_it_sees_without_a_cache():
    model, sources, _ = example()
    ids = random_ids(4, 3, seeded(2))
    cached, whole = (Tap(fields=("weights", "heads")) for _ in range(2))
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0], [1, 1]]))
    model.decode(ids, cache=cache, tap=cached)
    model.decode(ids, model.encode(pad(sources).repeat_interleave(2, 0)), tap=whole)
    assert cached.seen.keys() == whole.seen.keys() == {(NAME, "weights"), (NAME, "heads")}
    for key, tensor in whole.seen.items():
        assert_close(cached[key], tensor, within=1e-12)


@torch.no_grad()
def test_a_gate_scales_the_context():
    model, sources, ids = example()
    memory = model.encode(pad(sources))
    plain = model.decode(ids, memory)
    assert model.attentions == {NAME: 1}
    assert torch.equal(model.decode(ids, memory, gates={NAME: torch.ones(1, 1).double()}), plain)
    gated = model.decode(ids, memory, gates={NAME: torch.tensor([[1.0], [0.0]]).double()})
    assert_close(gated[0], plain[0], within=1e-12)
    nothing = memory._replace(states=tuple(torch.zeros_like(s) for s in memory.states))
    assert_close(gated[1], model.decode(ids, nothing)[1], within=1e-12)
    assert (gated[1] - plain[1]).abs().max() > 1e-6


@torch.no_grad()
def test_gates_act_on_hypotheses_that_share_a_memory():
    model, sources, _ = example()
    ids, gates = random_ids(4, 3, seeded(3)), {NAME: torch.rand(4, 1, dtype=torch.float64, generator=seeded(4))}
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0], [1, 1]]))
    expected = model.decode(ids, model.encode(pad(sources).repeat_interleave(2, 0)), gates=gates)
    assert_close(model.decode(ids, cache=cache, gates=gates), expected)


@pytest.mark.parametrize("kind", ["decoder_only", "encoder_only"])
def test_it_needs_an_encoder_and_a_decoder(kind):
    with pytest.raises(ValueError, match="bahdanau: its decoder attends to an encoder, and this model has one stack"):
        sixfold.build(small_sizes(), ["bahdanau"], kind)
