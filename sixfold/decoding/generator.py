"""`Generator`: continues texts with a language model, for the command line and Python.

>>> writer = sixfold.load("runs/lm")
>>> writer.generate(["Once upon a time"], temperature=0.8, n_best=3)[0].text
>>> for piece in writer.stream("Once upon a time"):
...     print(piece, end="", flush=True)

It samples, unless `sample=False` (greedy search) or `beam_size` asks for the likeliest text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sixfold.config.schema import Decoding
from sixfold.core.ids import BOS
from sixfold.decoding.front import Front
from sixfold.decoding.job import Job, Ticket
from sixfold.decoding.looking import Looking
from sixfold.decoding.ordered import WINDOW, Lines
from sixfold.decoding.records import Line, Translation
from sixfold.decoding.session import DecodingSession, RunOrigin, outputs
from sixfold.models.decoder_only import DecoderOnly
from sixfold.models.model import evaluating
from sixfold.text.tokenizer import Tokenizers

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # U+FFFD: replaces bytes that are not, or not yet, a complete character


class Generator(Front[DecoderOnly, "GenerationSession"]):
    """Continues texts. `context` is the number of tokens that the model saw at once in training, if known."""

    verb = "generate"
    kind, can = DecoderOnly, "continue a text"
    stack = "only"
    sides: ClassVar[dict[str, str]] = {"target": "decoder"}

    def __init__(
        self,
        model: DecoderOnly | Sequence[DecoderOnly],
        tokenizers: Tokenizers,
        decoding: Decoding | None = None,
        *,
        context: int | None = None,
        origin: RunOrigin | None = None,
    ):
        super().__init__(model, tokenizers, decoding or Decoding(sample=True), origin=origin)
        self.context = context

    def generate(self, prompts: Sequence[str], **options: Any) -> list[Translation]:
        """The continuation of each prompt, in order. The options are those of `stream_many`."""
        if isinstance(prompts, str):
            raise ValueError("generate takes a list of prompts, got one text")
        return list(self.stream_many(list(prompts), **{"first": WINDOW, **options}))

    def stream_many(self, prompts: Lines, **options: Any) -> Iterator[Translation]:
        """The continuations of prompts, in order, as the prompts come; see `Translator.stream`."""
        return self._stream(prompts, **options)

    def stream(self, prompt: str, **changes: Any) -> Iterator[str]:
        """The continuation of a prompt, piece by piece as it is written, in complete characters."""
        follow = self.follow(prompt, **changes)
        return (text for text, _ in follow)

    def follow(self, prompt: str, **changes: Any) -> Iterator[tuple[str, Translation | None]]:
        """Pieces of text as they are written; the last comes with the complete output."""
        session = self.session(**changes)
        if session.method.width > 1:
            raise ValueError("a stream shows one text as it is written: beam_size and n_best must be 1")
        return session.closing(session.follow(Line(prompt)))

    def _session(self, decoding: Decoding, looking: Looking, terms: Sequence[str]) -> GenerationSession:
        if looking.alignment or looking.attention:
            raise ValueError("alignment and attention to a source are for translations")
        session = GenerationSession(self.owned, self.tokenizers, decoding, looking, terms)
        session.context = self.context
        return session

    def configured(self, changes: dict[str, Any]) -> Decoding:
        search = {"sample": False} if changes.get("beam_size", 1) != 1 else {}  # a beam does not sample
        return super().configured({**search, **changes})


class GenerationSession(DecodingSession):
    """A session of a generator."""

    stack = "only"
    context: int | None = None  # tokens that the model saw at once in training, if known

    def encode(self, lines: Sequence[Line]) -> list[list[int]]:
        """The ids of each prompt, tokenised line by line as in training."""
        return [
            [id_ for row in self.tokenizer.encode_batch(self._split_lines(line.text)) for id_ in row] for line in lines
        ]

    def _split_lines(self, text: str) -> list[str]:
        """The lines of a text with their ends. If the tokenizer splits at spaces, a line end is a separate word."""
        lines = re.findall(r"[^\n]*\n|[^\n]+", text)
        if self.tokenizer.spells:
            return lines
        return [f"{line[:-1]} \n" if line.endswith("\n") and line != "\n" else line for line in lines]

    def job(self, line: Line, ids: Sequence[int]) -> Job:
        ids, limit, note = self._fit(ids)
        prompt, seed = (BOS, *ids), self.seed(ids, line)
        job = Job(prompt=prompt, limit=limit, rules=self.rules(line), seed=seed, tag=line, note=note)
        return self.looking.at(job)

    def _fit(self, ids: Sequence[int]) -> tuple[Sequence[int], int, str]:
        """The end of a prompt that leaves room for an output; the limit of that output; a note if it was truncated."""
        limit, most = self.decoding.max_length, self.decoding.max_source
        known, why = self.limit("only"), "decoding.max_source"
        if known is not None:
            limit = min(limit, max(known // 2, known - 1 - len(ids)), known - 1)
            if known - 1 - limit < most:
                most, why = known - 1 - limit, f"this model has {known:,} positions"
        if len(ids) <= most:
            return ids, limit, ""
        if self.decoding.too_long == "refuse":
            raise ValueError(f"the prompt has {len(ids):,} tokens, and no more than {most:,} are taken ({why})")
        note = f"the prompt has {len(ids):,} tokens, of which the last {most:,} were read ({why})"
        return ids[len(ids) - most :], limit, note

    def finish(self, tickets: Sequence[Ticket]) -> list[Translation]:
        return [self._finish(ticket) for ticket in tickets]

    def _finish(self, ticket: Ticket) -> Translation:
        job, found = ticket.job, ticket.found
        notes = [job.note] if job.note else []
        length = len(job.prompt) + max(len(each.tokens) for each in found)
        if self.context is not None and length > self.context + 1:
            notes.append(f"prompt and output have {length - 1:,} tokens; the model was trained on {self.context:,}")
        best, *others = outputs(found, [self.text(each.tokens) for each in found], "; ".join(notes))
        return replace(best, others=tuple(others), trace=ticket.trace)

    def text(self, tokens: Sequence[int], unknown: Sequence[str | None] = ()) -> str:
        text = super().text(tokens, unknown)
        return text if self.tokenizer.spells else re.sub(" ?\n ?", "\n", text)

    def follow(self, line: Line) -> Iterator[tuple[str, Translation | None]]:
        """Pieces of text as they are written; the last comes with the complete output."""
        (job,) = self.jobs([line])
        assert job is not None, "an empty prompt has a job, too"
        if isinstance(job, ValueError):
            raise job
        engine, told = self.engine(), ""
        ticket = engine.submit(job)
        with evaluating(*self.models):
            while not ticket.done:
                engine.step()
                shown = self.text(ticket.open[0].tokens).rstrip(_INCOMPLETE)
                if not ticket.done and len(shown) > len(told):
                    yield shown[len(told) :], None
                    told = shown
            if ticket.error is not None:
                raise ticket.error
            (complete,) = self.finish([ticket])
        yield complete.text[len(told) :], complete
