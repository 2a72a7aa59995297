"""Luong's attention: equal to its equations, one word after the other; its scores, input feeding, taps and gates."""

import itertools

import pytest
import torch

import sixfold
from sixfold import Cache, Tap
from sixfold.core.parts import declared
from tests.support.small import (
    assert_close,
    moved_model,
    pad,
    random_ids,
    random_rows,
    seeded,
    small_model,
    small_sizes,
)

WIDTH, NAME = 16, "decoder.0.cross"
SCORES = ("dot", "general", "concat")
each_option = pytest.mark.parametrize(("score", "feeding"), [*itertools.product(SCORES, (True, False))])


def example(score="general", feeding=True, lengths=(4, 2), seed=1):
    """A model, the sources of two sentences, and texts to write (2, 3)."""
    generator = seeded(seed)
    model = moved_model(modifications=(f"luong:score={score},input_feeding={feeding}",))
    return model, random_rows(lengths, generator), random_ids(2, 3, generator)


def lstm(cell, x, h, c):
    """A step, written down once more."""
    i, f, new, o = (cell.recurrent @ h + cell.input @ x + cell.bias).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def scored(cross, name, h, source):
    """score(h_t, h̄_s), as the paper has it."""
    if name == "dot":
        return h @ source
    if name == "general":
        return h @ cross.key.weight @ source
    W = torch.cat([cross.query.weight, cross.key.weight], 1)
    return cross.score @ torch.tanh(W @ torch.cat([h, source]))


def naive(model, score, feeding, memory, embedded_LD):
    """h̃_1 … h̃_L of one sentence in plain loops, and the weights."""
    decoder = model.decoder
    attend = decoder.steps.attend if feeding else decoder.top.attend
    cells = [decoder.steps.first, *decoder.steps.above] if feeding else [x.cell.forwards for x in decoder.layers]
    state = [[memory.sentences[name][0, layer] for name in "hc"] for layer in range(len(cells))]
    attentional, outputs, looks = torch.zeros(WIDTH).double(), [], []
    for y in embedded_LD:
        h = torch.cat([y, attentional]) if feeding else y
        for layer, cell in enumerate(cells):
            state[layer] = lstm(cell, h, *state[layer])
            h = state[layer][0]
        e = torch.stack([scored(attend.cross, score, h, source) for source in memory.states[0][0]])
        alpha = e.exp() / e.exp().sum()
        context = sum(a * source for a, source in zip(alpha, memory.states[0][0], strict=True))
        attentional = torch.tanh(attend.combine.weight @ torch.cat([context, h]))
        outputs.append(attentional)
        looks.append(alpha)
    return torch.stack(outputs), torch.stack(looks)


@each_option
@torch.no_grad()
def test_it_is_the_loop_of_its_equations(score, feeding):
    model, sources, ids = example(score, feeding)
    tap = Tap()
    states = model.decode(ids, model.encode(pad(sources)), tap=tap)
    assert list(tap) == [NAME]
    for row, source in enumerate(sources):
        memory = model.encode(source[None])
        expected, looks = naive(model, score, feeding, memory, model.roles["target"](ids[row]))
        assert_close(states[row], expected, within=1e-10)
        assert_close(tap[NAME][row, 0, :, : len(source)], looks, within=1e-10)


@pytest.mark.parametrize("feeding", [True, False])
@torch.no_grad()
def test_general_with_the_identity_is_dot(feeding):
    (general, sources, ids), (dot, *_) = example("general", feeding), example("dot", feeding)
    for part in general.modules():
        if type(part).__name__ == "GeneralAttention":
            part.key.weight.copy_(torch.eye(WIDTH))
    left_out = dot.load_state_dict(general.state_dict(), strict=False)
    assert len(left_out.unexpected_keys) == 1
    assert not left_out.missing_keys
    expected = dot.decode(ids, dot.encode(pad(sources)))
    assert_close(general.decode(ids, general.encode(pad(sources))), expected, within=1e-12)


@torch.no_grad()
def test_without_what_is_fed_both_decoders_are_the_same():
    """With zeros for the part of the first layer's matrix that reads h̃."""
    (fed, sources, ids), (plain, *_) = example(feeding=True), example(feeding=False)
    steps = fed.decoder.steps
    fed.encoder.load_state_dict(plain.encoder.state_dict())
    fed.tables.load_state_dict(plain.tables.state_dict())
    steps.attend.load_state_dict(plain.decoder.top.attend.state_dict())
    for cell, layer in zip([steps.first, *steps.above], plain.decoder.layers, strict=True):
        for name, weight in cell.named_parameters():
            theirs = layer.cell.forwards.get_parameter(name)
            weight.copy_(
                torch.cat([theirs, torch.zeros_like(theirs)], 1)[:, : weight.shape[1]] if name == "input" else theirs
            )
    expected = plain.decode(ids, plain.encode(pad(sources)))
    assert_close(fed.decode(ids, fed.encode(pad(sources))), expected, within=1e-12)


@pytest.mark.parametrize("feeding", [True, False])
@torch.no_grad()
def test_only_with_input_feeding_a_word_depends_on_where_the_attention_was(feeding):
    """The gate closes the attention of row 1; what follows from that is seen in the next weights, or nowhere."""
    model, sources, ids = example(feeding=feeding)
    memory, plain, gated = model.encode(pad(sources)), Tap(), Tap()
    gates = {NAME: torch.tensor([[1.0], [0.0]]).double()}
    model.decode(ids, memory, tap=plain)
    model.decode(ids, memory, tap=gated, gates=gates)
    change = (plain[NAME] - gated[NAME]).abs().amax((1, 3))  # (rows, words)
    assert change[0].max() < 1e-12
    assert change[1, 0] < 1e-12
    assert (change[1, 1:] > 1e-6).all() == feeding


@each_option
@torch.no_grad()
def test_the_query_is_the_state_after_the_word(score, feeding):
    model, sources, ids = example(score, feeding)
    memory, one, other = model.encode(pad(sources)), Tap(), Tap()
    model.decode(ids, memory, tap=one)
    model.decode(ids.flip(0), memory, tap=other)
    assert ((one[NAME] - other[NAME])[:, 0, 0].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("side", ["left", "right"])
@each_option
@torch.no_grad()
def test_weights_sum_to_one_over_the_source_and_are_zero_on_padding(score, feeding, side):
    model, sources, ids = example(score, feeding)
    tap, source = Tap(), pad(sources, side)
    model.decode(ids, model.encode(source), tap=tap)
    assert_close(tap[NAME].sum(-1), torch.ones(2, 1, 3).double(), within=1e-12)
    assert ((tap[NAME] > 0) == (source != sixfold.PAD)[:, None, None]).all()


@each_option
@torch.no_grad()
def test_of_a_source_that_is_nothing_but_padding_the_context_is_zero(score, feeding):
    model, sources, ids = example(score, feeding)
    tap, source = Tap(fields=("weights", "heads")), pad(sources)
    source[1] = sixfold.PAD
    model.decode(ids, model.encode(source), tap=tap)
    for field in tap.fields:
        assert (tap[NAME, field][1] == 0).all()


@each_option
@torch.no_grad()
def test_hypotheses_with_a_tap_and_gates_go_on_as_without_a_cache(score, feeding):
    model, sources, _ = example(score, feeding)
    ids, gates = random_ids(4, 5, seeded(2)), {NAME: torch.rand(4, 1, dtype=torch.float64, generator=seeded(3))}
    cached, whole = (Tap(fields=("weights", "heads")) for _ in range(2))
    expected = model.decode(ids, model.encode(pad(sources).repeat_interleave(2, 0)), tap=whole, gates=gates)
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0], [1, 1]]))
    assert_close(model.decode(ids[:, :2], cache=cache, gates=gates), expected[:, :2], within=1e-12)
    states = model.decode(ids[:, 2:], cache=cache, tap=cached, gates=gates)
    assert_close(states, expected[:, 2:], within=1e-12)
    for key in ((NAME, "weights"), (NAME, "heads")):
        assert_close(cached[key], whole[key][:, :, 2:], within=1e-12)


@each_option
@torch.no_grad()
def test_keys_are_made_once_for_a_sentence_and_the_state_does_not_grow(score, feeding):
    model, sources, ids = example(score, feeding)
    made, cross = [], (model.decoder.steps if feeding else model.decoder.top).attend.cross
    if score != "dot":
        cross.key.register_forward_hook(lambda part, x, keys: made.append(keys.shape))
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0, 0], [1, 1, 1]]))
    numbers = set()
    for word in ids.repeat(3, 1).split(1, 1):
        model.decode(word, cache=cache)
        numbers.add(sum(state.numel() for states in cache._carried.values() for state in states))
    assert numbers == {6 * WIDTH * (2 * 2 + feeding)}  # rows × units × (layers × (h, c), and h̃)
    assert made == ([] if score == "dot" else [(2, 4, WIDTH)])


@pytest.mark.parametrize("feeding", [True, False])
def test_dropout_acts_between_layers_and_on_what_is_predicted_from(feeding):
    model, sources, ids = example(feeding=feeding)
    model = small_model(modifications=(f"luong:input_feeding={feeding}",), dropout=0.5).train()
    attend = (model.decoder.steps if feeding else model.decoder.top).attend
    read, between = [], []
    (model.decoder.steps if feeding else model.decoder).dropout.register_forward_hook(lambda *_: between.append(1))
    attend.combine.register_forward_pre_hook(lambda part, x: read.append(x[0][..., WIDTH:]))
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        states = model.decode(ids, model.encode(pad(sources)))
    assert 0.2 < (states == 0).double().mean() < 0.8
    assert all((h != 0).all() for h in read)
    assert len(between) == (3 if feeding else 1)  # between two layers, for each word or for all


@each_option
def test_the_number_of_parameters_is_that_of_the_formula(score, feeding):
    options = {"score": score, "input_feeding": feeding}
    adds = sixfold.spec.registry.find("luong").adds
    for sizes in (small_sizes(), small_sizes(d_model=24, heads=3, encoder_layers=1, decoder_layers=3)):
        plain, ours = (sixfold.build(sizes, wishes, device="meta") for wishes in ([], [("luong", options)]))
        numbers = [sum(p.numel() for p in model.parameters()) for model in (plain, ours)]
        assert numbers[1] - numbers[0] == adds(sizes, **options)


def test_it_says_what_it_can_not_do():
    for kind in ("decoder_only", "encoder_only"):
        with pytest.raises(ValueError, match="luong: its decoder attends to an encoder, and this model has one stack"):
            sixfold.build(small_sizes(), ["luong"], kind)
    with pytest.raises(ValueError, match="must be one of dot, general, concat, got 'cosine'"):
        sixfold.build(small_sizes(), ["luong:score=cosine"])
    for feeding in (True, False):
        model = small_model(modifications=(f"luong:input_feeding={feeding}",))
        assert len({why for part in model.modules() if (why := declared(part).not_exported)}) == 1


@pytest.mark.parametrize("options", ["input_feeding=false", "score=dot", "score=concat,input_feeding=false"])
def test_other_options_keep_the_contract(options):
    sixfold.check_part(f"luong:{options}", quick=False)
