"""LSTMs with experts: gating and its losses by hand, equal to its equations, expert by expert and word by word."""

import math

import pytest
import torch

import sixfold
from sixfold import Batch, Cache, Tap
from sixfold.baselines._shared.cells import LSTMCell
from sixfold.baselines._shared.noisy_gating import NoisyGate, chances, squared_variation, visits
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

WIDTH, NAME, WISH = 16, "decoder.0.cross", "moe_lstm:experts=4,k=2"


def close_to(values):
    return pytest.approx(values, abs=1e-4)


# Gating ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (1, [0.8413, 0.1587, 0.0228]),  # Φ(1), Φ(−1), Φ(−2): the first is compared with the second, the rest with it
        (2, [0.9772, 0.8413, 0.1587]),  # Φ(2), Φ(1), Φ(−1): the first two are compared with the third, it with them
        (3, [1, 1, 1]),
    ],
)
def test_probabilities_by_hand(k, expected):
    """Scores 2, 1, 0 with noise of standard deviation 1, of which 0 was drawn."""
    scores = torch.tensor([[2.0, 1.0, 0.0]])
    assert chances(scores, scores, torch.ones(1, 3), k)[0].tolist() == close_to(expected)


@pytest.mark.parametrize("k", [1, 2])
def test_the_probability_is_how_often_an_expert_is_chosen_when_its_own_noise_is_drawn_again(k):
    generator, draws = seeded(1), 40_000
    clean, noise, std = (torch.randn(5, dtype=torch.float64, generator=generator) for _ in range(3))
    std = std.abs() + 0.2
    noisy = clean + noise * std
    found = chances(clean[None], noisy[None], std[None], k)[0]
    for expert in range(5):
        again = noisy.repeat(draws, 1)
        again[:, expert] = clean[expert] + std[expert] * torch.randn(draws, dtype=torch.float64, generator=generator)
        chosen = visits(again, k, None).experts
        assert (chosen == expert).any(1).double().mean().item() == pytest.approx(found[expert].item(), abs=0.01)


def test_the_square_of_the_variation_is_zero_if_all_is_even_and_n_minus_1_if_one_has_all():
    assert squared_variation(torch.full((8,), 3.0)) == 0
    assert squared_variation(torch.tensor([0.0, 0, 0, 0, 12])).item() == pytest.approx(4)
    assert squared_variation(torch.tensor([1.0, 3])).item() == pytest.approx(0.25)  # 1 / 2²


def test_without_scores_chance_gives_each_expert_the_same_load():
    """10,000 tokens, 8 experts of which each visits 2: 2,500 visits each, and Σ P is as large."""
    gate = NoisyGate(WIDTH, 8, 2).train()
    assert not gate.score.any()
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        found = gate(torch.randn(10_000, WIDTH), None)
    counts = torch.bincount(found.experts.flatten(), minlength=8)
    for load in (counts, found.load, found.importance * 2):
        assert (load / 2500 - 1).abs().max() < 0.05
    assert (found.load / 2500 - 1).abs().max() < 0.03


def test_without_noise_the_best_experts_are_visited_with_the_softmax_of_their_scores():
    scores = torch.tensor([[0.0, 3, 1, 3], [5, 4, 3, 2], [1, 1, 1, 1]])
    found = visits(scores, 2, torch.tensor([True, True, False]))
    assert found.experts.tolist() == [[1, 3], [0, 1], [4, 4]]  # of equal scores the first; padding visits none
    e = math.e
    assert found.gates[:2].flatten().tolist() == pytest.approx([0.5, 0.5, e / (e + 1), 1 / (e + 1)])
    assert found.importance.tolist() == pytest.approx([e / (e + 1), 0.5 + 1 / (e + 1), 0, 0.5])
    assert found.load.tolist() == [1, 2, 0, 1]


# The layer ---------------------------------------------------------------------------------------------------


def naive_experts(layer, x):
    """σ(Σ G_i E_i(x)) of one token, with all experts in a loop."""
    scores, total = layer.gate.score @ x, 0
    best = scores.argsort(descending=True)[: layer.gate.k]
    for expert, gate in zip(best, scores[best].softmax(0), strict=True):
        total = total + gate * (torch.relu(x @ layer.experts.inner[expert]) @ layer.experts.outer[expert])
    return total.sigmoid()


def lstm(cell, x, h, c):
    """A step, written down once more."""
    i, f, new, o = (cell.recurrent @ h + cell.input @ x + cell.bias).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def over(cell, xs):
    """h of each x, from left to right."""
    state, found = (torch.zeros(cell.units).double(),) * 2, []
    for x in xs:
        state = lstm(cell, x, *state)
        found.append(state[0])
    return found


def added(xs, ys):
    return [x + y for x, y in zip(xs, ys, strict=True)]


def naive_reader(stack, cells, xs):
    """The last states of one text. `cells`: one for each layer; a pair reads in both directions."""
    for number, cell in enumerate(cells, start=1):
        if number == len(cells):
            xs = added(xs, [naive_experts(stack.experts, x) for x in xs])
        if isinstance(cell, tuple):
            forth, back = over(cell[0], xs), over(cell[1], xs[::-1])[::-1]
            xs = added(xs, [torch.cat(pair) for pair in zip(forth, back, strict=True)])
        else:
            xs = added(xs, over(cell, xs))
    return xs


def of_encoder(model):
    """The cells of the encoder, the first two as a pair."""
    first, *above = [layer.cell for layer in model.encoder.layers]
    return [(first.forwards, first.backwards), *(cell.forwards for cell in above)]


def naive_decoder(model, memory, embedded_LD):
    """The last states of one sentence, word by word, and the weights."""
    bottom, *above = model.decoder.layers
    cross = bottom.cross
    states = [(torch.zeros(WIDTH).double(),) * 2 for _ in model.decoder.layers]
    context, outputs, looks = torch.zeros(WIDTH).double(), [], []
    for y in embedded_LD:
        states[0] = lstm(bottom.cell, torch.cat([y, context]), *states[0])
        query = torch.tanh(cross.query.weight @ states[0][0])
        alpha = torch.stack([(cross.score * query) @ torch.tanh(cross.key.weight @ e) for e in memory]).softmax(0)
        context = sum(a * e for a, e in zip(alpha, memory, strict=True))
        x = y + states[0][0]
        for number, layer in enumerate(above, start=1):
            if number == len(above):
                x = x + naive_experts(model.decoder.experts, x)
            states[number] = lstm(layer.cell.forwards, torch.cat([x, context]), *states[number])
            x = x + states[number][0]
        outputs.append(x)
        looks.append(alpha)
    return torch.stack(outputs), torch.stack(looks)


@pytest.mark.parametrize("layers", [2, 3])
@torch.no_grad()
def test_a_language_model_is_the_loop_of_its_equations(layers):
    model, ids = moved_model("decoder_only", (WISH,), decoder_layers=layers), random_ids(2, 5, seeded(1))
    cells = [layer.cell.forwards for layer in model.stack.layers]
    assert len(cells) == layers
    for row, states in zip(ids, model.decode(ids), strict=True):
        expected = naive_reader(model.stack, cells, [*model.roles["target"](row)])
        assert_close(states, torch.stack(expected), within=1e-10)


@pytest.mark.parametrize(("encoder", "decoder"), [(2, 3), (3, 2)])
@torch.no_grad()
def test_an_encoder_and_a_decoder_are_the_loops_of_their_equations(encoder, decoder):
    model = moved_model(modifications=(WISH,), encoder_layers=encoder, decoder_layers=decoder)
    sources, ids, tap = random_rows((4, 2), seeded(1)), random_ids(2, 3, seeded(2)), Tap()
    memory = model.encode(pad(sources))
    states = model.decode(ids, memory, tap=tap)
    assert list(tap) == [NAME]
    for row, source in enumerate(sources):
        read = naive_reader(model.encoder, of_encoder(model), [*model.roles["source"](source)])
        assert_close(memory.states[0][row, : len(source)], torch.stack(read), within=1e-10)
        expected, looks = naive_decoder(model, read, model.roles["target"](ids[row]))
        assert_close(states[row], expected, within=1e-10)
        assert_close(tap[NAME][row, 0, :, : len(source)], looks, within=1e-10)


@torch.no_grad()
def test_one_expert_is_a_plain_feed_forward_network():
    """G is 1: y = σ(φ(x W₁) W₂), also with noise."""
    model = small_model("decoder_only", ("moe_lstm:experts=1,k=1",))
    layer, x = model.stack.experts, torch.randn(2, 5, WIDTH, dtype=torch.float64, generator=seeded(1))
    call = sixfold.core.inputs.begin(torch.ones(2, 5, dtype=torch.long), None, causal=True)
    expected = (torch.relu(x @ layer.experts.inner[0]) @ layer.experts.outer[0]).sigmoid()
    for mode in (False, True):
        assert_close(layer.train(mode)(x, call), expected, within=1e-12)


def test_the_losses_are_those_of_the_formula_without_padding():
    """Both weights and both CV², from P and G of the real tokens alone; in evaluation there is none."""
    model = small_model("encoder_only", ("moe_lstm:experts=4,k=2,importance=0.3,load=0.7",))
    layer, generator = model.stack.experts, seeded(2)
    with torch.no_grad():
        layer.gate.score.normal_(generator=generator)
        layer.gate.noise.normal_(generator=generator)
    ids, seen = pad(random_rows((6, 3), generator)), []
    layer.register_forward_pre_hook(lambda part, given: seen.append(given[0]))
    assert model(Batch(source=ids, targets=ids)).auxiliary == 0
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        loss = model.train()(Batch(source=ids, targets=ids)).auxiliary
        torch.manual_seed(1)
        noise = torch.randn(12, 4, dtype=torch.float64).view(2, 6, 4)
    real = ids != sixfold.PAD
    x, noise = seen[-1][real], noise[real]
    assert len(x) == 9
    clean, std = x @ layer.gate.score.T, torch.nn.functional.softplus(x @ layer.gate.noise.T) + 0.01
    noisy, G, P = clean + noise * std, torch.zeros(9, 4).double(), torch.zeros(9, 4).double()
    for token in range(9):
        best = noisy[token].topk(2)
        G[token, best.indices] = best.values.softmax(0)
        for expert in range(4):
            others = noisy[token][[e for e in range(4) if e != expert]].sort(descending=True).values
            P[token, expert] = torch.special.ndtr((clean[token, expert] - others[1]) / std[token, expert])
    variation = [values.sum(0).var(correction=0) / values.sum(0).mean() ** 2 for values in (G, P)]
    assert_close(loss, 0.3 * variation[0] + 0.7 * variation[1])
    loss.backward()
    assert layer.gate.score.grad.any()
    assert layer.gate.noise.grad.any()


@torch.no_grad()
def test_only_training_has_noise():
    model, ids = small_model("decoder_only", (WISH,)), random_ids(4, 8, seeded(3))
    assert torch.equal(model.decode(ids), model.decode(ids))
    model.train()
    assert not torch.equal(model.decode(ids), model.decode(ids))


def test_the_sigmoid_is_inside_of_dropout_and_residual():
    """With experts that say 0, the layer adds 1/2 to each number; dropout makes that 0 or 1."""
    model = small_model("decoder_only", (WISH,), dropout=0.5)
    stack = model.stack
    torch.nn.init.zeros_(stack.experts.experts.outer)
    torch.nn.init.zeros_(stack.layers[0].cell.forwards.recurrent)
    x, call = torch.zeros(1, 9, WIDTH).double(), sixfold.core.inputs.begin(torch.ones(1, 9).long(), None, causal=True)
    states, _ = stack(x, call)
    assert_close(states[2] - states[1], torch.full_like(x, 0.5), within=0)
    with torch.random.fork_rng([]):
        torch.manual_seed(1)
        states, _ = stack.train()(x, call)
    assert set((states[2] - states[1]).unique().tolist()) == {0.0, 1.0}


@torch.no_grad()
def test_hypotheses_with_a_tap_and_gates_go_on_as_without_a_cache():
    model, sources = moved_model(modifications=(WISH,)), random_rows((4, 2), seeded(1))
    ids, gates = random_ids(4, 5, seeded(2)), {NAME: torch.rand(4, 1, dtype=torch.float64, generator=seeded(3))}
    cached, whole = (Tap(fields=("weights", "heads")) for _ in range(2))
    expected = model.decode(ids, model.encode(pad(sources).repeat_interleave(2, 0)), tap=whole, gates=gates)
    cache = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0], [1, 1]]))
    assert_close(model.decode(ids[:, :2], cache=cache, gates=gates), expected[:, :2], within=1e-12)
    states = model.decode(ids[:, 2:], cache=cache, tap=cached, gates=gates)
    assert_close(states, expected[:, 2:], within=1e-12)
    for key in ((NAME, "weights"), (NAME, "heads")):
        assert_close(cached[key], whole[key][:, :, 2:], within=1e-12)


# Sizes and mistakes --------------------------------------------------------------------------------------------


def test_the_papers_language_model_has_as_many_parameters_as_its_formula():
    """Two LSTMs of 512 units and 256 experts of 1,048,576 weights, with two matrices that choose."""
    sizes = small_sizes(d_model=512, d_head=8)
    model = sixfold.build(sizes, ["moe_lstm:experts=256,k=4,d_expert=1024"], "decoder_only", device="meta")
    expected = 2 * LSTMCell.parameters_of(512, 512) + 256 * (1_048_576 + 2 * 512)
    assert sum(p.numel() for p in model.stack.parameters()) == expected


@pytest.mark.parametrize(
    ("options", "kind", "sizes", "message"),
    [
        ("experts=2,k=3", "decoder_only", {}, "a token visits k = 3 experts, but there are only 2"),
        ("k=0", "decoder_only", {}, "k must be at least 1, got 0"),
        ("load=-1", "decoder_only", {}, "load must be at least 0, got -1"),
        ("k=1", "decoder_only", {"decoder_layers": 1}, "give the model 2 layers or more"),
        ("k=1", "encoder_decoder", {"encoder_layers": 1}, "give the encoder 2 layers or more"),
        ("k=1", "encoder_decoder", {"decoder_layers": 1}, "give the decoder 2 layers or more"),
        ("k=1", "encoder_only", {"d_model": 15, "heads": 1, "d_head": 4}, "d_model 15, which is odd"),
    ],
)
def test_what_it_can_not_be(options, kind, sizes, message):
    with pytest.raises(ValueError, match=f"moe_lstm: .*{message}"):
        sixfold.build(small_sizes(**sizes), [f"moe_lstm:{options}"], kind)
