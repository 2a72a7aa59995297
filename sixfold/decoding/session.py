"""Turns lines into jobs, and tickets into outputs, with models and tokenizers bound to one decoding configuration.

A sentence passes through five kinds of objects:

    Line ──▶ Job ──▶ Sentence ──▶ Hypothesis ──▶ Translation
    │        │       │            └ its tokens and log-probabilities: first those of the open hypotheses of a
    │        │       │              search, then those of the outputs found
    │        │       └ a submitted job, which waits or runs; as its ticket, it gets the outputs or an error
    │        └ ids, limit, rules, seed: all that a search needs to know
    └ a text, and the prefix and the terms that its output must have

`LineSession.jobs` is the only way from a line to a job, and `finish` the only way from a ticket to an output. Files,
pipes, prompts, worker processes, validation, `verify` and `bench` all use these two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from sixfold.config.schema import Decoding
from sixfold.core.ids import BOS, CONTROLS, MASK, PAD, UNK
from sixfold.core.parts import declared
from sixfold.decoding.alignment import watched_layer
from sixfold.decoding.dictionary import read_dictionary
from sixfold.decoding.engine import Engine
from sixfold.decoding.job import Hypothesis, Job, Method
from sixfold.decoding.looking import NOTHING_SHOWN, Looking
from sixfold.decoding.ordered import LineSession
from sixfold.decoding.owned_models import OwnedModels
from sixfold.decoding.records import Line, Translation
from sixfold.decoding.rules.make import make_rules
from sixfold.decoding.rules.rule import Rule
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from sixfold.decoding.search.sample import Sample
from sixfold.decoding.step import with_gates
from sixfold.models.model import Model
from sixfold.text.tokenizer import Tokenizer, Tokenizers

CONTROLS_NEVER_WRITTEN = (PAD, BOS, MASK)  # control tokens that no output contains


class RunOrigin(NamedTuple):
    """The directories that models were loaded from, so that another process can load them, too."""

    runs: tuple[str, ...]
    device: str
    imports: tuple[str, ...] = ()


class DecodingSession(LineSession[Translation]):
    """Models and tokenizers bound to one decoding configuration, for one thread, until the models change.

    `terms` must occur in every output, in addition to the terms of its line. Rules that hold for all outputs are
    checked once, when the session is made.
    """

    empty = Translation()
    stack: ClassVar[str] = "decoder"  # the stack that writes

    def __init__(
        self,
        owned: OwnedModels[Any],
        tokenizers: Tokenizers,
        decoding: Decoding,
        looking: Looking = NOTHING_SHOWN,
        terms: Sequence[str] = (),
    ):
        watching = check_demands(owned.models, tokenizers.target, decoding, self.stack, terms)
        self.lease = owned.lend(decoding, watching, looking.tap, gated=looking.gates is not None)
        self.models, self.step = self.lease.models, self.lease.step
        if looking.gates:
            with_gates(self.step).check_gates(looking.gates)
        self.tokenizers, self.decoding, self.looking, self.terms = tokenizers, decoding, looking, tuple(terms)
        self.tokenizer = tokenizers.target
        self.never = never_written(self.tokenizer)
        self.method = make_method(decoding, self.text)

    def engine(self) -> Engine:
        how: dict[str, Any] = {"never": self.never, "batch_tokens": self.decoding.batch_tokens}
        return Engine(self.step, self.method, **how, check=self.check)

    def close(self) -> None:
        """Give the step function back. The session must not be used any more."""
        self.lease.end()

    def check(self, job: Job) -> None:
        """Raise a ValueError for a job that the models can't read. A job made by `jobs` is always readable."""
        for model in self.models:
            if model.reads_source:
                _check_ids(model, job.source, "encoder", "source", len(job.source))
            _check_ids(model, job.prompt, self.stack, "prompt", len(job.prompt) + job.limit)

    def jobs(self, lines: Sequence[Line]) -> list[Job | ValueError | None]:
        if self.terms:
            lines = [line._replace(terms=(*self.terms, *line.terms)) for line in lines]
        return super().jobs(lines)

    def limit(self, stack: str) -> int | None:
        """The largest number of positions that all models support; None if there is no limit."""
        return _limit(self.models, stack)

    def rules(self, line: Line) -> tuple[Rule, ...]:
        return make_rules(self.decoding, self.tokenizer, prefix=line.prefix, terms=line.terms)

    def demanded(self, line: Line) -> int:
        """The number of tokens in the prefix and the terms. It is added to the limit that `max_ratio` gives."""
        texts = [text for text in (line.prefix, *line.terms) if text]
        return sum(map(len, self.tokenizer.encode_batch(texts)))

    def seed(self, ids: Sequence[int], line: Line) -> int:
        """The seed of a line. It depends on the line and the configured seed, not on the other lines of a batch."""
        of = json.dumps([self.decoding.seed, list(ids), line.prefix, line.terms]).encode()
        return int.from_bytes(hashlib.sha256(of).digest()[:7], "big")

    def text(self, tokens: Sequence[int], unknown: Sequence[str | None] = ()) -> str:
        """The text of tokens. An UNK becomes the word in `unknown` at the same index, or <unk>."""
        if self.tokenizer.spells or UNK not in tokens:
            return self.tokenizer.decode(tokens)
        instead = [*unknown, *[None] * (len(tokens) - len(unknown))]
        words = zip(tokens, instead, strict=True)
        return " ".join(word or CONTROLS[UNK] if id_ == UNK else self.tokenizer.decode([id_]) for id_, word in words)


def encode_lines(tokenizer: Tokenizer, lines: Sequence[Line]) -> list[list[int]]:
    """The ids of each line, without its line end. A line of spaces only has no ids."""
    rows = iter(tokenizer.encode_batch([_without_end(line.text) for line in lines if line.text.strip()]))
    return [next(rows) if line.text.strip() else [] for line in lines]


def _without_end(text: str) -> str:
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


def cut_to_fit(ids: Sequence[int], decoding: Decoding, known: int | None, what: str) -> tuple[Sequence[int], str]:
    """The ids that are read, and a note if a text was truncated; a ValueError if `too_long` is "refuse".

    `known` is the largest number of tokens that the models can read; None if there is no limit.
    """
    wanted = decoding.max_source
    most = wanted if known is None else min(wanted, known)
    if len(ids) <= most:
        return ids, ""
    why = "decoding.max_source" if most == wanted else "all that this model can read"
    if decoding.too_long == "refuse":
        raise ValueError(f"{what} has {len(ids):,} tokens, and no more than {most:,} are taken ({why})")
    return ids[:most], f"{what} has {len(ids):,} tokens and was truncated to {most:,} ({why})"


def make_method(decoding: Decoding, text: Callable[[tuple[int, ...]], str]) -> Method:
    """The search that the configuration selects."""
    if decoding.sample:
        return Sample(
            width=decoding.n_best,
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
            min_p=decoding.min_p,
        )
    if decoding.beam_size == 1:
        return Greedy()
    return Beam(
        size=decoding.beam_size,
        n_best=decoding.n_best,
        length=LengthPenalty(decoding.length_penalty),
        groups=decoding.beam_groups,
        diversity=decoding.diversity,
        same=text,
    )


def outputs(found: Sequence[Hypothesis], texts: Sequence[str], note: str) -> list[Translation]:
    """Hypotheses and their texts as translations, the best first."""
    return [
        Translation(text, each.score, each.tokens, each.log_probs, each.ended, note)
        for each, text in zip(found, texts, strict=True)
    ]


def check_models(models: Sequence[Model], kind: type[Model], verb: str) -> None:
    """Raise a ValueError unless all models are of this kind."""
    if not models:
        raise ValueError("expected one model or more, got none")
    for model in models:
        if not isinstance(model, kind):
            raise ValueError(f"only models of kind {kind.kind} {verb}, and this is a model of kind {model.kind}")


def check_demands(
    models: Sequence[Model], tokenizer: Tokenizer, decoding: Decoding, stack: str, terms: Sequence[str] = ()
) -> bool:
    """Raise a ValueError if what is asked of all outputs can't be done: rules, terms, a dictionary.

    It is called before the first line is read; otherwise the error would name that line. → whether a rule needs
    attention weights
    """
    known = _limit(models, stack)
    most = decoding.max_length if known is None else min(decoding.max_length, known - 1)  # BOS takes a position
    rules = make_rules(decoding, tokenizer, terms=terms)
    for rule in rules:
        rule.check(most)
        if rule.needs_attention and not all(map(_attends_to_each_token, models)):
            raise ValueError("coverage_penalty needs cross-attention over each source token, and this model has none")
    if decoding.dictionary is not None:
        read_dictionary(decoding.dictionary, tokenizer)
    return any(rule.needs_attention for rule in rules)


def _attends_to_each_token(model: Model) -> bool:
    return watched_layer(model) is not None and all(declared(part).keeps_length for part in model.modules())


def never_written(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that no output contains, among them UNK if the tokenizer can spell every text."""
    return (*CONTROLS_NEVER_WRITTEN, UNK) if tokenizer.spells else CONTROLS_NEVER_WRITTEN


def _check_ids(model: Model, ids: Sequence[int], stack: str, what: str, positions: int) -> None:
    words, limit = model.sizes.vocabulary(stack), model.limits.get(stack)
    if not ids or min(ids) <= PAD or max(ids) >= words:
        got = f"ids from {min(ids)} to {max(ids)}" if ids else "no ids"
        raise ValueError(f"the {what} of a job has one id or more, from {PAD + 1} to {words - 1}; got {got}")
    if limit is not None and positions > limit:
        needs = "has" if what == "source" else "and the limit of its output have"
        raise ValueError(f"the {what} of a job {needs} {positions:,} tokens, and the model has {limit:,} positions")


def _limit(models: Sequence[Model], stack: str) -> int | None:
    return min((model.limits[stack] for model in models if stack in model.limits), default=None)


def check_sizes(model: Model, tokenizer: Tokenizer, side: str, stack: str) -> None:
    words = model.sizes.vocabulary(stack)
    if len(tokenizer) != words:
        raise ValueError(f"the {side} tokenizer has {len(tokenizer):,} ids, but the model was made for {words:,}")
