"""Programs of torch.export compute what the model computes, whatever the number of rows, the lengths and the past."""

import re
import zipfile
from dataclasses import replace

import pytest
import torch

from sixfold import BOS
from sixfold.core.memory import Memory
from sixfold.decoding.session import never_written
from sixfold.decoding.step import padded
from sixfold.foreign import torch_program
from sixfold.foreign.agreement import compare
from sixfold.foreign.plain_cache import Layout, SourceProgram, StepProgram, read
from sixfold.spec import registry
from sixfold.transformer import CrossAttention, Stack, merge_heads, split_heads
from tests.support.architectures import WRITERS, parts
from tests.support.covering import covering
from tests.support.own_parts import fills
from tests.support.small import (
    MODIFICATIONS,
    assert_close,
    moved_model,
    not_exported,
    pad,
    random_ids,
    random_rows,
    seeded,
)
from tests.support.small_runs import TEXTS, opened

NOT_TRACED = [wish for wish in MODIFICATIONS if not_exported(wish)]
TOKENS = [[5 + (7 * i + j) % 16 for j in range(12)] for i in range(3)]
PROGRAMS = [("encoder_decoder", ("rms_norm", "swiglu")), ("decoder_only", ("t5_bias",))]


def steps(model, source, ids, chunks, begin, step):
    """log p after each chunk, by programs or by modules that are called as they are."""
    real, kept = None, []
    if begin is not None:
        real, *kept = begin(source)
    past = [state.expand(len(ids), *state.shape[1:]) for state in torch_program.empty_past(model, Layout.of(model))]
    found, start = [], 0
    for length in chunks:
        log_probs, *past = step(ids[:, start : start + length], real, kept, past)
        start += length
        found.append(log_probs)
    return found


def whole(model, source, ids, chunks):
    x = model.decode(ids) if source is None else model.decode(ids, model.encode(source))
    ends = torch.tensor(chunks).cumsum(0) - 1
    return list(model.log_probs(x[:, ends]).unbind(1))


@covering(parts(WRITERS, [(), *((wish,) for wish in MODIFICATIONS if wish not in NOT_TRACED)]), every="kind")
@torch.no_grad()
def test_steps_with_explicit_states_equal_one_pass(kind, modifications):
    model = moved_model(kind, modifications)
    layout, generator = Layout.of(model), seeded(5)
    source = pad(random_rows((7, 2, 4), generator)) if kind == "encoder_decoder" else None
    ids, chunks = random_ids(3, 6, generator), (1, 3, 2)
    begin = None if source is None else SourceProgram(model, layout)
    for found, right in zip(
        steps(model, source, ids, chunks, begin, StepProgram(model, layout)),
        whole(model, source, ids, chunks),
        strict=True,
    ):
        assert_close(found, right)


@pytest.fixture(scope="module", params=PROGRAMS, ids=lambda case: " ".join([case[0], *case[1]]))
def written(request, tmp_path_factory):
    """A model, and a folder with its programs."""
    kind, wishes = request.param
    made = opened(kind, wishes, encoder_layers=1, decoder_layers=2)
    folder = tmp_path_factory.mktemp("pt2")
    layout = torch_program.write(made.model, folder)
    return made, folder, torch_program.TorchProgram(folder, made.model, layout, never_written(made.tokenizers.target))


@pytest.mark.parametrize(
    ("lengths", "chunks"), [((7, 2, 4), (1, 3, 2)), ((1,), (1, 1)), ((11, 3), (5, 1))], ids=["three", "one", "two"]
)
@torch.no_grad()
def test_programs_equal_the_model(written, lengths, chunks):
    made, _, engine = written
    source = None
    if made.model.kind == "encoder_decoder":
        source = padded([row[:length] for length, row in zip(lengths, TOKENS, strict=False)], torch.device("cpu"))
    ids = torch.randint(5, 21, (len(lengths), sum(chunks)), generator=seeded(len(lengths)))
    found = steps(made.model, source, ids, chunks, engine.encoder, engine.step)
    for one, right in zip(found, whole(made.model, source, ids, chunks), strict=True):
        assert_close(one, right, within=1e-5)


def test_programs_write_what_the_model_writes(written):
    made, _, engine = written
    agreement = compare(made.model, made.tokenizers, TEXTS, 9, engine)
    assert (agreement.same, agreement.texts) == (len(TEXTS), len(TEXTS))
    assert agreement.log_prob < 1e-4


def test_programs_are_compared_by_their_log_probabilities_too(written):
    made, folder, _ = written
    engine = torch_program.TorchProgram(
        folder, made.model, Layout.of(made.model), never_written(made.tokenizers.target)
    )
    right = engine.step

    def too_sure(*inputs):  # of the same words
        log_probs, *past = right(*inputs)
        return 1.5 * log_probs, *past

    engine.step = too_sure
    agreement = compare(made.model, made.tokenizers, TEXTS, 9, engine)
    assert (agreement.share, agreement.close) == (1, False)


def test_nothing_is_pickled_and_no_program_has_all_weights(written):
    made, folder, engine = written
    for path in folder.iterdir():
        with zipfile.ZipFile(path) as archive:
            sizes = {each.filename: each.file_size for each in archive.infolist()}
            assert not any(archive.read(name) for name in sizes if "sample_inputs" in name)
        weights = sum(size for name, size in sizes.items() if "/weights/weight_" in name)
        all_weights = 4 * sum(p.numel() for p in made.model.parameters())
        assert weights < 0.8 * all_weights if engine.encoder else weights == all_weights


@pytest.mark.parametrize("wish", NOT_TRACED)
def test_what_torch_cannot_trace_is_refused_by_name_with_the_reason_that_it_declares(wish, tmp_path):
    why, name = "|".join(map(re.escape, not_exported(wish))), wish.partition(":")[0]
    model = moved_model(modifications=(wish,), dtype=torch.float32)
    with pytest.raises(ValueError, match=f"^{name} can't be exported to torch: ({why})"):
        torch_program.write(model, tmp_path)


def test_an_encoder_alone_has_no_step(tmp_path):
    with pytest.raises(ValueError, match="encoder_only writes no text"):
        torch_program.write(moved_model("encoder_only"), tmp_path)


@torch.no_grad()
def test_states_grow_by_the_tokens_that_are_read():
    model = moved_model()
    memory = model.encode(torch.full((2, 3), BOS))
    _, cache = read(model, torch.full((2, 4), BOS), memory)
    assert {state.shape for states in cache.grown.values() for state in states} == {(2, 4, 1), (2, 2, 4, 8)}
    assert {state.shape for states in cache.made.values() for state in states} == {(2, 2, 3, 8)}
    assert Layout.of(model).kept == tuple(((depth, "cross"), 2) for depth in range(2))


def test_a_carried_state_has_a_fixed_size():
    model = moved_model("decoder_only", ("lightweight_convolution:widths=3",))
    _, cache = read(model, torch.full((2, 4), BOS), None)
    assert {state.shape for states in cache.grown.values() for state in states} == {(2, 4, 1)}  # the tokens
    assert {state.shape for states in cache.carries.values() for state in states} == {(2, 2, 16)}
    assert torch_program.shapes(torch_program.empty_past(model, Layout.of(model))) == [
        [1, 0, 1],
        [1, 2, 16],
        [1, 2, 16],
    ]


class LeavesHalves(Stack):
    """An encoder that leaves more than its states."""

    def forward(self, x, call):
        states, call = super().forward(x, call)
        return states, replace(call, memory=Memory((), None, tokens={"halves": states[-1] / 2}))


class ReadsHalves(CrossAttention):
    """Attention to what that encoder leaves."""

    def forward(self, x, call):
        (q,) = split_heads(self.q(x), self.heads, 1)
        k, v = call.keep(self.place, self.keys_and_values, of=("halves",))
        return self.output(merge_heads(call.memory_sight.softmax(q @ k.mT) @ v))


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


@torch.no_grad()
def test_a_decoder_may_read_what_an_encoder_leaves_besides_its_states(own_registry):
    model = moved_model(modifications=(fills(stack=LeavesHalves, cross=ReadsHalves),))
    layout, chunks = Layout.of(model), (1, 3, 2)
    source, ids = pad(random_rows((7, 2, 4), seeded(5))), random_ids(3, 6, seeded(6))
    found = steps(model, source, ids, chunks, SourceProgram(model, layout), StepProgram(model, layout))
    for one, right in zip(found, whole(model, source, ids, chunks), strict=True):
        assert_close(one, right)


def test_a_carried_state_that_starts_at_the_memory_is_refused():
    """An LSTM's, which starts where that of the encoder ended: a program's starts at zero."""
    with pytest.raises(ValueError, match="the state that 'cell' carries does not start at zero"):
        Layout.of(moved_model(modifications=("lstm",)))
    assert Layout.of(moved_model("decoder_only", ("lstm",))).carried == tuple(((i, "cell"), 2) for i in range(2))
