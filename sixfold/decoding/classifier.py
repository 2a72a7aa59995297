"""`Classifier`: predicts the labels of texts, for the command line, Python and validation.

>>> classifier = sixfold.load("runs/reviews")
>>> classifier.classify(["a film to remember"])[0].label

Letters: S texts, C labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from sixfold.config.schema import Decoding, change_decoding
from sixfold.decoding.job import Job, JobEngine, Ticket, Unanswerable
from sixfold.decoding.ordered import FIRST, WINDOW, Lines, LineSession
from sixfold.decoding.owned_models import OwnedModels
from sixfold.decoding.records import Line
from sixfold.decoding.session import check_models, check_sizes, cut_to_fit, encode_lines
from sixfold.decoding.step import batches, padded
from sixfold.models.encoder_only import EncoderOnly
from sixfold.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Classification:
    """The label of a text. An empty text has none."""

    label: str = ""
    probability: float = 0.0  # of this label
    probabilities: Mapping[str, float] = field(default_factory=dict)  # of every label, in their order; the sum is 1
    note: str = ""  # a message for the user, such as that the text was truncated
    tokens: tuple[int, ...] = ()  # the ids that were read

    @property
    def text(self) -> str:
        """The text that metrics score."""
        return self.label


class Classifier:
    """Predicts the label of a text, by a model with one class for each label.

    `decoding` is the configuration; a call may change its keys: `classify(texts, precision="int8")`. A label does not
    depend on the texts that share a batch with it. The model keeps its device and precision.
    """

    verb: ClassVar[str] = "classify"  # of the command line

    def __init__(
        self,
        model: EncoderOnly,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        decoding: Decoding | None = None,
        *,
        longest: int | None = None,
    ):
        """`longest` is the number of tokens of a text that the model was trained to read at most."""
        own = model.limits.get("only") if isinstance(model, EncoderOnly) else None
        self.longest = min((each for each in (longest, own) if each is not None), default=None)
        self.owned, self.tokenizer = OwnedModels([model]), tokenizer
        self.labels, self.decoding = tuple(labels), decoding or Decoding()
        check_models([model], EncoderOnly, "classify")
        check_sizes(model, tokenizer, "text", "only")
        if not model.sizes.classes:
            raise ValueError("this model predicts masked words, and has no classes")
        if len({*self.labels}) != model.sizes.classes or len(self.labels) != model.sizes.classes:
            raise ValueError(
                f"the model was made for {model.sizes.classes:,} classes, and needs as many different labels, got "
                f"{len(self.labels):,}, of which {len({*self.labels}):,} differ"
            )

    @property
    def model(self) -> EncoderOnly:
        return self.owned.models[0]

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
        """The labels of texts, in order, as the texts come; memory does not depend on their number.

        None among the lines, `stop`, `wait`, `window`, `first` and `start` are explained at `Translator.stream`.
        `changes` are keys of the section `decoding`, of which `max_source`, `too_long`, `batch_tokens` and `precision`
        matter here.
        """
        return self.session(**changes).stream(lines, window=window, first=first, start=start, stop=stop, wait=wait)

    def session(self, **changes: Any) -> ClassificationSession:
        """Turns texts into jobs, and has engines that run them. `changes` are keys of the section `decoding`."""
        return ClassificationSession(self, change_decoding(self.decoding, changes))

    def changed(self) -> None:
        """Must be called after a change of the model that torch does not count; see `owned_models`."""
        self.owned.changed()


class ClassificationSession(LineSession[Classification]):
    """A model, its tokenizer and its labels bound to one configuration."""

    empty = Classification()

    def __init__(self, classifier: Classifier, decoding: Decoding):
        self.models = classifier.owned.in_precision(decoding)
        self.model: Any = self.models[0]
        self.tokenizer, self.labels, self.longest = classifier.tokenizer, classifier.labels, classifier.longest
        self.decoding = decoding
        self.device = next(classifier.model.parameters()).device

    def encode(self, lines: Sequence[Line]) -> list[list[int]]:
        return encode_lines(self.tokenizer, lines)

    def job(self, line: Line, ids: Sequence[int]) -> Job | None:
        """The text's tokens alone, as in training, truncated to the length that the model can read."""
        if not ids:
            return None
        ids, note = cut_to_fit(ids, self.decoding, self.longest, "the text")
        return Job(source=ids, limit=0, tag=line, note=note)

    def engine(self) -> BatchEngine:
        return BatchEngine(self.probabilities, self.decoding.batch_tokens)

    def probabilities(self, jobs: Sequence[Job]) -> list[list[float]]:
        """For each job, the probability of every label."""
        log_p: Tensor = self.model.classify(padded([job.source for job in jobs], self.device))  # (S, C)
        return log_p.double().softmax(-1).tolist()  # normalised once more, in float64

    def finish(self, tickets: Sequence[Ticket]) -> list[Classification]:
        return [self._finish(ticket.job, ticket.found) for ticket in tickets]

    def _finish(self, job: Job, numbers: list[float]) -> Classification:
        """The likeliest label; of equally likely ones, the first."""
        best = max(numbers)
        return Classification(
            label=self.labels[numbers.index(best)],
            probability=best,
            probabilities=dict(zip(self.labels, numbers, strict=True)),
            note=job.note,
            tokens=tuple(job.source),
        )


class BatchEngine(JobEngine[Ticket]):
    """An engine for jobs that need one pass of the model each: a step answers a batch."""

    def __init__(self, answer: Callable[[Sequence[Job]], list[list[float]]], tokens: int):
        super().__init__()
        self.answer, self.tokens = answer, tokens

    def _ticket(self, job: Job) -> Ticket:
        return Ticket(job)

    @property
    def hungry(self) -> bool:
        return self._fitting() == len(self.waiting)

    def _fitting(self) -> int:
        """The number of waiting jobs that fit into one batch."""
        return len(next(batches((len(ticket.job.source) for _, _, ticket in self.waiting), self.tokens), ()))

    def step(self) -> list[Ticket]:
        """Answer one batch."""
        late = self._late()
        self._forget()
        self._left, fitting = False, self._fitting()
        done = [ticket for _, _, ticket in self.waiting[:fitting]]
        del self.waiting[:fitting]
        for ticket, numbers in zip(done, self.answer([ticket.job for ticket in done]) if done else (), strict=True):
            ticket.found, ticket.done = numbers, True
            if any(map(math.isnan, numbers)):
                ticket.fail(Unanswerable(ticket.job, "the model's probabilities for this text are NaN"))
        return late + done
