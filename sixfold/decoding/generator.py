"""A language model that goes on with texts.

>>> writer = sixfold.load("runs/lm")
>>> writer.generate(["Once upon a time"], temperature=0.8, n_best=3)[0].text
>>> for piece in writer.stream("Once upon a time"):
...     print(piece, end="", flush=True)

It samples, unless `sample=False` (greedy search) or `beam_size` asks for the likeliest text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from sixfold.config.schema import Decoding, change_decoding
from sixfold.core.ids import BOS
from sixfold.decoding.engine import Hypothesis, Job, RunningBatch
from sixfold.decoding.ordered import FIRST, WINDOW, OrderedStream, SearchResult, Tag
from sixfold.decoding.records import Line, Translation
from sixfold.decoding.session import DecodingSession, RunOrigin, check_demands, check_models, check_sizes, outputs
from sixfold.decoding.workers import in_processes
from sixfold.models.decoder_only import DecoderOnly
from sixfold.models.model import evaluating
from sixfold.text.tokenizer import Tokenizers

_NOT_WHOLE = "\N{REPLACEMENT CHARACTER}"  # how bytes are shown that are not, or not yet, a character


class Generator:
    """Goes on with texts. `context` is the number of tokens that the model saw at once in training, if known."""

    verb: ClassVar[str] = "generate"

    def __init__(
        self,
        model: DecoderOnly | Sequence[DecoderOnly],
        tokenizers: Tokenizers,
        decoding: Decoding | None = None,
        *,
        context: int | None = None,
        origin: RunOrigin | None = None,
    ):
        self.models = (model,) if isinstance(model, torch.nn.Module) else tuple(model)
        self.tokenizers, self.context, self.origin = tokenizers, context, origin
        self.decoding = decoding or Decoding(sample=True)
        check_models(self.models, DecoderOnly, "go on with a text")
        for each in self.models:
            check_sizes(each, tokenizers.target, "target", "decoder")

    @property
    def model(self) -> DecoderOnly:
        """The first, and mostly the only one."""
        return self.models[0]

    def generate(
        self, prompts: Sequence[str], *, stop: Callable[[], bool] | None = None, **changes: Any
    ) -> list[Translation]:
        """What follows each prompt, in order. `changes` are keys of the section `decoding`."""
        if isinstance(prompts, str):
            raise ValueError("generate takes a list of prompts, got one text")
        return list(self.stream_many(list(prompts), stop=stop, **{"first": WINDOW, **changes}))

    def stream_many(
        self,
        prompts: Iterable[str | Line | None],
        *,
        stop: Callable[[], bool] | None = None,
        workers: int = 0,
        window: int = WINDOW,
        first: int = FIRST,
        start: int = 1,
        **changes: Any,
    ) -> Iterator[Translation]:
        """What follows the prompts, as they come, in order; see `Translator.stream`."""
        decoding = self._decoding(changes)
        check_demands(self.models, self.tokenizers.target, decoding, "only")
        size: dict[str, Any] = {"window": window, "first": first, "start": start}
        if workers:
            if stop is not None:
                raise ValueError("stop is only for writing in this process, without workers")
            return in_processes(self.origin, decoding, prompts, workers, **size)
        task = GenerationSession(self, decoding, stop)
        return self._evaluated(iter(OrderedStream(task, prompts, **size)))

    def stream(self, prompt: str, **changes: Any) -> Iterator[str]:
        """What follows a prompt, piece by piece as it is written, in whole characters."""
        return self._evaluated(text for text, _ in self.follow(prompt, **changes))

    def follow(self, prompt: str, **changes: Any) -> Iterator[tuple[str, Translation | None]]:
        """Pieces of text as they are written; the last comes with the whole output."""
        decoding = self._decoding(changes)
        if decoding.beam_size > 1 or decoding.n_best > 1:
            raise ValueError("a stream shows one text as it is written: beam_size and n_best must be 1")
        task, line = GenerationSession(self, decoding, None), Line(prompt)
        return self._evaluated(task.follow(task.job(1, line, task.encode([line])[0])))

    def _decoding(self, changes: dict[str, Any]) -> Decoding:
        search = {"sample": False} if changes.get("beam_size", 1) != 1 else {}  # a beam is no sample
        return change_decoding(self.decoding, {**search, **changes})

    def _evaluated(self, results: Iterator[Any]) -> Iterator[Any]:
        with evaluating(*self.models):
            yield from results


class GenerationSession(DecodingSession):
    """The task of a writer, with one way to do it."""

    def __init__(self, writer: Generator, decoding: Decoding, stop: Callable[[], bool] | None):
        super().__init__(writer.models, writer.tokenizers, decoding, stop)
        self.context = writer.context

    def encode(self, lines: Sequence[Line]) -> list[list[int]]:
        """As in training, where a text is tokenised line by line."""
        return [
            [id_ for row in self.tokenizer.encode_batch(self._set_apart(line.text)) for id_ in row] for line in lines
        ]

    def _set_apart(self, text: str) -> list[str]:
        """The lines of a text with their ends, which are words of their own where words stand between spaces."""
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        if self.tokenizer.spells:
            return lines
        return [f"{line[:-1]} \n" if line.endswith("\n") and line != "\n" else line for line in lines]

    def job(self, number: int, line: Line, ids: Sequence[int]) -> Job:
        ids, limit, note = self._fit(ids)
        prompt, seed = (BOS, *ids), self.seed(ids, line)
        return Job(prompt=prompt, limit=limit, rules=self.rules(line), seed=seed, tag=Tag(number, line, note))

    def _fit(self, ids: Sequence[int]) -> tuple[Sequence[int], int, str]:
        """What is read of a prompt: its end, with room for what follows; how many tokens that may be; a note."""
        limit, most = self.decoding.max_length, self.decoding.max_source
        known, why = self.limit("only"), "decoding.max_source"
        if known is not None:
            limit = min(limit, max(known // 2, known - 1 - len(ids)), known - 1)
            if known - 1 - limit < most:
                most, why = known - 1 - limit, f"this model can tell {known:,} places apart"
        if len(ids) <= most:
            return ids, limit, ""
        if self.decoding.too_long == "refuse":
            raise ValueError(f"the prompt has {len(ids):,} tokens, and no more than {most:,} are taken ({why})")
        note = f"the prompt has {len(ids):,} tokens, of which the last {most:,} were read ({why})"
        return ids[len(ids) - most :], limit, note

    def finish(self, found: Sequence[SearchResult]) -> list[Translation]:
        return [self._finish(job, hypotheses) for job, hypotheses in found]

    def _finish(self, job: Job, found: Sequence[Hypothesis]) -> Translation:
        notes = [job.tag.note] if job.tag.note else []
        length = len(job.prompt) + max(len(each.tokens) for each in found)
        if self.context is not None and length > self.context + 1:
            notes.append(f"prompt and output have {length - 1:,} tokens; the model was trained on {self.context:,}")
        best, *others = outputs(found, [self.text(each.tokens) for each in found], "; ".join(notes))
        return replace(best, others=tuple(others))

    def text(self, tokens: Sequence[int], unknown: Sequence[str | None] = ()) -> str:
        text = super().text(tokens, unknown)
        return text if self.tokenizer.spells else re.sub(" ?\n ?", "\n", text)

    @torch.inference_mode()
    def follow(self, job: Job) -> Iterator[tuple[str, Translation | None]]:
        """Pieces of text as they are written; the last comes with the whole output."""
        told = ""
        for tokens, found in self._steps(job):
            text = self.text(tokens)
            if found is not None:
                whole = self._finish(job, found)
                yield whole.text[len(told) :], whole
            elif len(shown := text.rstrip(_NOT_WHOLE)) > len(told):
                yield shown[len(told) :], None
                told = shown

    def _steps(self, job: Job) -> Iterator[tuple[tuple[int, ...], list[Hypothesis] | None]]:
        """The tokens after each step; in the end what was found."""
        batch = RunningBatch(self.step, self.method, self.never)
        batch.admit([job])
        (sentence,) = batch.sentences
        while not sentence.done:
            batch.advance()
            yield (sentence.open[0].tokens, None) if not sentence.done else ((), sentence.found)
