"""Deep-Att: equal to its equations, word after word; its directions, and the path of f as a way for gradients."""

import pytest
import torch

import sixfold
from sixfold import PAD, Cache, Tap
from sixfold.baselines._shared.cells import LSTMCell
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
from tests.support.stage import call_for

WIDTH, MEMORY, NAME = 16, 40, "decoder.0.cross"
HALF = 2 * WIDTH
DEPTHS = [(1, 1), (2, 3), (3, 2)]  # layers of the encoder and of the decoder
each_depth = pytest.mark.parametrize(("encoder", "decoder"), DEPTHS)


def example(encoder=3, decoder=2, lengths=(4, 2), seed=1):
    """A model, the sources of two sentences, and texts to write (2, 3)."""
    generator = seeded(seed)
    model = moved_model(modifications=("deep_att",), encoder_layers=encoder, decoder_layers=decoder)
    return model, random_rows(lengths, generator), random_ids(2, 3, generator)


def zeros(width=WIDTH):
    return torch.zeros(width).double()


def gated(cell, f, h, c):
    """A step of an LSTM whose input is f, written down once more."""
    i, forget, new, o = (cell.recurrent @ h + f + cell.bias).chunk(4)
    c = forget.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def over(cell, fs):
    """h for each f, in their order."""
    state, found = (zeros(), zeros()), []
    for f in fs:
        state = gated(cell, f, *state)
        found.append(state[0])
    return found


def naive_encoder(model, xs):
    """e_1 … e_n of one sentence, column by column."""
    tops = []
    for number, column in enumerate(model.encoder.columns):
        below = xs
        for k, layer in enumerate(column, start=1):
            fs = [layer.cell.input @ x for x in below]
            from_left = (k + number) % 2 == 1  # the first column's layers 1, 3, 5 …, the second's 2, 4, 6 …
            hs = over(layer.cell, fs) if from_left else over(layer.cell, fs[::-1])[::-1]
            below = [torch.cat([f[:HALF], h]) for f, h in zip(fs, hs, strict=True)]
        tops.append([torch.cat([f, h]) for f, h in zip(fs, hs, strict=True)])
    return [model.encoder.project.weight @ torch.cat(both) for both in zip(*tops, strict=True)]


def naive_decoder(model, memory, embedded_LD):
    """t_1 … t_L of one sentence, all layers word by word, and the weights."""
    bottom, *above = model.decoder.layers
    cells = [bottom.cell, *[layer.recurrent.cell.forwards for layer in above]]
    W, U, v = bottom.cross.query.weight, bottom.cross.key.weight, bottom.cross.score
    states, outputs, looks = [(zeros(), zeros()) for _ in cells], [], []
    for y in embedded_LD:
        alpha = torch.stack([v @ torch.tanh(W @ states[0][0] + U @ e) for e in memory]).softmax(0)
        below = torch.cat([y, sum(a * e for a, e in zip(alpha, memory, strict=True))])
        for k, cell in enumerate(cells):
            f = cell.input @ below
            states[k] = gated(cell, f, *states[k])
            below = torch.cat([f[:HALF], states[k][0]])
        outputs.append(model.decoder.readout.weight @ torch.cat([f, states[-1][0]]))
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


def test_the_memory_has_a_quarter_of_the_width_of_both_columns():
    """With the paper's 512 units: 2 · (2048 + 512) = 5120 numbers, of which 1280 are left."""
    model = sixfold.build(small_sizes(d_model=512, d_head=8), ["deep_att"], device="meta")
    assert model.encoder.project.weight.shape == (1280, 5120)


# The path of f -----------------------------------------------------------------------------------------------


@torch.no_grad()
def close_path(model):
    """Put zeros where a layer reads f."""
    for column in model.encoder.columns:
        for layer in column[1:]:
            layer.cell.input[:, :HALF] = 0
    model.encoder.project.weight.view(MEMORY, 2, -1)[..., : 4 * WIDTH] = 0
    for layer in model.decoder.layers[1:]:
        layer.recurrent.cell.forwards.input[:, :HALF] = 0
    model.decoder.readout.weight[:, : 4 * WIDTH] = 0


@torch.no_grad()
def test_without_the_path_it_is_a_stack_of_ordinary_lstms():
    """torch's LSTMs, layer by layer, with the weights that read h."""
    model, sources, _ = example()
    close_path(model)
    source, expected = sources[0], []
    for number, column in enumerate(model.encoder.columns):
        x = model.roles["source"](source)[None]
        for k, layer in enumerate(column, start=1):
            theirs = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True).double()
            theirs.weight_ih_l0.copy_(layer.cell.input[:, -WIDTH:])
            theirs.weight_hh_l0.copy_(layer.cell.recurrent)
            theirs.bias_ih_l0.copy_(layer.cell.bias)
            theirs.bias_hh_l0.zero_()
            x = theirs(x)[0] if (k + number) % 2 else theirs(x.flip(1))[0].flip(1)
        expected.append(x[0] @ model.encoder.project.weight.view(MEMORY, 2, -1)[:, number, 4 * WIDTH :].T)
    assert_close(model.encode(source[None]).states[0][0], sum(expected), within=1e-12)


def norm_at_first_layer(layers, path):
    """The norm of the gradient at the weights of the encoder's first layers, for loss Σ e."""
    model = small_model(modifications=("deep_att",), encoder_layers=layers)
    if not path:
        close_path(model)
    model.encode(random_ids(2, 6, seeded(1))).states[0].sum().backward()
    return torch.stack([column[0].cell.input.grad.norm() for column in model.encoder.columns]).norm()


def test_the_gradient_reaches_the_first_layer_of_a_deep_stack_along_f_only():
    with_path = [norm_at_first_layer(layers, path=True) for layers in (2, 8, 16)]
    without = [norm_at_first_layer(layers, path=False) for layers in (2, 8, 16)]
    assert with_path[2] > with_path[0] / 20
    assert without[2] < without[0] / 1e5
    ratios = [float(a / b) for a, b in zip(with_path, without, strict=True)]
    assert 3 < ratios[0] < ratios[1] / 30 < ratios[2] / 3e3


@torch.no_grad()
def test_nothing_bends_the_path():
    """f of the last layer is a linear map of x and of the layers' h: here h is 0, for each gate o is closed."""
    model, _, _ = example(encoder=3)
    for column in model.encoder.columns:
        for layer in column:
            layer.cell.bias[-WIDTH:] = -1e4
    x = torch.randn(1, 4, WIDTH, dtype=torch.float64, generator=seeded(2))
    call = call_for(x, causal=False)

    def top(x):
        for layer in model.encoder.columns[0]:
            x = layer(x, call)
        return x

    assert_close(top(3 * x), 3 * top(x), within=1e-12)
    assert (top(x)[..., -WIDTH:] == 0).all()
    assert (top(x)[..., :-WIDTH] != 0).all()


# Directions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_layers_read_in_turn_from_both_ends_and_columns_in_opposite_order(layers):
    """A change of the last token reaches the first token's h in the layers that read from the end, and above them."""
    model, _, _ = example(encoder=layers)
    states, ids = [], random_ids(1, 4, seeded(3))
    for column in model.encoder.columns:
        for layer in column:
            layer.register_forward_hook(lambda part, x, y: states.append(y[0, 0, -WIDTH:]))
    for last in (5, 6):
        ids[0, -1] = last
        model.encode(ids)
    before, after = states[: len(states) // 2], states[len(states) // 2 :]
    changed = [bool((a != b).any()) for a, b in zip(before, after, strict=True)]
    assert changed == [False, True, True, True][: len(changed)]  # layer 1 of both columns, then layer 2


# Attention ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_query_is_the_state_before_the_word():
    model, sources, ids = example()
    memory, one, other = model.encode(pad(sources)), Tap(), Tap()
    model.decode(ids, memory, tap=one)
    model.decode(ids.flip(0), memory, tap=other)
    assert torch.equal(one[NAME][:, :, 0], other[NAME][:, :, 0])
    assert (one[NAME] - other[NAME])[:, :, 1].abs().max() > 1e-6


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_weights_sum_to_one_over_the_source_and_are_zero_on_padding(side):
    model, sources, ids = example()
    tap, source = Tap(), pad(sources, side)
    model.decode(ids, model.encode(source), tap=tap)
    assert_close(tap[NAME].sum(-1), torch.ones(2, 1, 3).double(), within=1e-12)
    assert ((tap[NAME] > 0) == (source != PAD)[:, None, None]).all()


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
    assert sum(state.numel() for states in cache._carried.values() for state in states) == 4 * decoder * 2 * WIDTH


def test_dropout_acts_on_h_and_not_on_f():
    model = small_model(modifications=("deep_att",), dropout=0.5).train()
    handed_on = []
    for layer in [*model.encoder.columns[0], *model.decoder.layers]:
        layer.register_forward_hook(lambda part, x, y: handed_on.append(y))
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        model.decode(random_ids(2, 3, seeded(1)), model.encode(random_ids(2, 5, seeded(2))))
    assert len(handed_on) == 4
    for y in handed_on:
        assert 0.3 < (y[..., -WIDTH:] == 0).double().mean() < 0.7
        assert (y[..., :-WIDTH] != 0).double().mean() > 0.95


def test_the_number_of_parameters_of_the_papers_stacks():
    """9 and 7 layers of 512 units, counted by hand."""
    sizes = small_sizes(d_model=512, d_ff=2048, heads=8, d_head=64, encoder_layers=9, decoder_layers=7)
    lstm = LSTMCell.parameters_of
    encoder = 2 * (lstm(512, 512) + 8 * lstm(1536, 512)) + 1280 * 5120
    decoder = lstm(512 + 1280, 512) + 6 * lstm(1536, 512) + 2560 * 512
    attention = 512 * 512 + 1280 * 512 + 512
    assert (encoder, decoder, attention) == (77_893_632, 31_209_472, 918_016)
    model = sixfold.build(sizes, ["deep_att"], device="meta")
    tables = sum(p.numel() for p in model.tables.parameters())
    assert sum(p.numel() for p in model.parameters()) - tables == encoder + decoder + attention


def test_it_needs_an_encoder_and_a_decoder():
    for kind in ("decoder_only", "encoder_only"):
        with pytest.raises(ValueError, match="deep_att: its decoder attends to an encoder, and this model has one"):
            sixfold.build(small_sizes(), ["deep_att"], kind)
