"""Recurrent networks in place of the stacks: equal to torch's, indifferent to padding, with a state of one size."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import sixfold
from sixfold import PAD, Cache
from sixfold.baselines._shared.cells import GRUCell, LSTMCell, RNNCell
from sixfold.baselines._shared.recurrence import Recurrence
from sixfold.core.parts import declared
from sixfold.models.count import count
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
from tests.support.stage import call_for, padded_call

WIDTH = 16
REAL = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 0, 1, 1], [0, 0, 0, 0, 0]]).bool()


CELLS = {"rnn": RNNCell, "gru": GRUCell, "lstm": LSTMCell}
THEIRS = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
each_cell = pytest.mark.parametrize("name", CELLS)


def torchs(name, stack, inputs, width, both_ways=False):
    """torch's network with the weights of a stack of ours. Its second bias is 0, but for the b′ of a GRU."""
    layers = len(stack.layers)
    theirs = THEIRS[name](inputs, width, layers, batch_first=True, bidirectional=both_ways).double()
    with torch.no_grad():
        for number, layer in enumerate(stack.layers):
            cells = {"": layer.cell.forwards, **({"_reverse": layer.cell.backwards} if both_ways else {})}
            for end, cell in cells.items():
                theirs.get_parameter(f"weight_ih_l{number}{end}").copy_(cell.input)
                theirs.get_parameter(f"weight_hh_l{number}{end}").copy_(cell.recurrent)
                theirs.get_parameter(f"bias_ih_l{number}{end}").copy_(cell.bias)
                second = theirs.get_parameter(f"bias_hh_l{number}{end}").zero_()
                if name == "gru":
                    second[2 * width :] = cell.recurrent_bias
    return theirs


# The equations -----------------------------------------------------------------------------------------------


def by_gate(cell, letters):
    """W, U and b of a cell, each by the letters of its formulas."""
    return (dict(zip(letters, w.chunk(len(letters)), strict=True)) for w in (cell.recurrent, cell.input, cell.bias))


@torch.no_grad()
def test_a_step_of_an_lstm_is_that_of_the_lectures():
    cell, generator = LSTMCell(3, 4).double(), seeded(1)
    x, h, c = (torch.randn(2, n, dtype=torch.float64, generator=generator) for n in (3, 4, 4))
    W, U, b = by_gate(cell, "ifco")
    f, i, o = (torch.sigmoid(h @ W[gate].T + x @ U[gate].T + b[gate]) for gate in "fio")
    new = torch.tanh(h @ W["c"].T + x @ U["c"].T + b["c"])
    after_c = f * c + i * new
    assert_close(cell(cell.products(x), h, c), (o * torch.tanh(after_c), after_c), within=1e-15)


@torch.no_grad()
def test_a_step_of_a_gru_and_of_a_simple_network_is_its_formula():
    gru, simple, generator = GRUCell(3, 4).double(), RNNCell(3, 4).double(), seeded(1)
    x, h = (torch.randn(2, n, dtype=torch.float64, generator=generator) for n in (3, 4))
    for weight in (gru.bias, gru.recurrent_bias, simple.bias):
        weight.normal_(generator=generator)
    W, U, b = by_gate(gru, "rzh")
    r, z = (torch.sigmoid(h @ W[gate].T + x @ U[gate].T + b[gate]) for gate in "rz")
    new = torch.tanh(r * (h @ W["h"].T + gru.recurrent_bias) + x @ U["h"].T + b["h"])
    assert_close(gru(gru.products(x), h), ((1 - z) * new + z * h,), within=1e-15)
    expected = torch.tanh(h @ simple.recurrent.T + x @ simple.input.T + simple.bias)
    assert_close(simple(simple.products(x), h), (expected,), within=1e-15)


@each_cell
def test_matrices_of_the_state_keep_lengths_at_first(name):
    for layer in small_model("decoder_only", (name,)).stack.layers:
        for W in layer.cell.forwards.recurrent.split(WIDTH):
            assert_close(W @ W.T, torch.eye(WIDTH, dtype=torch.float64), within=1e-6)


def test_an_lstm_begins_by_keeping_its_content():
    for layer in small_model("decoder_only", ("lstm",)).stack.layers:
        gates = layer.cell.forwards.bias.chunk(4)
        assert [gate.unique().tolist() for gate in gates] == [[0], [1], [0], [0]]  # i, f, c̃, o


@each_cell
@torch.no_grad()
def test_a_language_model_is_torchs(name):
    model, ids = moved_model("decoder_only", (name,)), random_ids(3, 7, seeded(1))
    expected, _ = torchs(name, model.stack, WIDTH, WIDTH)(model.roles["target"](ids))
    assert_close(model.decode(ids), expected, within=1e-10)


@pytest.mark.parametrize("both_ways", [True, False])
@each_cell
@torch.no_grad()
def test_an_encoder_is_torchs_over_packed_sequences_and_so_are_its_last_states(name, both_ways):
    model = moved_model(modifications=(f"{name}:bidirectional={both_ways}",))
    ids = pad(random_rows((6, 2, 4), seeded(2)))
    theirs = torchs(name, model.encoder, WIDTH, WIDTH // 2 if both_ways else WIDTH, both_ways)
    packed = pack_padded_sequence(
        model.roles["source"](ids), (ids != PAD).sum(1), batch_first=True, enforce_sorted=False
    )
    expected, ends = theirs(packed)
    memory = model.encode(ids)
    assert_close(memory.states[-1][memory.real], pad_packed_sequence(expected, batch_first=True)[0][memory.real], 1e-10)
    for state, end in zip(CELLS[name].state, ends if name == "lstm" else [ends], strict=True):
        by_layer = end.unflatten(0, (2, -1)).permute(2, 0, 1, 3).flatten(2)  # of (layers · directions, S, H)
        assert_close(memory.sentences[state], by_layer, within=1e-10)


@each_cell
@torch.no_grad()
def test_a_decoder_starts_where_the_encoder_ended(name):
    model, generator = moved_model(modifications=(name,)), seeded(3)
    memory, ids = model.encode(random_ids(2, 5, generator)), random_ids(2, 4, generator)
    start = tuple(memory.sentences[state].transpose(0, 1).contiguous() for state in CELLS[name].state)
    theirs = torchs(name, model.decoder, WIDTH, WIDTH)
    expected, _ = theirs(model.roles["target"](ids), start if name == "lstm" else start[0])
    assert_close(model.decode(ids, memory), expected, within=1e-10)


# Padding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # torch has a kernel for each
@each_cell
@torch.no_grad()
def test_padding_anywhere_leaves_the_state_as_it_was(name, dtype):
    recurrence, generator = Recurrence(CELLS[name], 3, 4).to(dtype), seeded(4)
    recurrence.forwards.bias.normal_(generator=generator)
    x = torch.randn(5, 5, 3, dtype=dtype, generator=generator)
    state = tuple(torch.randn(5, 4, dtype=dtype, generator=generator) for _ in CELLS[name].state)
    y, after = recurrence(x, state, padded_call(REAL, causal=True))
    within = 1e-12 if dtype == torch.float64 else 1e-6
    for row, real in enumerate(REAL):
        before = tuple(s[row : row + 1] for s in state)
        expected, end = before[0][:, None], before
        for token in x[row, real]:
            h, end = recurrence(token[None, None], end, call_for(token[None, None], causal=True))
            expected = torch.cat([expected, h], 1)
        assert_close(y[row, real], expected[0, 1:], within)
        assert_close(tuple(s[row] for s in after), tuple(s[0] for s in end), within)


@each_cell
def test_a_backward_cell_begins_at_the_last_real_token(name):
    """And no gradient comes from padding, not even where a long product of matrices would explode."""
    recurrence, generator = Recurrence(CELLS[name], 3, 4, both_ways=True).double(), seeded(5)
    with torch.no_grad():
        recurrence.backwards.recurrent.mul_(30)
        recurrence.backwards.bias.normal_(generator=generator)
    x, real = torch.randn(2, 400, 3, dtype=torch.float64, generator=generator), torch.zeros(2, 400).bool()
    real[0, :2] = real[1, -2:] = True
    state = tuple(torch.randn(2, 8, dtype=torch.float64, generator=generator) for _ in CELLS[name].state)
    y, after = recurrence(x.requires_grad_(), state, padded_call(real, causal=False))
    assert_close(y[0, 0, 4:], after[0][0, 4:], 0)
    alone = recurrence.backwards(recurrence.backwards.products(x[:1, 1]), *(s[:1, 4:] for s in state))[0]
    assert_close(y[:1, 1, 4:], alone, within=1e-12)
    of_x, *of_weights = torch.autograd.grad(y[real].sum(), [x, *recurrence.parameters()])
    assert (of_x[~real] == 0).all()
    assert all(gradient.isfinite().all() for gradient in of_weights)


def test_in_single_precision_padding_changes_neither_losses_nor_gradients():
    """torch's kernel for float32 is another than that of the other tests."""
    for modification in (*CELLS, "bahdanau"):
        model = moved_model(modifications=(modification,), dtype=torch.float32)
        rows, sources = random_rows((5, 2), seeded(6)), random_rows((2, 6), seeded(7))

        def gradients(rows, sources, model=model):
            model.zero_grad()
            inputs, targets = pad([row[:-1] for row in rows]), pad([row[1:] for row in rows])
            model(sixfold.Batch(source=pad(sources), inputs=inputs, targets=targets)).sum.backward()
            return [p.grad.clone() for p in model.parameters()]

        together = gradients(rows, sources)
        apart = [gradients([row], [source]) for row, source in zip(rows, sources, strict=True)]
        assert_close(together, [a + b for a, b in zip(*apart, strict=True)], within=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
@each_cell
@torch.no_grad()
def test_padding_does_not_change_the_class(name, side):
    model, rows = moved_model("encoder_only", (name,), classes=3), random_rows((5, 2), seeded(8))
    assert_close(model.classify(pad(rows, side)), torch.cat([model.classify(row[None]) for row in rows]))


@each_cell
def test_products_are_counted_on_the_meta_device_without_a_loop(name):
    model, gates = sixfold.build(small_sizes(), [name], device="meta"), CELLS[name].gates
    operations = count(model, source_length=5, target_length=7).operations_by_part
    one_way, half = gates * WIDTH * (WIDTH + WIDTH), gates * (WIDTH // 2) * (WIDTH + WIDTH // 2)
    assert operations["encoder.cell"] == 5 * 2 * 2 * half  # tokens × layers × directions
    assert operations["decoder.cell"] == 7 * 2 * one_way


# Long distances ----------------------------------------------------------------------------------------------


def test_gates_let_a_gradient_pass_fifty_tokens_and_a_simple_network_does_not():
    """Of a network whose matrix shrinks by 0.9 at every step, 0.9⁵⁰ < 0.6 % could be left at most."""
    norms = {}
    for name, cell in CELLS.items():
        part = Recurrence(cell, 3, 4).double()
        with torch.no_grad():
            part.forwards.recurrent.mul_(0.9)
            hold = {"rnn": [0], "gru": [0, 9, 0], "lstm": [0, 9, 0, 0]}[name]  # the gate that keeps the old content
            part.forwards.bias.copy_(torch.tensor(hold).repeat_interleave(4))
        x = torch.randn(1, 50, 3, dtype=torch.float64, generator=seeded(14)).requires_grad_()
        y, _ = part(x, part.zeros(x), call_for(x, causal=True))
        first, last = torch.autograd.grad(y[:, -1].sum(), x)[0][0, [0, -1]].norm(dim=-1)
        norms[name] = first / last
    assert norms["rnn"] < 0.006
    assert norms["rnn"] < 0.01 * min(norms["gru"], norms["lstm"])


# The bottleneck ----------------------------------------------------------------------------------------------


@each_cell
@torch.no_grad()
def test_without_attention_the_decoder_knows_only_the_last_state(name):
    model, generator = moved_model(modifications=(name,)), seeded(9)
    memory, ids = model.encode(random_ids(2, 5, generator)), random_ids(2, 4, generator)
    blind = memory._replace(states=tuple(torch.randn_like(s) for s in memory.states))
    assert torch.equal(model.decode(ids, blind), model.decode(ids, memory))
    other = memory._replace(sentences={key: state.flip(0) for key, state in memory.sentences.items()})
    assert_close(model.decode(ids.flip(0), other), model.decode(ids, memory).flip(0))


@pytest.mark.parametrize(("encoder", "decoder", "read"), [(4, 2, [2, 3]), (2, 4, [0, 0, 0, 1])])
def test_layers_are_counted_from_the_top_where_the_stacks_differ(encoder, decoder, read):
    model = small_model(modifications=("lstm",), encoder_layers=encoder, decoder_layers=decoder)
    memory = model.encode(random_ids(1, 3, seeded(10)))
    begin = [layer.start(memory, memory.states[0]) for layer in model.decoder.layers]
    for (h, c), layer in zip(begin, read, strict=True):
        assert_close(h, memory.sentences["h"][:, layer], 0)
        assert_close(c, memory.sentences["c"][:, layer], 0)


def test_the_states_of_two_directions_need_an_even_width():
    with pytest.raises(ValueError, match="d_model 15, which is odd; choose an even one, or bidirectional=false"):
        sixfold.build(small_sizes(d_model=15, heads=3), ["lstm"])
    assert sixfold.build(small_sizes(d_model=15, heads=3), ["lstm:bidirectional=false"])


# Decoding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "modification", "tensors"),
    [
        *(("decoder_only", name, len(cell.state)) for name, cell in CELLS.items()),
        *(("encoder_decoder", name, 2) for name in ("lstm", "bahdanau")),
    ],
)
@torch.no_grad()
def test_the_state_does_not_grow_with_the_text(kind, modification, tensors):
    model = moved_model(kind, (modification,), dtype=torch.float32)
    cache = Cache(rows=2) if kind == "decoder_only" else Cache(model.encode(random_ids(2, 5, seeded(11))))
    cache, numbers = cache.select(torch.tensor([[0, 0], [1, 1]])), []
    for _ in range(20):
        model.decode(random_ids(4, 1, seeded(12)), cache=cache)
        numbers.append(sum(state.numel() for states in cache._carried.values() for state in states))
        cache = cache.select(torch.tensor([[1, 0], [2, 2]]))
    assert set(numbers) == {4 * tensors * WIDTH * 2}  # rows × (h, c) × units × layers
    assert not cache._growing
    assert not cache._shared


@each_cell
@torch.no_grad()
def test_one_direction_decodes_as_both_do(name):
    model, generator = moved_model(modifications=(f"{name}:bidirectional=false",)), seeded(13)
    memory, ids = model.encode(pad(random_rows((4, 2), generator), "left")), random_ids(2, 6, generator)
    cache = Cache(memory)
    chunks = [model.decode(ids[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, 6))]
    assert_close(torch.cat(chunks, 1), model.decode(ids, memory))


def test_parts_say_why_they_can_not_be_exported():
    for modification in (*CELLS, "bahdanau"):
        model = small_model(modifications=(modification,))
        reasons = {why for part in model.modules() if (why := declared(part).not_exported)}
        assert len(reasons) == 1
        assert "one length" in reasons.pop()
