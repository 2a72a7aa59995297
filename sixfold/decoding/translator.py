"""`Translator`: translates lines of text, for the command line, Python and validation.

>>> translator = sixfold.load("runs/mine")
>>> translator.translate(["a line", "another"], beam_size=4, n_best=2)[0].text

Letters: L target length, n source length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sixfold.config.schema import Decoding
from sixfold.core.ids import BOS, EOS, UNK
from sixfold.core.tap import Tap
from sixfold.decoding.alignment import align, looks, words_in_place_of_unknown
from sixfold.decoding.dictionary import read_dictionary
from sixfold.decoding.front import Front
from sixfold.decoding.job import Hypothesis, Job, Ticket
from sixfold.decoding.looking import Looking
from sixfold.decoding.ordered import WINDOW, Lines
from sixfold.decoding.records import Line, Translation, lines_of
from sixfold.decoding.rules.forbidden_words import forbidden_words
from sixfold.decoding.session import DecodingSession, cut_to_fit, encode_lines, outputs
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.model import evaluating


class SourceAttention(NamedTuple):
    """The attention weights to the source from which each target piece was predicted."""

    source: list[str]  # n readable pieces, the last of which is the end
    target: list[str]  # L
    weights: Tensor  # (layers, heads, L, n)


class Translator(Front[EncoderDecoder, "TranslationSession"]):
    """Translates with a model, or with several as an ensemble, and their tokenizers.

    `decoding` is the configuration; a call may change its keys: `translate(lines, beam_size=4)`. A translation does not
    depend on the lines that share a batch with it. The models keep their device and precision.
    """

    verb = "translate"
    kind, can = EncoderDecoder, "translate"
    stack = "decoder"
    sides: ClassVar[dict[str, str]] = {"source": "encoder", "target": "decoder"}

    def translate(
        self,
        texts: Sequence[str],
        *,
        prefixes: Sequence[str | None] | None = None,
        terms: Sequence[Iterable[str]] | None = None,
        **options: Any,
    ) -> list[Translation]:
        """The translation of each line, in order; that of an empty line is empty.

        `prefixes` are the beginnings of the translations, and `terms` are lists of texts that they must contain: one
        prefix and one list for each line.
        The other options are those of `stream`.
        """
        if isinstance(texts, str):
            raise ValueError("translate takes a list of lines, got one text")
        return list(self.stream(lines_of(list(texts), prefixes, terms), **{"first": WINDOW, **options}))

    def stream(self, lines: Lines, **options: Any) -> Iterator[Translation]:
        """The translations of lines, in order, as the lines come; memory does not depend on their number.

        A line is a text, or a `Line` with the prefix and the terms that its translation must have. None among the lines
        means that no more are available at present: all earlier lines are answered before the next one is read. With
        `wait`, a function that returns when a line is available, lines are read before each step instead, and join the
        running batch; `wait` is called only when there is nothing to compute.

        `window` lines are sorted by length together; the first window has only `first` lines, so that the first
        translations come soon. `stop` is called before each step; if it returns True, `Stopped` is raised. With
        `workers`, that number of processes share the lines. Errors name lines by their number, beginning with `start`.
        `terms` must occur in every translation. `alignment` and `attention` add these to each translation; `tap`,
        `gates` and `trace` show and change the inside of the search (docs/decoding.md, "Looking inside"). The other
        options are keys of the section `decoding`.
        """
        return self._stream(lines, **options)

    def _session(self, decoding: Decoding, looking: Looking, terms: Sequence[str]) -> TranslationSession:
        return TranslationSession(self.owned, self.tokenizers, decoding, looking, terms)

    def cross_attention(self, source: str, target: str) -> SourceAttention:
        """The weights of all cross-attentions of the (first) model, in one pass that reads both texts."""
        read = [*self.tokenizers.source.encode(source), EOS]
        written = self.tokenizers.target.encode(target)
        device, tap = next(self.model.parameters()).device, Tap("decoder.*.cross")
        with evaluating(self.model), torch.inference_mode():
            memory = self.model.encode(torch.tensor([read], device=device))
            self.model.decode(torch.tensor([[BOS, *written]], device=device), memory, tap=tap)
        if not len(tap):
            raise ValueError("this model has no cross-attention whose weights can be shown")
        weights = torch.stack([tap[name][0] for name in tap]).float().cpu()
        pieces = self.tokenizers.source.pieces(read)
        if weights.shape[-1] != len(read):  # each state of a funnel represents several pieces
            pieces = [str(number) for number in range(1, weights.shape[-1] + 1)]
        return SourceAttention(pieces, self.tokenizers.target.pieces([*written, EOS]), weights)


class TranslationSession(DecodingSession):
    """A session of a translator, which adds alignments or attention to its translations on request."""

    @cached_property
    def dictionary(self) -> dict[str, str]:
        """Words that are written in place of source words, where those replace unknown words."""
        path = self.decoding.dictionary
        return {} if path is None else read_dictionary(path, self.tokenizer)

    def encode(self, lines: Sequence[Line]) -> list[list[int]]:
        return encode_lines(self.tokenizers.source, lines)

    def job(self, line: Line, ids: Sequence[int]) -> Job | None:
        """The source, truncated to the length that the encoders can read, and the limit of its translation."""
        if not ids:
            return None
        decoding, known = self.decoding, self.limit("encoder")
        places = None if known is None else known - 1  # EOS takes a position
        ids, note = cut_to_fit(ids, decoding, places, "the source")
        limit = max(int(decoding.max_ratio * len(ids)) + 10 + self.demanded(line), decoding.min_length)
        limit, most = min(limit, decoding.max_length), self.limit("decoder")
        if most is not None:
            limit = min(limit, most - 1)  # BOS takes a position
        rules, seed = self.rules(line), self.seed(ids, line)
        job = Job(source=[*ids, EOS], limit=limit, rules=rules, seed=seed, tag=line, note=note)
        return self.looking.at(job)

    def finish(self, tickets: Sequence[Ticket]) -> list[Translation]:
        """The texts of the hypotheses, with alignments or attention on request."""
        looked = self._attention(tickets)
        return [
            self._finish(each, [looked.get((id(each), number)) for number in range(len(each.found))])
            for each in tickets
        ]

    def _attention(self, tickets: Sequence[Ticket]) -> dict[tuple[int, int], Tensor | None]:
        """The attention (L, n) of each hypothesis that needs it, by its ticket and index."""
        every = ((ticket, number) for ticket in tickets for number in range(len(ticket.found)))
        needed = [(ticket, number) for ticket, number in every if self._needs_attention(number, ticket.found[number])]
        pairs = [(ticket.job.source, ticket.found[number].tokens) for ticket, number in needed]
        seen = looks(self.models, pairs, [ticket.job.gates for ticket, _ in needed])
        return {(id(ticket), number): look for (ticket, number), look in zip(needed, seen, strict=True)}

    def _needs_attention(self, number: int, hypothesis: Hypothesis) -> bool:
        shown = number == 0 and (self.looking.alignment or self.looking.attention)
        return shown or (self.decoding.replace_unknown and not self.tokenizer.spells and UNK in hypothesis.tokens)

    def _finish(self, ticket: Ticket, looked: Sequence[Tensor | None]) -> Translation:
        job = ticket.job
        texts = [self._text(job, each.tokens, look) for each, look in zip(ticket.found, looked, strict=True)]
        best, *others = outputs(ticket.found, texts, job.note)
        look = looked[0]
        alignment = align(look, job.source, best.tokens, self.tokenizers) if look is not None else None
        return replace(
            best,
            others=tuple(others),
            alignment=alignment if self.looking.alignment else None,
            attention=look if self.looking.attention else None,
            trace=ticket.trace,
        )

    def _text(self, job: Job, tokens: Sequence[int], look: Tensor | None) -> str:
        if not self.decoding.replace_unknown or look is None:
            return self.text(tokens)
        words = words_in_place_of_unknown(tokens, look, job.source, job.tag.text, self.tokenizers)
        translated = [word if word is None else self.dictionary.get(word, word) for word in words]
        return self.text(tokens, self._allowed(tokens, translated))

    def _allowed(self, tokens: Sequence[int], words: Sequence[str | None]) -> Sequence[str | None]:
        """The words in place of UNK. A word that would complete a forbidden word is left out: there <unk> remains."""
        if not self.decoding.forbidden_words:
            return words
        rule, allowed = forbidden_words(tuple(self.decoding.forbidden_words), self.tokenizer), list[str | None]()
        for word in words:
            fits = word is not None and not rule.found_in(self.text(tokens, [*allowed, word]))
            allowed.append(word if fits else None)
        return allowed
