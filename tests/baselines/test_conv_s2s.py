"""ConvS2S: equal to its equations; variance at the start, weight normalisation, gradients, windows and refusals."""

import math

import pytest
import torch

import sixfold
from sixfold import Cache, Tap
from sixfold.baselines._shared.weight_norm import NormedLinear
from sixfold.baselines.conv_s2s import with_gradient_times
from tests.support.small import (
    assert_close,
    moved_model,
    pad,
    random_ids,
    random_rows,
    refusal,
    seeded,
    small_model,
    small_sizes,
)

WIDTH, HALF = 16, math.sqrt(0.5)


def example(options="", lengths=(5, 3), seed=1):
    """A model, the sources of two sentences, and texts to write (2, 4)."""
    generator = seeded(seed)
    return (
        moved_model(modifications=(f"conv_s2s{options}",)),
        random_rows(lengths, generator),
        random_ids(2, 4, generator),
    )


# The equations -----------------------------------------------------------------------------------------------


def mapped(part, x):
    """W x + b, row by row: each is g_i times a vector of length 1."""
    rows = [g * v / math.sqrt(sum(v * v)) for g, v in zip(part.g, part.v.weight, strict=True)]
    return torch.stack(rows) @ x + part.b


def convolved(layer, xs, causal):
    """A ⊙ σ(B) of each token, in plain loops."""
    convolution, found = layer.convolution, []
    width = convolution.width
    left = width - 1 if causal else width // 2
    for t in range(len(xs)):
        window = [xs[s] if 0 <= s < len(xs) else torch.zeros(WIDTH).double() for s in range(t - left, t - left + width)]
        a, b = mapped(convolution.map_of_windows, torch.cat(window)).split(WIDTH)
        found.append(a / (1 + (-b).exp()))
    return found


def naive_encoder(stack, es):
    """z_1 … z_n of one sentence."""
    xs = [mapped(stack.first, e) for e in es]
    for layer in stack.layers:
        xs = [(x + y) * HALF for x, y in zip(xs, convolved(layer, xs, causal=False), strict=True)]
    return [mapped(stack.last, x) for x in xs]


def attended(cross, h, g, zs, es):
    """The output of one layer's attention for one word, and the weights."""
    d = (mapped(cross.query, h) + g) * HALF
    scores = torch.stack([d @ z for z in zs])
    a = scores.exp() / scores.exp().sum()
    context = math.sqrt(len(zs)) * sum(a_j * (z + e) * HALF for a_j, z, e in zip(a, zs, es, strict=True))
    return (h + mapped(cross.output, context)) * HALF, a


def naive_decoder(stack, gs, zs, es):
    """The states of one sentence, and the weights of each layer."""
    xs, looks = [mapped(stack.first, g) for g in gs], []
    for layer in stack.layers:
        hs = convolved(layer, xs, causal=True)
        ys, weights = zip(*(attended(layer.cross, h, g, zs, es) for h, g in zip(hs, gs, strict=True)), strict=True)
        xs = [(x + y) * HALF for x, y in zip(xs, ys, strict=True)]
        looks.append(torch.stack(weights))
    return torch.stack([mapped(stack.last, x) for x in xs]), looks


def embedded(model, ids, entrance):
    """0.1 √D E[id] + P[t]"""
    return [0.1 * x + p for x, p in zip(model.roles["source"](ids), entrance.position.table, strict=False)]


@pytest.mark.parametrize("options", ["", ":width=1", ":width=2", ":width=5"])
@torch.no_grad()
def test_it_is_the_loop_of_its_equations(options):
    model, sources, ids = example(options)
    tap, memory = Tap(), model.encode(pad(sources))
    states = model.decode(ids, memory, tap=tap)
    assert sorted(tap) == ["decoder.0.cross", "decoder.1.cross"]
    for row, source in enumerate(sources):
        es, gs = embedded(model, source, model.encoder_input), embedded(model, ids[row], model.decoder_input)
        zs = naive_encoder(model.encoder, es)
        assert_close(memory.states[0][row, : len(source)], torch.stack(zs), within=1e-12)
        expected, looks = naive_decoder(model.decoder, gs, zs, es)
        assert_close(states[row], expected, within=1e-12)
        for layer, weights in enumerate(looks):
            assert_close(tap[f"decoder.{layer}.cross"][row, 0, :, : len(source)], weights, within=1e-12)


@pytest.mark.parametrize("kind", ["decoder_only", "encoder_only"])
@torch.no_grad()
def test_a_single_stack_is_the_layers_without_attention(kind):
    model = moved_model(kind, ("conv_s2s",))
    ids = random_ids(1, 6, seeded(2))
    xs = [0.1 * x + p for x, p in zip(model.roles["target"](ids[0]), model.input.position.table, strict=False)]
    xs = [mapped(model.stack.first, x) for x in xs]
    for layer in model.stack.layers:
        convolutions = convolved(layer, xs, causal=kind == "decoder_only")
        xs = [(x + y) * HALF for x, y in zip(xs, convolutions, strict=True)]
    states = model.decode(ids) if kind == "decoder_only" else model.encode(ids)
    assert_close(states[0], torch.stack([mapped(model.stack.last, x) for x in xs]), within=1e-12)
    assert model.attentions == model.maps == {}


# The start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_variance_is_kept_through_fifteen_layers_at_the_start(dropout):
    """In training mode, each layer of both stacks has 0.5 to 2 times the variance of the embedded words."""
    sizes = {"d_model": 64, "heads": 4, "encoder_layers": 15, "decoder_layers": 15, "vocab": 500, "dropout": dropout}
    model = small_model(modifications=("conv_s2s",), dtype=torch.float32, **sizes).train()
    seen = {"encoder": [], "decoder": []}
    for stack, variances in seen.items():
        getattr(model, f"{stack}_input").register_forward_hook(lambda _, x, y, v=variances: v.append(y[0].var().item()))
        for layer in getattr(model, stack).layers:
            layer.register_forward_hook(lambda _, x, y, v=variances: v.append(y.var().item()))
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(1)
        source, target = (3 + torch.randint(497, (16, 30), generator=seeded(seed)) for seed in (3, 4))
        memory = model.encode(source)
        states = model.decode(target, memory)
    for variances in seen.values():
        assert len(variances) == 16
        assert all(0.5 < v / variances[0] < 2 for v in variances), variances
    of_words = seen["encoder"][0]
    assert of_words == pytest.approx(2 * 0.1**2 / (1 - dropout), rel=0.1)  # words and positions
    assert 0.5 < memory.states[0].var().item() / of_words < 2
    assert 0.5 < memory.tokens["values"].var().item() / 30 / of_words < 2
    assert 0.5 < states.var().item() / of_words < 2


def test_dropout_acts_on_the_decoders_output_and_not_on_the_encoders():
    model = small_model(modifications=("conv_s2s",), dropout=0.5).train()
    with torch.random.fork_rng([]), torch.no_grad():
        torch.manual_seed(2)
        memory = model.encode(random_ids(8, 20, seeded(13)))
        states = model.decode(random_ids(8, 20, seeded(14)), memory)
    assert (memory.states[0] == 0).sum() == 0
    assert (states == 0).double().mean().item() == pytest.approx(0.5, abs=0.05)


@torch.no_grad()
def test_attention_begins_near_the_mean():
    """Scores of 64 products of two numbers of variance 0.02 have the standard deviation 0.16."""
    model = small_model(modifications=("conv_s2s",), d_model=64, heads=4)
    tap = Tap()
    model.decode(random_ids(2, 4, seeded(5)), model.encode(random_ids(2, 10, seeded(6))), tap=tap)
    for name in model.maps:
        assert 0.05 < tap[name].min() < tap[name].max() < 0.2  # around 1/10


# Weight normalisation ----------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_length_of_a_row_is_g_whatever_v_is():
    part = moved_model(modifications=("conv_s2s",)).decoder.layers[0].convolution.map_of_windows
    assert isinstance(part, NormedLinear)
    rows = part(torch.eye(3 * WIDTH).double()) - part(torch.zeros(1, 3 * WIDTH).double())  # Wᵀ
    assert_close(rows.norm(dim=0), part.g, within=1e-12)
    assert_close(rows.T @ part.v.weight.T / part.v.weight.norm(dim=1), rows.T @ (rows / part.g), within=1e-12)
    part.v.weight.mul_(7)
    again = part(torch.eye(3 * WIDTH).double()) - part(torch.zeros(1, 3 * WIDTH).double())
    assert_close(again, rows, within=1e-12)


def test_the_gradient_of_v_has_no_part_along_v():
    """W does not change with the length of v, so a step leaves it to g to change the length."""
    part, x = NormedLinear(5, 3).double(), torch.randn(4, 5, dtype=torch.float64, generator=seeded(12))
    part(x).square().sum().backward()
    assert part.v.weight.grad.abs().min() > 1e-6
    assert_close((part.v.weight.grad * part.v.weight).sum(1), torch.zeros(3).double(), within=1e-12)


def test_every_matrix_but_the_table_is_normalised():
    model = small_model(modifications=("conv_s2s",), dropout=0.36)
    maps = {name: part for name, part in model.named_modules() if isinstance(part, NormedLinear)}
    matrices = {name for name, p in model.named_parameters() if p.dim() > 1}
    others = {"tables.0.weight", "encoder_input.position.table", "decoder_input.position.table"}
    assert matrices == others | {f"{name}.v.weight" for name in maps}
    gains = {"map_of_windows": 2 * 0.8, "first": 0.8, "last": 1, "query": 1, "output": 1}  # √(1 − p) = 0.8
    for name, part in maps.items():
        gain = gains[name.rpartition(".")[2]]
        assert part.g.tolist() == pytest.approx([gain] * len(part.g))
        assert part.v.weight.norm(dim=1).mean().item() == pytest.approx(gain, rel=0.1)


# Gradients ---------------------------------------------------------------------------------------------------


def test_a_scaled_gradient_leaves_the_value_bit_for_bit():
    x = torch.randn(5, requires_grad=True, generator=seeded(7))
    y = with_gradient_times(x, 0.125)
    assert torch.equal(y, x)
    y.sum().backward()
    assert x.grad.tolist() == [0.125] * 5


def test_the_encoder_gets_half_of_a_layers_share_of_the_gradient_and_the_source_words_get_all_of_theirs():
    model, sources, ids = example()
    source = sources[0][None].expand(2, -1)
    memory = model.encode(source)
    keys, values = memory.states[0].detach().requires_grad_(), memory.tokens["values"].detach().requires_grad_()
    direction = torch.randn(2, 4, WIDTH, dtype=torch.float64, generator=seeded(8))
    read = memory._replace(states=(keys, keys), tokens={"values": values})
    of_keys, of_values = torch.autograd.grad((model.decode(ids, read) * direction).sum(), [keys, values])
    of_values = of_values * HALF * math.sqrt(5)  # with respect to z + e
    entrance = model.encoder_input.position.table
    wanted = [model.encoder.last.b, entrance]
    got = torch.autograd.grad((model.decode(ids, memory) * direction).sum(), wanted, retain_graph=True)
    assert_close(got[0], (of_keys + of_values).sum((0, 1)) / (2 * 2), within=1e-12)
    (through,) = torch.autograd.grad(memory.states[0], entrance, of_keys + of_values)  # already divided by 4
    expected = through[:5] + of_values.sum(0)
    assert_close(got[1][:5], expected, within=1e-12)


# Decoding ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_while_decoding_a_layer_keeps_its_window_and_all_share_keys_and_values():
    model, sources, ids = example(":width=4")
    cache, numbers = Cache(model.encode(pad(sources))).select(torch.tensor([[0, 0], [1, 1]])), set()
    for word in ids.repeat(2, 3).split(1, 1):
        model.decode(word, cache=cache)
        numbers.add(sum(state.numel() for states in cache._carried.values() for state in states))
    assert numbers == {2 * 4 * 3 * WIDTH}  # layers × rows × (w − 1) tokens
    assert not cache._growing
    assert not cache._shared
    assert len(cache._kept) == 1


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_a_state_depends_on_a_window_of_each_layer(width):
    """In a language model on 1 + l (w − 1) words, in an encoder on that many around it."""
    for kind in ("decoder_only", "encoder_only"):
        model = small_model(kind, (f"conv_s2s:width={width}",))
        table, seen = model.roles["target"], []
        table.register_forward_hook(lambda part, ids, x, seen=seen: seen.append(x))
        states = (model.decode if model.writes_text else model.encode)(random_ids(1, 23, seeded(9)))
        direction = torch.randn(WIDTH, dtype=torch.float64, generator=seeded(10))
        (gradient,) = torch.autograd.grad(states[0, 11] @ direction, seen)
        reached = gradient[0].ne(0).any(-1).nonzero()[:, 0].tolist()
        before = 2 * (width - 1 if model.writes_text else width // 2)
        assert reached == list(range(11 - before, 12 - before + 2 * (width - 1)))


@torch.no_grad()
def test_a_gate_scales_the_context():
    model, sources, ids = example()
    memory = model.encode(pad(sources))
    assert model.attentions == {"decoder.0.cross": 1, "decoder.1.cross": 1}
    closed = {name: torch.zeros(1, 1).double() for name in model.attentions}
    gated = model.decode(ids, memory, gates=closed)
    assert_close(gated, model.decode(ids, model.encode(pad(sources).flip(0)), gates=closed), within=0)
    assert (gated - model.decode(ids, memory)).abs().max() > 1e-6


def test_a_text_beyond_the_positions_is_refused():
    model = small_model(modifications=("conv_s2s:length=4",))
    with pytest.raises(ValueError, match="5 positions, but this model has learned only 4"):
        model.encode(random_ids(1, 5, seeded(11)))


# Parameters, options, company --------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"width": 5}, {"width": 1, "length": 7}])
def test_the_number_of_parameters_is_that_of_the_formula(options):
    sizes = small_sizes(d_model=24, heads=3, encoder_layers=4, decoder_layers=3)
    plain, ours = (sixfold.build(sizes, wishes, device="meta") for wishes in ([], [("conv_s2s", options)]))
    numbers = [sum(p.numel() for p in model.parameters()) for model in (plain, ours)]
    assert numbers[1] - numbers[0] == sixfold.spec.registry.find("conv_s2s").adds(sizes, **options)
    d, w = 24, options.get("width", 3)
    assert sum(p.numel() for p in ours.encoder.layers[0].parameters()) == 2 * w * d * d + 4 * d
    assert sum(p.numel() for p in ours.decoder.layers[0].cross.parameters()) == 2 * (d * d + 2 * d)


@pytest.mark.parametrize("option", ["width=0", "length=0", "width=100", "width=two"])
def test_options_without_meaning_are_refused(option):
    with pytest.raises(ValueError, match=r"width|length"):
        sixfold.build(small_sizes(), [f"conv_s2s:{option}"], device="meta")


@pytest.mark.parametrize(
    ("other", "slot"),
    [
        *((position, "position") for position in ("rotary", "shaw", "t5_bias", "learned_positions", "no_positions")),
        *((attention, "attention") for attention in ("synthesizer_dense", "lightweight_convolution")),
        *[("swiglu", "feed_forward"), ("gelu", "activation"), ("rms_norm", "norm"), ("post_norm", "final")],
        *[("transparent_attention", "bridge"), ("cross_heads", "decoder_stack"), ("universal:steps=2", "stack")],
    ],
)
def test_what_it_does_not_read_is_refused(other, slot):
    for pair in (("conv_s2s", other), (other, "conv_s2s")):
        why = refusal("encoder_decoder", *pair)
        assert why is not None, pair
        assert all(word in why for word in ("conv_s2s", other.partition(":")[0], slot)), why
