"""What every model promises, whatever its modifications: equalities of two routes.

The tests are parametrised over the registry, so that a new modification inherits them: causality, cached = uncached
and alone = in company in every kind of model that it serves, the others in one form each (tests/support/covering.py).
"""

import copy
from functools import cache

import pytest
import torch

from sixfold import PAD, Batch, Cache, Tap, load_model, save
from sixfold.core.memory import Memory
from tests.support.architectures import KINDS, WRITERS, architectures, with_attention
from tests.support.covering import covering
from tests.support.small import VOCAB, assert_close, moved_model, pad, random_ids, random_rows, seeded

SIDES = ("left", "right")

made = cache(moved_model)  # tests that only read a model share it


# Reading and writing, whatever the kind -------------------------------------------------------------


def alone(model, source, ids):
    """The states (L, D) of one row, without company and without a cache."""
    if model.kind == "encoder_decoder":
        return model.decode(ids[None], model.encode(source[None]))[0]
    return model.decode(ids[None])[0] if model.kind == "decoder_only" else model.encode(ids[None])[0]


def states_of(model, ids, real=None, source=None, **rest):
    """The states (B, L, D) of the stack that writes, or of the only one."""
    if model.kind == "encoder_decoder":
        source = random_ids(1, 4, seeded(99)).expand(ids.shape[0], -1) if source is None else source
        return model.decode(ids, model.encode(source), real, **rest)
    return model.decode(ids, real, **rest) if model.kind == "decoder_only" else model.encode(ids, real, **rest)


def reader(model, ids, **rest):
    """The states (S, n, D) of an encoder-decoder's encoder."""
    return model.encode(ids, **rest).states[-1]


def fresh_cache(model, sources):
    return Cache(model.encode(pad(sources))) if model.kind == "encoder_decoder" else Cache(rows=len(sources))


def batch_of(model, rows, sources):
    """A training batch of rows that are one token too long, and of their sources."""
    if model.kind == "encoder_only":
        return Batch(source=pad(rows), targets=pad([row.flip(0) for row in rows]))
    inputs, targets = pad([row[:-1] for row in rows]), pad([row[1:] for row in rows])
    return Batch(source=pad(sources) if model.kind == "encoder_decoder" else None, inputs=inputs, targets=targets)


def surround(ids, pads, side, generator):
    """A row (L,) with garbage at one side, and which of it is real. → (1, L + pads) twice"""
    garbage = torch.randint(0, VOCAB, (pads,), generator=generator)
    parts = [(garbage, False), (ids, True)] if side == "left" else [(ids, True), (garbage, False)]
    real = torch.cat([torch.full((len(part),), is_real) for part, is_real in parts])
    return torch.cat([part for part, _ in parts])[None], real[None]


# Causality -------------------------------------------------------------------------------------------


@covering(architectures(*WRITERS), every="kind")
def test_no_state_depends_on_a_later_input(kind, modifications):
    model, generator = made(kind, modifications), seeded(1)
    memory = (model.encode(random_ids(2, 4, generator)),) if kind == "encoder_decoder" else ()
    embedded = []
    hook = model.roles["target"].register_forward_hook(lambda table, ids, x: embedded.append(x))
    states = model.decode(random_ids(2, 6, generator), *memory)
    hook.remove()
    direction = torch.randn(states.shape[-1], dtype=states.dtype, generator=generator)  # a plain sum is 0 after a norm
    for t in range(6):
        (gradient,) = torch.autograd.grad((states[:, t] @ direction).sum(), embedded, retain_graph=True)
        assert (gradient[:, t + 1 :] == 0).all()
        assert gradient[:, : t + 1].abs().max() > 1e-6


# Padding ---------------------------------------------------------------------------------------------


@covering(architectures(*KINDS), side=SIDES)
def test_padding_does_not_change_the_real_states(kind, modifications, side):
    model, generator = made(kind, modifications), seeded(2)
    row = random_ids(1, 5, generator)[0]
    expected = states_of(model, row[None])
    for pads in (1, 2, 7):
        ids, real = surround(row, pads, side, generator)
        assert_close(states_of(model, ids, real)[real][None], expected)


@covering(architectures("encoder_decoder"), side=SIDES)
def test_padding_of_the_source_does_not_change_the_memory_nor_its_reader(kind, modifications, side):
    model, generator = made(kind, modifications), seeded(3)
    source, target = random_ids(1, 5, generator)[0], random_ids(1, 4, generator)
    memory = model.encode(source[None])
    for pads in (1, 2, 7):
        ids, real = surround(source, pads, side, generator)
        padded = model.encode(ids, real)
        assert_close(padded.states[-1][padded.real], memory.states[-1][0])
        assert_close(model.decode(target, padded), model.decode(target, memory))


@covering(architectures(*KINDS), every="kind", side=SIDES)
def test_a_pad_is_padding_unless_said_otherwise(kind, modifications, side):
    model, generator = made(kind, modifications), seeded(4)
    rows, sources = random_rows((5, 2), generator), random_rows((2, 4), generator)
    states = states_of(model, pad(rows, side), source=pad(sources, side))
    for row, source, got, real in zip(rows, sources, states, pad(rows, side) != PAD, strict=True):
        assert_close(got[real], alone(model, source, row))


@covering(architectures(*KINDS))
def test_a_pad_that_is_said_to_be_real_is_a_word(kind, modifications):
    model = made(kind, modifications)
    ids = torch.tensor([[5, PAD, 7]])
    as_word, as_padding = (states_of(model, ids, real) for real in (torch.ones_like(ids, dtype=torch.bool), None))
    assert (as_word - as_padding)[:, -1].abs().max() > 1e-6


@pytest.mark.parametrize("side", SIDES)
def test_padding_does_not_change_the_class(side):
    model, generator = made("encoder_only", classes=3), seeded(5)
    rows = random_rows((5, 2), generator)
    assert_close(model.classify(pad(rows, side)), torch.cat([model.classify(row[None]) for row in rows]))


@covering(architectures(*KINDS))
def test_a_row_of_padding_has_finite_states_and_gradients(kind, modifications):
    model = moved_model(kind, modifications)
    ids = torch.stack([random_ids(1, 4, seeded(6))[0], torch.zeros(4, dtype=torch.long)])
    states = states_of(model, ids, source=ids)
    states.square().sum().backward()
    assert states.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# The cache -------------------------------------------------------------------------------------------


class Running:
    """Rows that are written together through one cache; each takes along what was written and its states."""

    def __init__(self, model, sources):
        self.model, self.sources, self.generator = model, list(sources), seeded(7)
        self.cache = fresh_cache(model, sources)
        self.rows = [([], []) for _ in sources]  # for each hypothesis: ids (L,) and states (L, D), piece by piece

    def select(self, rows):
        lines = rows if rows.dim() == 2 else rows[:, None]
        self.sources = [self.sources[line[0] // self.cache.width] for line in lines]
        self.rows = [self.rows[row] for row in rows.flatten()]
        self.cache = self.cache.select(rows)

    def join(self, other):
        self.cache = self.cache.join(other.cache)
        self.sources, self.rows = self.sources + other.sources, self.rows + other.rows

    def write(self, *lengths, side="right", garbage=False):
        """Write so many new words in each row."""
        lengths = lengths * len(self.rows) if len(lengths) == 1 else lengths
        new = random_rows(lengths, self.generator)
        ids, real = pad(new, side), None
        if garbage:
            real = ids != PAD
            ids = torch.where(real, ids, random_ids(*ids.shape, self.generator))
        states = self.model.decode(ids, real=real, cache=self.cache)
        real = pad(new, side) != PAD
        self.rows = [([*words, new[i]], [*before, states[i, real[i]]]) for i, (words, before) in enumerate(self.rows)]

    def assert_as_if_alone(self):
        assert self.cache.lengths.tolist() == [len(torch.cat(words)) for words, _ in self.rows]
        for i, (words, states) in enumerate(self.rows):
            source = self.sources[i // self.cache.width]
            assert_close(torch.cat(states), alone(self.model, source, torch.cat(words)))


def running(kind, modifications, lengths=(4, 2, 5)):
    """Rows whose sources have these lengths."""
    return Running(made(kind, modifications), random_rows(lengths, seeded(8)))


@covering(architectures(*WRITERS), every="kind")
@torch.no_grad()
def test_token_by_token_through_a_cache_is_the_whole_at_once(kind, modifications):
    rows = running(kind, modifications)
    for _ in range(6):
        rows.write(1)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_chunks_through_a_cache_are_the_whole_at_once(kind, modifications):
    rows = running(kind, modifications)
    for length in (3, 1, 2):
        rows.write(length)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_selected_rows_go_on_as_if_alone(kind, modifications):
    rows = running(kind, modifications)
    rows.write(3)
    for order in ([2, 0, 1], [1, 1, 0, 2], [3, 0]):  # reordered; one repeated; two dropped
        rows.select(torch.tensor(order))
        rows.write(2)
        rows.write(1)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS), left={"ragged": [1, 0], "even": [0, 0]})
@torch.no_grad()
def test_rows_go_on_without_the_longest(kind, modifications, left):
    rows = running(kind, modifications)
    rows.write(1, 3, 7)
    rows.select(torch.tensor(left))
    rows.write(1)
    rows.write(2)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_hypotheses_share_the_memory_of_their_sentence(kind, modifications):
    rows = running(kind, modifications, lengths=(4, 2))
    rows.write(2)
    memory = rows.cache.memory
    rows.select(torch.tensor([[0, 0, 0], [1, 1, 1]]))  # a beam begins
    rows.write(1)
    rows.select(torch.tensor([[2, 0, 0], [4, 4, 5]]))  # forks, in each sentence apart
    assert rows.cache.memory is memory
    rows.write(2)
    rows.select(torch.tensor([[3, 5], [0, 1]]))  # narrows, and the sentences change places
    rows.write(1)
    rows.select(torch.tensor([3, 0]))  # and ends
    assert rows.cache.width == 1
    rows.write(1)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_hypotheses_may_begin_before_the_first_step_and_have_different_lengths(kind, modifications):
    rows = running(kind, modifications, lengths=(4, 2))
    rows.select(torch.tensor([[0, 0], [1, 1]]))
    rows.write(1, 4, 2, 3)
    rows.write(1)
    rows.select(torch.tensor([[3, 3], [0, 0]]))  # without the longest
    rows.write(2)
    rows.assert_as_if_alone()


def test_one_line_of_hypotheses_has_one_sentence():
    with pytest.raises(ValueError, match="different sentences"):
        Cache(rows=2).select(torch.tensor([[0, 1]]))


@covering(architectures(*WRITERS), every="kind", side=SIDES, garbage={"PAD": False, "garbage": True})
@torch.no_grad()
def test_prefixes_of_different_length_go_on_in_one_batch(kind, modifications, side, garbage):
    rows = running(kind, modifications)
    rows.write(1, 3, 5, side=side, garbage=garbage)
    rows.write(1)
    rows.write(2, 1, 3, side=side, garbage=garbage)
    rows.write(1)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_a_row_may_pause(kind, modifications):
    rows = running(kind, modifications)
    for lengths in ((1, 0, 2), (1, 1, 0), (0, 2, 1)):
        rows.write(*lengths)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS), started={"fresh": 0, "behind": 1, "ahead": 6})
@torch.no_grad()
def test_a_row_may_join_a_running_batch(kind, modifications, started):
    rows, newcomer = running(kind, modifications), running(kind, modifications, lengths=(7,))
    for _ in range(4):
        rows.write(1)
    if started:
        newcomer.write(started)
    rows.join(newcomer)
    rows.write(1)
    rows.write(2)
    rows.select(torch.tensor([3, 1]))
    rows.write(1)
    rows.assert_as_if_alone()


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_a_running_batch_may_join_a_fresh_row(kind, modifications):
    rows, fresh = running(kind, modifications), running(kind, modifications, lengths=(1,))
    rows.write(4)
    fresh.join(rows)
    fresh.write(3, 1, 1, 2)
    fresh.write(1)
    fresh.assert_as_if_alone()


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_beams_of_equal_width_join(kind, modifications):
    rows, others = running(kind, modifications, lengths=(4,)), running(kind, modifications, lengths=(2, 6))
    rows.write(3)
    rows.select(torch.tensor([[0, 0]]))
    others.select(torch.tensor([[0, 0], [1, 1]]))
    others.write(1)
    rows.join(others)
    rows.write(1)
    rows.select(torch.tensor([[5, 4], [1, 0]]))
    rows.write(1)
    rows.assert_as_if_alone()


@torch.no_grad()
def test_a_step_that_breaks_off_can_be_repeated():
    model, ids = made(), random_ids(2, 3, seeded(21))
    memory = model.encode(random_ids(2, 4, seeded(22)))
    cache = Cache(memory)
    model.decode(ids[:, :2], cache=cache)

    def interrupt(*_):
        raise KeyboardInterrupt

    hook = model.decoder.layers[1].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        model.decode(ids[:, 2:], cache=cache)
    hook.remove()
    assert_close(model.decode(ids[:, 2:], cache=cache), model.decode(ids, memory)[:, 2:])


def test_what_cannot_be_joined_is_refused():
    with pytest.raises(ValueError, match="2 hypotheses per sentence here, 1 there"):
        Cache(rows=1).select(torch.tensor([[0, 0]])).join(Cache(rows=1))
    with pytest.raises(ValueError, match="memory"):
        Cache(rows=1).join(Cache(Memory((torch.zeros(1, 2, 16),), None)))


@covering(architectures(*WRITERS))
@torch.no_grad()
def test_a_step_leaves_the_cache_it_was_selected_from_as_it_was(kind, modifications):
    rows = running(kind, modifications)
    rows.write(1, 2, 3)
    before = rows.cache, rows.rows
    rows.select(torch.tensor([0, 1, 2]))
    rows.write(2)
    rows.cache, rows.rows = before
    rows.write(1)
    rows.assert_as_if_alone()


# Saved and loaded ------------------------------------------------------------------------------------


@covering(architectures(*KINDS))
@torch.no_grad()
def test_a_loaded_model_gives_the_same_bits(kind, modifications, tmp_path):
    model, ids = moved_model(kind, modifications, dtype=torch.float32), random_ids(2, 5, seeded(9))
    save(model, tmp_path / "model")
    assert torch.equal(states_of(load_model(tmp_path / "model"), ids), states_of(model, ids))


@torch.no_grad()
def test_a_loaded_classifier_gives_the_same_bits(tmp_path):
    model, ids = moved_model("encoder_only", ("post_norm",), classes=3), random_ids(2, 5, seeded(9))
    save(model, tmp_path / "model")
    assert torch.equal(load_model(tmp_path / "model").classify(ids), model.classify(ids))


# Gradients and losses --------------------------------------------------------------------------------


def gradients(model, batch, auxiliary=False, **rest):
    model.zero_grad()
    torch.manual_seed(10)
    losses = model(batch, **rest)
    total = losses.sum + losses.auxiliary if auxiliary else losses.sum
    total.backward()
    return [total.detach(), *(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters())]


@covering(architectures(*KINDS), dropout={"plain": 0.0, "dropout": 0.3})
def test_recomputing_layers_gives_the_same_gradients(kind, modifications, dropout):
    model, generator = moved_model(kind, modifications, dropout=dropout).train(), seeded(11)
    batch = batch_of(model, random_rows((6, 3), generator), random_rows((2, 5), generator))
    assert_close(*(gradients(model, batch, True, recompute=recompute) for recompute in (True, False)), within=1e-12)


@covering(architectures(*KINDS), smoothing=[0.0, 0.1])
def test_the_loss_of_a_batch_is_the_sum_of_its_rows_losses(kind, modifications, smoothing):
    model, generator = moved_model(kind, modifications), seeded(12)
    rows, sources = random_rows((6, 3, 4), generator), random_rows((2, 5, 3), generator)
    together = gradients(model, batch_of(model, rows, sources), smoothing=smoothing)
    apart = [
        gradients(model, batch_of(model, [row], [source]), smoothing=smoothing)
        for row, source in zip(rows, sources, strict=True)
    ]
    assert_close(together, [sum(each) for each in zip(*apart, strict=True)])
    tokens = sum(len(row) - (kind != "encoder_only") for row in rows)
    assert model(batch_of(model, rows, sources)).tokens == tokens


# Looking inside --------------------------------------------------------------------------------------


def watch(model, ids, source):
    """→ states by the explicit route, and the tap that saw all stacks"""
    tap = Tap()
    if model.kind != "encoder_decoder":
        return states_of(model, ids, tap=tap), tap
    return model.decode(ids, model.encode(source, tap=tap), tap=tap), tap


NAMES = {
    "encoder_decoder": ["encoder.0.attention", "encoder.1.attention"]
    + [f"decoder.{depth}.{part}" for depth in range(2) for part in ("attention", "cross")],
    "decoder_only": ["only.0.attention", "only.1.attention"],
    "encoder_only": ["only.0.attention", "only.1.attention"],
}


@covering(with_attention(*KINDS), every="kind", side=SIDES)
@torch.no_grad()
def test_the_fused_route_is_the_explicit_route(kind, modifications, side):
    model, generator = made(kind, modifications), seeded(13)
    for lengths in ((5, 5), (5, 2)):  # without padding the fused kernel takes another route
        ids, source = pad(random_rows(lengths, generator), side), pad(random_rows(lengths, generator), side)
        explicit, tap = watch(model, ids, source)
        assert list(tap) == NAMES[kind]
        real = ids != PAD
        assert_close(explicit[real], states_of(model, ids, source=source)[real])


@covering(with_attention(*KINDS), side=SIDES)
@torch.no_grad()
def test_weights_are_zero_on_what_is_hidden_and_sum_to_one_on_the_rest(kind, modifications, side):
    model, generator = made(kind, modifications), seeded(14)
    ids, source = pad(random_rows((5, 2), generator), side), pad(random_rows((3, 6), generator), side)
    _, tap = watch(model, ids, source)
    for name in tap:
        stack, _, part = name.split(".")
        keys = source if stack == "encoder" or part == "cross" else ids
        queries = source if stack == "encoder" else ids
        seen = (keys != PAD)[:, None, None, :].expand(-1, 2, queries.shape[1], -1)
        if part == "attention" and (stack == "decoder" or kind == "decoder_only"):
            seen = seen & torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
        assert tap[name].shape == seen.shape
        assert (tap[name][~seen] == 0).all()
        assert (tap[name][seen] > 0).all()
        assert_close(tap[name].sum(-1), seen.any(-1).double(), within=1e-12)


@torch.no_grad()
def test_a_tap_sees_only_what_it_asked_for():
    model, ids = made(), random_ids(2, 3, seeded(15))
    tap = Tap("decoder.1.*", fields=("q", "heads"))
    model.decode(ids, model.encode(ids, tap=tap), tap=tap)
    assert set(tap.seen) == {(f"decoder.1.{part}", f) for part in ("attention", "cross") for f in ("q", "heads")}
    with pytest.raises(KeyError, match=r"decoder\.1\.attention"):
        tap["decoder.0.cross"]
    with pytest.raises(ValueError, match="wieghts"):
        Tap(fields=("wieghts",))


@covering(with_attention(*WRITERS))
@torch.no_grad()
def test_a_tap_on_hypotheses_sees_what_it_sees_without_a_cache(kind, modifications):
    model, generator = made(kind, modifications), seeded(16)
    sources, ids = random_rows((4, 2), generator), random_ids(4, 3, generator)
    cached, whole = (Tap(fields=("weights", "heads", "q")) for _ in range(2))
    model.decode(ids, cache=fresh_cache(model, sources).select(torch.tensor([[0, 0], [1, 1]])), tap=cached)
    states_of(model, ids, source=pad(sources).repeat_interleave(2, 0), tap=whole)
    assert cached.seen.keys() == whole.seen.keys()
    for key, tensor in whole.seen.items():
        assert_close(cached[key], tensor, within=1e-12)


# Switching heads off ---------------------------------------------------------------------------------


@covering(with_attention(*KINDS))
@torch.no_grad()
def test_a_gate_of_ones_changes_nothing(kind, modifications):
    model, ids = made(kind, modifications), random_ids(2, 4, seeded(17))
    gates = {name: torch.ones(1, 2, dtype=torch.float64) for name in NAMES[kind]}
    assert torch.equal(states_of(model, ids, gates=gates), states_of(model, ids))


def part_of(model, name):
    stack, depth, part = name.split(".")
    return getattr(getattr(model, "stack" if stack == "only" else stack).layers[int(depth)], part)


@covering(with_attention(*KINDS))
@torch.no_grad()
def test_a_gate_of_zero_is_a_head_without_columns_in_the_output_matrix(kind, modifications):
    model, ids = made(kind, modifications), random_ids(2, 4, seeded(18))
    for head, name in enumerate(NAMES[kind]):
        gate = torch.ones(1, 2, dtype=torch.float64)
        gate[0, head % 2] = 0
        cut = copy.deepcopy(model)
        part_of(cut, name).output.weight.unflatten(1, (2, 8))[:, head % 2] = 0
        run = reader if name.startswith("encoder") else states_of
        assert_close(run(model, ids, gates={name: gate}), run(cut, ids), within=1e-12)
        assert (run(cut, ids) - run(model, ids)).abs().max() > 1e-6


@covering(with_attention(*KINDS))
@torch.no_grad()
def test_a_gate_for_each_row_acts_on_its_row_only(kind, modifications):
    model, ids = made(kind, modifications), random_ids(3, 4, seeded(19))
    name = NAMES[kind][-1]
    gate = torch.tensor([[1, 1], [0.5, 0], [1, 1]], dtype=torch.float64)
    got, plain = states_of(model, ids, gates={name: gate}), states_of(model, ids)
    assert_close(got[[0, 2]], plain[[0, 2]], within=1e-12)
    assert_close(got[1], states_of(model, ids[1:2], gates={name: gate[1:2]})[0], within=1e-12)
    assert (got[1] - plain[1]).abs().max() > 1e-6


@torch.no_grad()
def test_gates_act_on_hypotheses_that_share_a_memory():
    model, generator = made(), seeded(20)
    sources, ids = random_rows((4, 2), generator), random_ids(4, 3, generator)
    gates = {"decoder.1.cross": torch.rand(4, 2, dtype=torch.float64, generator=generator)}
    cache = fresh_cache(model, sources).select(torch.tensor([[0, 0], [1, 1]]))
    expected = states_of(model, ids, source=pad(sources).repeat_interleave(2, 0), gates=gates)
    assert_close(model.decode(ids, cache=cache, gates=gates), expected)
