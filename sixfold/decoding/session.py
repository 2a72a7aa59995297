"""How lines become jobs, and jobs are searched for: models and a configuration, bound together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from sixfold.config.schema import Decoding
from sixfold.core.ids import BOS, CONTROLS, MASK, PAD, UNK
from sixfold.core.parts import declared
from sixfold.decoding.alignment import watched_layer
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.engine import Engine
from sixfold.decoding.ensemble import Ensemble
from sixfold.decoding.job import Hypothesis, Job, Method
from sixfold.decoding.looking import NOTHING_SHOWN, Looking
from sixfold.decoding.records import Line, Translation
from sixfold.decoding.rules.make import make_rules
from sixfold.decoding.rules.rule import Rule
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from sixfold.decoding.search.sample import Sample
from sixfold.decoding.step import StepFunction, with_gates
from sixfold.models.model import Model
from sixfold.text.tokenizer import Tokenizer, Tokenizers

CONTROLS_NEVER_WRITTEN = (PAD, BOS, MASK)  # ids that no text has


class RunOrigin(NamedTuple):
    """Where models were loaded from, so that another process can do the same."""

    runs: tuple[str, ...]
    device: str
    imports: tuple[str, ...] = ()


class LineSession:
    """From lines to jobs, the same way for everybody who needs them."""

    def encode(self, lines: Sequence[Line]) -> list[list[int]]:
        raise NotImplementedError

    def job(self, line: Line, ids: Sequence[int]) -> Job | None:
        """What has to be done for a line; None: nothing. A ValueError says what is wrong with it."""
        raise NotImplementedError

    def jobs(self, lines: Sequence[Line]) -> list[Job | ValueError | None]:
        """A job for each line, or what is wrong with it, or None."""
        return [self._try(line, ids) for line, ids in zip(lines, self.encode(lines), strict=True)]

    def _try(self, line: Line, ids: Sequence[int]) -> Job | ValueError | None:
        try:
            return self.job(line, ids)
        except ValueError as error:
            return error

    def rehearse(self, texts: Sequence[str], verb: str) -> None:
        """Do all that is done before a search, so that a mistake is found before the first step is made."""
        for number, (text, job) in enumerate(zip(texts, self.jobs([Line(text) for text in texts]), strict=True), 1):
            if isinstance(job, ValueError):
                raise ValueError(f"data.valid, text {number} ({text:.40}) can't be {verb}: {job}")


class DecodingSession(LineSession):
    """How outputs are searched for, in one way: models, a vocabulary, and a configuration."""

    empty = Translation()  # of a line that there is nothing to do for
    stack: ClassVar[str] = "decoder"  # that writes

    def __init__(
        self,
        models: Sequence[Model],
        tokenizers: Tokenizers,
        decoding: Decoding,
        looking: Looking = NOTHING_SHOWN,
    ):
        self.watching = check_demands(models, tokenizers.target, decoding, self.stack)
        self.models = [quantised(model) if in_8_bits(model, decoding) else model for model in models]
        self.tokenizers, self.decoding = tokenizers, decoding
        self.tokenizer = tokenizers.target
        self.never = never_written(self.tokenizer)
        self.method = make_method(decoding, self.text)
        self.looking = looking
        self.step = self._make_step()

    def _make_step(self) -> StepFunction:
        layers = [watched_layer(model) if self.watching else None for model in self.models]
        tap, gates = self.looking.tap, self.looking.gates
        pairs = zip(self.models, layers, strict=True)
        steps = [make_step(model, layer, tap, gated=gates is not None) for model, layer in pairs]
        step = steps[0] if len(steps) == 1 else Ensemble(steps)
        if gates:
            with_gates(step).check_gates(gates)
        return step

    def engine(self) -> Engine:
        """A batch that is empty yet."""
        return Engine(self.step, self.method, never=self.never, batch_tokens=self.decoding.batch_tokens)

    def limit(self, stack: str) -> int | None:
        """The most positions that all models can tell apart, if there is such a limit."""
        return _limit(self.models, stack)

    def rules(self, line: Line) -> tuple[Rule, ...]:
        rules = make_rules(self.decoding, self.tokenizer, prefix=line.prefix, terms=line.terms)
        for rule in rules:
            if rule.needs_attention and not self.watching:
                raise ValueError(f"{rule.describe()}: it must know where the model looks, and the search does not ask")
        return rules

    def demanded(self, line: Line) -> int:
        """Tokens that an output must have, and that no ratio of lengths accounts for."""
        texts = [text for text in (line.prefix, *line.terms) if text]
        return sum(map(len, self.tokenizer.encode_batch(texts)))

    def seed(self, ids: Sequence[int], line: Line) -> int:
        """The same for the same text, whoever else is there."""
        of = json.dumps([self.decoding.seed, list(ids), line.prefix, line.terms]).encode()
        return int.from_bytes(hashlib.sha256(of).digest()[:7], "big")

    def text(self, tokens: Sequence[int], unknown: Sequence[str | None] = ()) -> str:
        """The text of tokens. UNK is written <unk>, or as the word that is given in its place."""
        if self.tokenizer.spells or UNK not in tokens:
            return self.tokenizer.decode(tokens)
        instead = [*unknown, *[None] * (len(tokens) - len(unknown))]
        words = zip(tokens, instead, strict=True)
        return " ".join(word or CONTROLS[UNK] if id_ == UNK else self.tokenizer.decode([id_]) for id_, word in words)


def encode_lines(tokenizer: Tokenizer, lines: Sequence[Line]) -> list[list[int]]:
    """The ids of each line. The end of a line is no part of it, and a line of nothing but space has no ids."""
    rows = iter(tokenizer.encode_batch([_without_end(line.text) for line in lines if line.text.strip()]))
    return [next(rows) if line.text.strip() else [] for line in lines]


def _without_end(text: str) -> str:
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text


def cut_to_fit(ids: Sequence[int], decoding: Decoding, known: int | None, what: str) -> tuple[Sequence[int], str]:
    """What is read of a text, and a note if that is not all. `known` is how many tokens the models can read, if it is.

    Where too long a text is refused, it is a ValueError.
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
    """What the configuration asks for."""
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
    """Hypotheses with their texts, the best first."""
    return [
        Translation(text, each.score, each.tokens, each.log_probs, each.ended, note)
        for each, text in zip(found, texts, strict=True)
    ]


def check_models(models: Sequence[Model], kind: type[Model], verb: str) -> None:
    """Raise a ValueError unless all are of this kind."""
    if not models:
        raise ValueError("there is no model")
    for model in models:
        if not isinstance(model, kind):
            raise ValueError(f"only models of kind {kind.kind} {verb}, and this is a model of kind {model.kind}")


def check_demands(
    models: Sequence[Model], tokenizer: Tokenizer, decoding: Decoding, stack: str, terms: Sequence[str] = ()
) -> bool:
    """Raise a ValueError if what all outputs must be like is a mistake, or too much for any of them.

    → whether a rule must know where the models look. To be asked before a line is read: later, the first line would be
    blamed.
    """
    known = _limit(models, stack)
    most = decoding.max_length if known is None else min(decoding.max_length, known - 1)  # it reads BOS first
    rules = make_rules(decoding, tokenizer, terms=terms)
    for rule in rules:
        rule.check(most)
        if rule.needs_attention and not all(map(_looks_at_each_token, models)):
            raise ValueError(
                "coverage_penalty needs cross-attention that looks at each source token, and there is none"
            )
    return any(rule.needs_attention for rule in rules)


def _looks_at_each_token(model: Model) -> bool:
    return watched_layer(model) is not None and all(declared(part).keeps_length for part in model.modules())


def never_written(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids that no output has; UNK among them if the tokenizer can spell every text."""
    return (*CONTROLS_NEVER_WRITTEN, UNK) if tokenizer.spells else CONTROLS_NEVER_WRITTEN


def in_8_bits(model: Model, decoding: Decoding) -> bool:
    """Whether its linear maps are to be computed so."""
    on_cpu = next(model.parameters()).device.type == "cpu"
    return decoding.precision == "int8" or (decoding.precision == "auto" and on_cpu)


def _limit(models: Sequence[Model], stack: str) -> int | None:
    return min((model.limits[stack] for model in models if stack in model.limits), default=None)


def check_sizes(model: Model, tokenizer: Tokenizer, side: str, stack: str) -> None:
    words = model.sizes.vocabulary(stack)
    if len(tokenizer) != words:
        raise ValueError(f"the {side} tokenizer has {len(tokenizer):,} ids, but the model was made for {words:,}")
