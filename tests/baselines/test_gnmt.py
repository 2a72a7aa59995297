"""GNMT: equal to its equations, one word after the other; residuals, the context for every layer, taps and gates."""

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
DEPTHS = [(1, 2), (2, 3), (4, 4)]  # layers of the encoder and of the decoder
each_depth = pytest.mark.parametrize(("encoder", "decoder"), DEPTHS)


def example(encoder=3, decoder=3, lengths=(4, 2), seed=1):
    """A model, the sources of two sentences, and texts to write (2, 3)."""
    generator = seeded(seed)
    model = moved_model(modifications=("gnmt",), encoder_layers=encoder, decoder_layers=decoder)
    return model, random_rows(lengths, generator), random_ids(2, 3, generator)


def zeros(width=WIDTH):
    return torch.zeros(width).double()


def lstm(cell, x, h, c):
    """A step, written down once more."""
    i, f, new, o = (cell.recurrent @ h + cell.input @ x + cell.bias).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def over(cell, xs):
    """h of each x, from left to right."""
    state, found = (zeros(), zeros()), []
    for x in xs:
        state = lstm(cell, x, *state)
        found.append(state[0])
    return found


def naive_encoder(model, xs):
    """The last states of one sentence, layer by layer."""
    first, *above = [layer.cell for layer in model.encoder.layers]
    forth, back = over(first.forwards, xs), over(first.backwards, xs[::-1])[::-1]
    xs = [torch.cat(pair) for pair in zip(forth, back, strict=True)]
    for number, cell in enumerate(above, start=2):
        ys = over(cell.forwards, xs)
        xs = ys if number == 2 else [x + y for x, y in zip(xs, ys, strict=True)]
    return xs


def naive_decoder(model, memory, embedded_LD):
    """The last layer's h of one sentence, all layers word by word, and the weights."""
    bottom, *above = model.decoder.layers
    cross = bottom.cross
    W, U, b, v = cross.query.weight, cross.key.weight, cross.key.bias, cross.score
    state, uppers, context = (zeros(), zeros()), [(zeros(), zeros()) for _ in above], zeros(len(memory[0]))
    outputs, looks = [], []
    for y in embedded_LD:
        state = lstm(bottom.cell, torch.cat([y, context]), *state)
        e = torch.stack([cross.size[0] * (v / v.norm()) @ torch.tanh(W @ state[0] + U @ x + b) for x in memory])
        alpha = e.exp() / e.exp().sum()
        context, h = sum(a * x for a, x in zip(alpha, memory, strict=True)), state[0]
        for number, layer in enumerate(above):
            uppers[number] = lstm(layer.cell.forwards, torch.cat([h, context]), *uppers[number])
            h = uppers[number][0] + (h if number else 0)
        outputs.append(h)
        looks.append(alpha)
    return torch.stack(outputs), torch.stack(looks)


@each_depth
@torch.no_grad()
def test_it_is_the_loop_of_its_equations(encoder, decoder):
    model, sources, ids = example(encoder, decoder)
    tap, memory = Tap(), model.encode(pad(sources))
    states = model.decode(ids, memory, tap=tap)
    assert list(tap) == [NAME]
    for row, source in enumerate(sources):
        read = naive_encoder(model, [*model.roles["source"](source)])
        assert_close(memory.states[0][row, : len(source)], torch.stack(read), within=1e-10)
        expected, looks = naive_decoder(model, read, model.roles["target"](ids[row]))
        assert_close(states[row], expected, within=1e-10)
        assert_close(tap[NAME][row, 0, :, : len(source)], looks, within=1e-10)


@torch.no_grad()
def test_without_context_it_is_a_plain_stack_that_knows_nothing_of_the_source():
    model, sources, ids = example()
    gates = {NAME: torch.zeros(1, 1).double()}
    blind = model.decode(ids, model.encode(pad(sources)), gates=gates)
    assert_close(model.decode(ids, model.encode(pad(sources).flip(0)), gates=gates), blind, 0)
    for row in range(2):
        h = [*model.roles["target"](ids[row])]
        for number, layer in enumerate(model.decoder.layers):
            cell = layer.cell.forwards if number else layer.cell
            below, h = h, over(cell, [torch.cat([x, zeros()]) for x in h])
            h = h if number < 2 else [x + y for x, y in zip(below, h, strict=True)]
        assert_close(blind[row], torch.stack(h), within=1e-10)


@torch.no_grad()
def test_every_layer_reads_the_context():
    """If the columns of one layer that read it are zero, something else is computed."""
    model, sources, ids = example()
    memory = model.encode(pad(sources))
    states = model.decode(ids, memory)
    for number, layer in enumerate(model.decoder.layers):
        cell = layer.cell.forwards if number else layer.cell
        assert cell.input.shape == (4 * WIDTH, 2 * WIDTH)
        before = cell.input.clone()
        cell.input[:, WIDTH:] = 0
        change = (model.decode(ids, memory) - states).abs().amax((0, 2))
        assert (change > 1e-6).tolist() == [number > 0, True, True]  # the first word's bottom layer reads a_0 = 0
        cell.input.copy_(before)


@torch.no_grad()
def test_the_query_is_the_state_after_the_word():
    model, sources, ids = example()
    memory, one, other = model.encode(pad(sources)), Tap(), Tap()
    model.decode(ids, memory, tap=one)
    model.decode(ids.flip(0), memory, tap=other)
    assert ((one[NAME] - other[NAME])[:, 0, 0].abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_weights_sum_to_one_over_the_source_and_are_zero_on_padding(side):
    model, sources, ids = example()
    tap, source = Tap(), pad(sources, side)
    model.decode(ids, model.encode(source), tap=tap)
    assert_close(tap[NAME].sum(-1), torch.ones(2, 1, 3).double(), within=1e-12)
    assert ((tap[NAME] > 0) == (source != sixfold.PAD)[:, None, None]).all()


@each_depth
@torch.no_grad()
def test_hypotheses_with_a_tap_and_gates_go_on_as_without_a_cache(encoder, decoder):
    model, sources, _ = example(encoder, decoder)
    ids, gates = random_ids(4, 5, seeded(2)), {NAME: torch.rand(4, 1, dtype=torch.float64, generator=seeded(3))}
    cached, whole = (Tap(fields=("weights", "heads")) for _ in range(2))
    expected = model.decode(ids, model.encode(pad(sources).repeat_interleave(2, 0)), tap=whole, gates=gates)
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0], [1, 1]]))
    assert_close(model.decode(ids[:, :2], cache=cache, gates=gates), expected[:, :2], within=1e-12)
    states = model.decode(ids[:, 2:], cache=cache, tap=cached, gates=gates)
    assert_close(states, expected[:, 2:], within=1e-12)
    for key in ((NAME, "weights"), (NAME, "heads")):
        assert_close(cached[key], whole[key][:, :, 2:], within=1e-12)


@torch.no_grad()
def test_keys_are_made_once_for_a_sentence_and_the_state_does_not_grow():
    model, sources, ids = example()
    made, numbers = [], set()
    model.decoder.layers[0].cross.key.register_forward_hook(lambda part, x, keys: made.append(keys.shape))
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0, 0], [1, 1, 1]]))
    for word in ids.repeat(3, 1).split(1, 1):
        model.decode(word, cache=cache)
        numbers.add(sum(state.numel() for states in cache._carried.values() for state in states))
    assert made == [(2, 4, WIDTH)]
    assert numbers == {6 * WIDTH * (3 * 2 + 1)}  # rows × units × (layers × (h, c), and the context)
    assert not cache._growing
    assert not cache._shared


def test_a_residual_keeps_what_dropout_takes():
    """Of the first two layers half is zero, of those with a residual only what is zero in both terms."""
    model = small_model(modifications=("gnmt",), encoder_layers=4, decoder_layers=4, dropout=0.5).train()
    seen = []
    for stack in (model.encoder, model.decoder):
        stack.register_forward_hook(lambda part, x, y: seen.append(y[0][1:]))
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model.decode(random_ids(8, 20, seeded(4)), model.encode(random_ids(8, 20, seeded(5))))
    for states in seen:
        shares = [(state == 0).double().mean().item() for state in states]
        assert shares == pytest.approx([1 / 2, 1 / 2, 1 / 4, 1 / 8], abs=0.04)


@pytest.mark.parametrize(("encoder", "decoder"), [*DEPTHS, (1, 3), (8, 8)])
def test_the_number_of_parameters_is_that_of_the_formula(encoder, decoder):
    sizes = small_sizes(d_model=24, heads=3, encoder_layers=encoder, decoder_layers=decoder)
    plain, ours = (sixfold.build(sizes, wishes, device="meta") for wishes in ([], ["gnmt"]))
    numbers = [sum(p.numel() for p in model.parameters()) for model in (plain, ours)]
    assert numbers[1] - numbers[0] == sixfold.spec.registry.find("gnmt").adds(sizes)


def test_at_the_papers_size_the_stacks_have_as_many_parameters_as_published():
    """79.7 and 100.7 million, counted without biases; the attention has 2.1 million."""
    sizes = sixfold.Sizes(vocab=9, d_model=1024, heads=16, encoder_layers=8, decoder_layers=8)
    model = sixfold.build(sizes, ["gnmt"], device="meta")
    by_stack = {"encoder": 0, "decoder": 0, "cross": 0}
    for name, p in model.named_parameters():
        stack = "cross" if ".cross." in name else name.split(".")[0]
        if stack in by_stack and p.dim() > 1:
            by_stack[stack] += p.numel()
    assert {stack: round(number / 1e6, 1) for stack, number in by_stack.items()} == {
        "encoder": 79.7,
        "decoder": 100.7,
        "cross": 2.1,
    }


def test_other_depths_keep_the_contract():
    for encoder, decoder in ((1, 3), (3, 2)):
        sixfold.check_part(
            "gnmt", kinds=["encoder_decoder"], sizes=small_sizes(encoder_layers=encoder, decoder_layers=decoder)
        )


def test_it_says_what_it_can_not_do():
    for kind in ("decoder_only", "encoder_only"):
        with pytest.raises(ValueError, match="gnmt: its decoder attends to an encoder, and this model has one stack"):
            sixfold.build(small_sizes(), ["gnmt"], kind)
    with pytest.raises(ValueError, match="decoder_layers is 1; give it 2 or more"):
        sixfold.build(small_sizes(decoder_layers=1), ["gnmt"])
    model = small_model(modifications=("gnmt",))
    assert len({why for part in model.modules() if (why := declared(part).not_exported)}) == 1
