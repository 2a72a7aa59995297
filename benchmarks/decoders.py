"""The contenders of decoding.py: each writes so many tokens for each source, and then the end."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from training_step import TOLERANCE

from sixfold.bench.peer_models import marian
from sixfold.bench.race import OURS, SEED
from sixfold.core.ids import EOS, PAD
from sixfold.decoding.engine import Job, search
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.session import CONTROLS_NEVER_WRITTEN
from sixfold.decoding.step import Step, StepFunction, padded
from sixfold.models.encoder_decoder import EncoderDecoder

HUGGING_FACE = "marian"
FURTHER = 20  # tokens from the end of a text to its limit, as is usual


class Task(NamedTuple):
    """What everybody has to write: so many tokens for each source, no more and no fewer, and then the end."""

    sources: list[list[int]]  # EOS included; the longest first
    lengths: list[int]  # tokens of each output, without BOS and EOS

    @property
    def tokens(self) -> int:
        """What is counted: the end is computed like any other word."""
        return sum(self.lengths) + len(self.lengths)

    def thinned(self, most: int) -> "Task":
        """At most so many of its sentences, of all lengths."""
        keep = range(0, len(self.sources), max(1, -(-len(self.sources) // most)))
        return Task([self.sources[i] for i in keep], [self.lengths[i] for i in keep])

    def batches(self, rows_times_longest: int) -> Iterator["Task"]:
        """Neighbours together, as long as rows × the longest source are no more than this; at least one."""
        start = 0
        while start < len(self.sources):
            end = start + max(1, rows_times_longest // len(self.sources[start]))
            yield Task(self.sources[start:end], self.lengths[start:end])
            start = end


Decoder = Callable[[Task, int, int], int]  # (task, beam size, batch tokens) → tokens written


class Timed(NamedTuple):
    """A state of rows of which one knows how many tokens each has yet to write."""

    inner: Any
    left: Tensor  # (S, w)

    @property
    def light(self) -> bool:
        return self.inner.light

    def select(self, rows: Tensor) -> "Timed":
        return Timed(self.inner.select(rows), self.left.flatten()[rows])

    def join(self, other: "Timed", free: Sequence[int]) -> "Timed":
        left = torch.cat([self.left, other.left[len(free) :]])
        left[list(free)] = other.left[: len(free)]
        return Timed(self.inner.join(other.inner, free), left)

    def release(self) -> None:
        self.inner.release()


class AtItsTime:
    """A step after which EOS is the last thing to be chosen, and the first when all tokens are written."""

    def __init__(self, step: StepFunction, task: Task):
        self.step, self.device = step, step.device
        self.length = {tuple(source): length for source, length in zip(*task, strict=True)}

    def begin(self, sources: Sequence[Sequence[int]]) -> Timed:
        left = torch.tensor([[self.length[tuple(source)]] for source in sources], device=self.device)
        return Timed(self.step.begin(sources), left)

    def __call__(self, ids: Tensor, state: Timed) -> Step:
        found = self.step(ids, state.inner)
        found.scores[:, EOS] += torch.where(state.left.flatten() == 0, 1e4, -1e4)
        return found._replace(state=Timed(found.state, state.left - 1))


def ours(step: StepFunction) -> Decoder:
    """sixfold's search. That it ends in time costs it a little; limits are as far away as in use."""

    @torch.inference_mode()
    def decode(task: Task, beam: int, batch_tokens: int) -> int:
        timed = AtItsTime(step, task)
        method = Greedy() if beam == 1 else Beam(beam)
        shortest_first = zip(task.sources[::-1], task.lengths[::-1], strict=True)
        jobs = (Job(source=source, limit=length + FURTHER) for source, length in shortest_first)
        found = search(timed, jobs, method, never=CONTROLS_NEVER_WRITTEN, batch_tokens=batch_tokens)
        return sum(len(hypotheses[0].tokens) + 1 for _, hypotheses in found)

    return decode


def hugging_face(model: EncoderDecoder, task: Task) -> dict[str, Decoder]:
    """`generate` on a Marian model of the same sizes with random weights; nobody, where it is not installed."""
    longest = max(*map(len, task.sources), *task.lengths) + 2
    torch.manual_seed(SEED)
    try:
        peer = marian(model.sizes, longest).eval()
        from transformers import StoppingCriteria
    except ModuleNotFoundError as error:
        print(f"{HUGGING_FACE}: left out, {error.name} is not installed (pip install -c constraints.txt -e .[bench])")
        return {}
    own, theirs = (sum(p.numel() for p in m.parameters() if p.requires_grad) for m in (model, peer))
    print(f"parameters: {theirs:,} of {HUGGING_FACE}'s, {own:,} of {OURS}'s", end="")
    print(", too far apart!" if abs(theirs / own - 1) > TOLERANCE else "")
    for name in ("eos_token_id", "forced_eos_token_id", "bos_token_id"):  # lengths alone end a sentence
        setattr(peer.generation_config, name, None)
        setattr(peer.config, name, None)

    class AtLength(StoppingCriteria):
        """A sentence ends at its own length; its hypotheses stand side by side."""

        def __init__(self, lengths: list[int]):
            self.lengths = torch.tensor(lengths) + 2  # BOS and the end

        def __call__(self, input_ids: Tensor, scores: Any, **rest: Any) -> Tensor:
            return (self.lengths <= input_ids.shape[1]).repeat_interleave(len(input_ids) // len(self.lengths))

    @torch.inference_mode()
    def decode(task: Task, beam: int, batch_tokens: int) -> int:
        written = 0
        for batch in task.batches(batch_tokens // beam):
            source = padded(batch.sources, torch.device("cpu"))
            ids = peer.generate(
                input_ids=source,
                attention_mask=(source != PAD).long(),
                num_beams=beam,
                do_sample=False,
                max_new_tokens=max(batch.lengths) + 1,
                stopping_criteria=[AtLength(batch.lengths)],
            )
            assert tuple(ids.shape) == (len(source), 1 + max(batch.lengths) + 1)  # BOS, the tokens, the end
            written += batch.tokens  # what a row wrote beyond its length is not counted
        return written

    return {HUGGING_FACE: decode}
