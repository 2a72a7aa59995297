"""From texts to labels: the one object behind the command line, Python and validation.

>>> classifier = sixfold.load("runs/reviews")
>>> classifier.classify(["a film to remember"])[0].label

Letters: S texts, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from sixfold.config.schema import Decoding, change_decoding
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.job import Job, JobEngine, Ticket, Unanswerable
from sixfold.decoding.ordered import FIRST, WINDOW, Lines, OrderedStream
from sixfold.decoding.records import Line
from sixfold.decoding.session import LineSession, check_models, check_sizes, cut_to_fit, encode_lines, in_8_bits
from sixfold.decoding.step import padded
from sixfold.models.encoder_only import EncoderOnly
from sixfold.models.model import evaluating
from sixfold.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Classification:
    """The label of a text. An empty text has none."""

    label: str = ""
    probability: float = 0.0  # of this label
    probabilities: Mapping[str, float] = field(default_factory=dict)  # of every label, in their order; the sum is 1
    note: str = ""  # what a person should know, such as that the text was truncated
    tokens: tuple[int, ...] = ()  # what was read of the text

    @property
    def text(self) -> str:
        """What is scored."""
        return self.label


class Classifier:
    """Says which label a text has, by a model that was built with as many classes.

    How is said by `decoding`, and for one call by its keys: `classify(texts, precision="int8")`. Which texts share a
    batch makes no difference to what comes out. The model's device and precision are its own.
    """

    verb: ClassVar[str] = "classify"  # by which the command line asks it

    def __init__(
        self,
        model: EncoderOnly,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        decoding: Decoding | None = None,
        *,
        longest: int | None = None,
    ):
        """`longest` is how many tokens of a text it was trained to read."""
        own = model.limits.get("only") if isinstance(model, EncoderOnly) else None
        self.longest = min((each for each in (longest, own) if each is not None), default=None)
        self.model, self.tokenizer = model, tokenizer
        self.labels, self.decoding = tuple(labels), decoding or Decoding()
        check_models([model], EncoderOnly, "classify")
        check_sizes(model, tokenizer, "text", "only")
        if not model.sizes.classes:
            raise ValueError("this model predicts masked words, and knows no classes")
        if len({*self.labels}) != model.sizes.classes or len(self.labels) != model.sizes.classes:
            raise ValueError(
                f"the model was made for {model.sizes.classes:,} classes, and needs as many different labels, got "
                f"{len(self.labels):,}, of which {len({*self.labels}):,} differ"
            )

    def classify(self, texts: Sequence[str], **options: Any) -> list[Classification]:
        """The label of each text, in order; that of an empty text is empty. The options are those of `stream`."""
        if isinstance(texts, str):
            raise ValueError("classify takes a list of texts, got one text")
        return list(self.stream(list(texts), **{"first": WINDOW, **options}))

    def stream(
        self,
        lines: Lines,
        *,
        stop: Callable[[], bool] | None = None,
        wait: Callable[[], None] | None = None,
        window: int = WINDOW,
        first: int = FIRST,
        start: int = 1,
        **changes: Any,
    ) -> Iterator[Classification]:
        """The labels of texts as they come, in order; memory does not depend on how many they are.

        None among the lines says that no more are there at the moment, so that all so far are answered; `wait` is
        explained at `Translator.stream`. `window` texts are sorted by length together, in the beginning only `first`.
        `stop` is asked before each batch; if it says True, `Stopped` is raised. Errors name lines by their number, from
        `start`. `changes` are keys of the section `decoding`, of which `max_source`, `too_long`, `batch_tokens` and
        `precision` matter here.
        """
        session = ClassificationSession(self, change_decoding(self.decoding, changes))
        stream = OrderedStream(session, lines, window=window, first=first, start=start, stop=stop, wait=wait)
        return self._evaluated(iter(stream))

    def check(self, texts: Sequence[str]) -> None:
        """Raise a ValueError if one of these texts would be refused."""
        ClassificationSession(self, self.decoding).rehearse(texts, "classified")

    def _evaluated(self, results: Iterator[Classification]) -> Iterator[Classification]:
        with evaluating(self.model):
            yield from results


class ClassificationSession(LineSession):
    """From texts to labels, in one way."""

    empty = Classification()

    def __init__(self, classifier: Classifier, decoding: Decoding):
        model = classifier.model
        self.model: Any = quantised(model) if in_8_bits(model, decoding) else model
        self.tokenizer, self.labels, self.longest = classifier.tokenizer, classifier.labels, classifier.longest
        self.decoding = decoding
        self.device = next(model.parameters()).device

    def encode(self, lines: Sequence[Line]) -> list[list[int]]:
        return encode_lines(self.tokenizer, lines)

    def job(self, line: Line, ids: Sequence[int]) -> Job | None:
        """A text as the model can read it: its tokens alone, as in training."""
        if not ids:
            return None
        ids, note = cut_to_fit(ids, self.decoding, self.longest, "the text")
        return Job(source=ids, limit=0, tag=line, note=note)

    def engine(self) -> BatchEngine:
        return BatchEngine(self.probabilities, self.decoding.batch_tokens)

    def probabilities(self, jobs: Sequence[Job]) -> list[list[float]]:
        """Of every label, for each job."""
        log_p: Tensor = self.model.classify(padded([job.source for job in jobs], self.device))  # (S, C)
        return log_p.double().softmax(-1).tolist()  # it was normalised in the model's own precision

    def finish(self, tickets: Sequence[Ticket]) -> list[Classification]:
        return [self._finish(ticket.job, ticket.found) for ticket in tickets]

    def _finish(self, job: Job, numbers: list[float]) -> Classification:
        """Of labels that are equally likely, the first."""
        best = max(numbers)
        return Classification(
            label=self.labels[numbers.index(best)],
            probability=best,
            probabilities=dict(zip(self.labels, numbers, strict=True)),
            note=job.note,
            tokens=tuple(job.source),
        )


class BatchEngine(JobEngine[Ticket]):
    """Jobs that are answered by one pass each, batch after batch."""

    def __init__(self, answer: Callable[[Sequence[Job]], list[list[float]]], tokens: int):
        super().__init__()
        self.answer, self.tokens = answer, tokens

    def _ticket(self, job: Job) -> Ticket:
        return Ticket(job)

    @property
    def hungry(self) -> bool:
        return len(self._batch()) == len(self.waiting)

    def _batch(self) -> list[Job]:
        return next(batches((ticket.job for _, _, ticket in self.waiting), self.tokens), [])

    def step(self) -> list[Ticket]:
        """Answer a batch."""
        self._forget()
        jobs, self._left = self._batch(), False
        done = [ticket for _, _, ticket in self.waiting[: len(jobs)]]
        del self.waiting[: len(jobs)]
        for ticket, numbers in zip(done, self.answer(jobs) if jobs else (), strict=True):
            ticket.found, ticket.done = numbers, True
            if any(map(math.isnan, numbers)):
                ticket.fail(Unanswerable(ticket.job, "the model gives NaN for this text, and no probability"))
        return done


def batches(jobs: Iterable[Job], tokens: int) -> Iterator[list[Job]]:
    """Jobs that follow each other, as many as there is room for: jobs × the longest one's tokens, or one alone."""
    batch, longest = list[Job](), 0
    for job in jobs:
        longest = max(longest, len(job.source))
        if batch and longest * (len(batch) + 1) > tokens:
            yield batch
            batch, longest = [], len(job.source)
        batch.append(job)
    if batch:
        yield batch
