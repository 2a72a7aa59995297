"""The step function of a search: from the newest tokens of each row to the scores of all next words.

    step(ids, state) → Step(scores, log_z, state, attention)        log p(word) = scores[word] − log_z

A search knows this function and not the model. A state holds rows; `select` chooses among them, and `join` adds those
of another state. Each of these, and a step, uses up the state that it is given and returns the next one. `ModelStep` is
the step function of a model; a test can use a table of probabilities.

Letters: B rows, L new tokens, V words, S sentences, n source length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from sixfold.core.forms import SoftmaxForm
from sixfold.core.ids import PAD
from sixfold.core.inputs import check_gates, check_tap
from sixfold.core.memory import concatenate
from sixfold.core.parts import form_of
from sixfold.core.state import Cache
from sixfold.core.tap import Tap, Taps
from sixfold.decoding.cpu import kernels
from sixfold.models.model import Gates, Model

PART = 384  # largest number of source tokens that a CPU encodes in one pass


class State(Protocol):
    """The rows that a step function continues."""

    light: bool  # whether `select` copies next to nothing

    def select(self, rows: Tensor) -> Self:
        """The state of these rows, (S, w): those of one line belong to one sentence."""

    def join(self, other: Self, free: Sequence[int]) -> Self:
        """The sentences of both. The other's replace the sentences at the indices `free`; the rest are appended."""

    def release(self) -> None:
        """Return the buffers to their pool, at the end of a search. The state can't be used any more."""


class Step(NamedTuple):
    """The result of reading the newest tokens."""

    scores: Tensor  # (B, V): of every word that may come next
    log_z: Tensor  # (B,): to subtract from scores, which gives log-probabilities
    state: Any  # a State, for the next step
    attention: Tensor | None = None  # (B, n): attention of the newest token to the source, on request
    seen: Tap | None = None  # a tap with the tensors of this step's rows, on request


class StepFunction(Protocol):
    """Reads sources, then tokens step by step."""

    device: torch.device

    def begin(self, sources: Sequence[Sequence[int]]) -> Any:
        """Read the sources. → the state before the first step"""

    def __call__(self, ids: Tensor, state: Any) -> Step:
        """Read tokens (B, L). The scores are valid until the next step, and the caller may change them."""


class GatedStep(ABC):
    """A step function that can scale the outputs of heads; a gate of 0 switches a head off."""

    device: torch.device

    @abstractmethod
    def check_gates(self, gates: Gates) -> None:
        """Raise a ValueError unless these gates of one sentence, (1, H) each, can be applied."""

    @abstractmethod
    def begin(self, sources: Sequence[Sequence[int]], gates: Gates | None = None) -> Any:
        """As in StepFunction, with gates (S, H)."""

    @abstractmethod
    def __call__(self, ids: Tensor, state: Any, gates: Gates | None = None) -> Step:
        """As in StepFunction, with gates (B, H)."""


class _Ungated(GatedStep):
    """A step function without gates."""

    def __init__(self, step: StepFunction):
        self.step, self.device = step, step.device

    def check_gates(self, gates: Gates) -> None:
        raise ValueError(
            f"{type(self.step).__name__} can't gate heads: make the step with make_step(model, gated=True), "
            "or the session with gates={}"
        )

    def begin(self, sources: Sequence[Sequence[int]], gates: Gates | None = None) -> Any:
        return self.step.begin(sources)

    def __call__(self, ids: Tensor, state: Any, gates: Gates | None = None) -> Step:
        return self.step(ids, state)


def with_gates(step: StepFunction) -> GatedStep:
    """The step function itself, if it declares that it takes gates; otherwise one that refuses them."""
    return step if isinstance(step, GatedStep) else _Ungated(step)


class ModelStep(GatedStep):
    """The step function of an encoder-decoder, or of a decoder alone, through the layers as they are written.

    `ids` (B, L) are the new tokens of each row; rows of different length are padded at the left, so that the newest
    token is the last. With `watch="decoder.3.cross"`, each step returns the attention of this part, as the mean over
    its heads. A `tap` collects from every pass, that of the encoder included, and each step returns a tap with the
    tensors of its own pass.
    """

    def __init__(self, model: Model, watch: str | None = None, tap: Tap | None = None):
        if not model.writes_text:
            raise ValueError(f"an {model.kind} model writes no text")
        if watch is not None and watch not in model.maps:
            raise ValueError(f"there is no attention {watch!r} to watch; there are {', '.join(model.maps)}")
        check_tap(tap)
        names = dict.fromkeys([*model.maps, *model.attentions])
        if tap is not None and not any(map(tap.wants, names)):
            raise ValueError(f"no attention is named {' or '.join(tap.patterns)}; there are {', '.join(names)}")
        self.model: Any = model
        self.watch, self.tap = watch, tap
        self.device = next(model.parameters()).device

    def check_gates(self, gates: Gates) -> None:
        check_gates(gates, self.model.attentions, 1)

    def begin(self, sources: Sequence[Sequence[int]], gates: Gates | None = None) -> Cache:
        """The state before the first step. A decoder alone has no sources: each is empty."""
        if not self.model.reads_source:
            return Cache(rows=len(sources), device=self.device)
        at_once = self.device.type != "cpu" or self.tap is not None  # the tap keeps one pass, so there is only one
        memories, first = [], 0
        for part in [sources] if at_once else parts_of(sources):
            own = gates_for(self.model, gates, slice(first, first + len(part)))
            memories.append(self.model.encode(padded(part, self.device), tap=self.tap, gates=own))
            first += len(part)
        return Cache(concatenate(memories))

    def __call__(self, ids: Tensor, state: Cache, gates: Gates | None = None) -> Step:
        seen = None if self.tap is None else self.tap.fresh()
        watching = None if self.watch is None else Tap(self.watch)
        taps = [tap for tap in (self.tap, seen, watching) if tap is not None]
        tap, gates = Taps(*taps) if taps else None, gates_for(self.model, gates)
        x = self.model.decode(ids, cache=state, tap=tap, gates=gates)[:, -1]
        scores, log_z = next_words(self.model, x)
        attention = None if watching is None or self.watch is None else watching[self.watch][:, :, -1].mean(1)
        return Step(scores, log_z, state, attention, seen)


def gates_for(model: Model, gates: Gates | None, rows: slice = slice(None)) -> Gates | None:
    """The gates of these rows, with the device and precision of the model. A gate with one row is for all rows."""
    weight = next(model.parameters())
    own = {name: gate if len(gate) == 1 else gate[rows] for name, gate in (gates or {}).items()}
    return {name: gate.to(weight) for name, gate in own.items()} or None


def gates_of_rows(gates: Sequence[Gates | None], width: int, device: torch.device) -> Gates | None:
    """The gates of each sentence, (1, H) → those of the rows of a batch, (S·w, H); None if no sentence has any.

    A sentence without gates for a part gets the factor 1 for its heads.
    """
    like = {name: gate for each in gates for name, gate in (each or {}).items()}
    ones = {name: torch.ones_like(gate, device=device) for name, gate in like.items()}
    every = [ones | {name: gate.to(device) for name, gate in (each or {}).items()} for each in gates]
    return {name: torch.cat([each[name] for each in every]).repeat_interleave(width, 0) for name in like} or None


def next_words(model: Model, x: Tensor) -> tuple[Tensor, Tensor]:
    """States (B, D) → scores (B, V) and the logarithm of their normaliser (B,).

    A search needs no normalised scores, so a softmax head gives its logits. Other heads give log-probabilities, whose
    normaliser is 1.
    """
    if not isinstance(form_of(model.head), SoftmaxForm):
        log_probs = model.log_probs(x)
        return log_probs, log_probs.new_zeros(log_probs.shape[0])
    logits = model.roles["output"].logits(x)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits, log_normaliser(logits)


def log_normaliser(scores: Tensor) -> Tensor:
    """log Σ exp scores, (B, V) → (B,). On a CPU by a kernel that reads the scores twice and writes nothing else."""
    if scores.device.type != "cpu" or scores.dtype != torch.float32 or scores.requires_grad:
        return scores.logsumexp(-1)
    log_z = scores.new_empty(len(scores))
    kernels.log_normaliser(scores.contiguous().numpy(), log_z.numpy())
    return log_z


def parts_of(sources: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    """Consecutive sources to be encoded in one pass: as many as a CPU's caches can hold the states of."""
    return (sources[part.start : part.stop] for part in batches(map(len, sources), PART))


def batches(lengths: Iterable[int], tokens: int) -> Iterator[range]:
    """Rows of these lengths in batches of consecutive ones: rows × the longest ≤ `tokens`, or one row alone."""
    first, end, longest = 0, 0, 0
    for length in lengths:
        if end > first and max(longest, length) * (end + 1 - first) > tokens:
            yield range(first, end)
            first, longest = end, 0
        end, longest = end + 1, max(longest, length)
    if end > first:
        yield range(first, end)


def batches_by_length(sizes: Sequence[tuple[int, ...]], tokens: int) -> Iterator[list[int]]:
    """The indices of rows in batches as above, the longest first: rows of similar length come together.

    The first number of a size is the length; others order rows of equal length.
    """
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    for part in batches((sizes[index][0] for index in order), tokens):
        yield order[part.start : part.stop]


def padded(rows: Sequence[Sequence[int]], device: torch.device, side: str = "right") -> Tensor:
    """Rows of ids → (B, L), padded with PAD at one side."""
    length = max(map(len, rows))
    fill = [[PAD] * (length - len(row)) for row in rows]
    lines = [[*row, *pad] if side == "right" else [*pad, *row] for row, pad in zip(rows, fill, strict=True)]
    return torch.tensor(lines, dtype=torch.long, device=device)
