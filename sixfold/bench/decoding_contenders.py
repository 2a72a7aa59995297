"""The contenders of decoding.py: each translates lines, from text to text, with the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sixfold.bench.peer_models import absence, hugging_face
from sixfold.bench.race import OURS
from sixfold.bench.subject import BenchSubject
from sixfold.config.schema import Decoding, change_decoding
from sixfold.core.ids import EOS, PAD
from sixfold.decoding.ordered import WINDOW
from sixfold.decoding.session import RunOrigin
from sixfold.decoding.step import batches_by_length, padded
from sixfold.decoding.translator import Translator
from sixfold.decoding.workers import WorkerPool
from sixfold.foreign import ctranslate2 as to_ctranslate2

BATCH, ALONE = "batch", "one at a time"
_CHOICE, _BATCHES = "tokens in a batch", (1024, 2048, 4096)  # each contender chooses its fastest


class TimedTranslation(NamedTuple):
    """One translation."""

    text: str
    tokens: int  # tokens computed, including the end if it came before the limit


class Search(NamedTuple):
    """The search that all contenders perform."""

    beam: int
    way: str  # BATCH or ALONE
    limit: int  # tokens of an output

    def __str__(self) -> str:
        return f"{'greedy' if self.beam == 1 else f'beam {self.beam}'}, {self.way}"

    def written(self, text: str, tokens: int) -> TimedTranslation:
        return TimedTranslation(text, tokens + (tokens < self.limit))

    def calls(self, lines: Sequence[str]) -> list[list[str]]:
        """The lines of each call."""
        return [list(lines)] if self.way == BATCH else [[line] for line in lines]


class DecodingContender(NamedTuple):
    """A contender, and the settings it may choose from."""

    name: str
    precision: str
    write: Callable[[list[str], int], list[TimedTranslation]]  # (lines, the chosen setting)
    choices: Sequence[int] = (0,)
    chosen: str = ""  # the name of the setting; empty if there is none
    processes: bool = False  # worker processes do the work, and must be started first


class Contenders:
    """Makes the contenders of a search, and releases their resources at the end."""

    def __init__(self, subject: BenchSubject, precisions: Sequence[str], threads: int, folder: Path):
        self.subject, self.precisions, self.threads, self.folder = subject, precisions, threads, folder
        self.left_out: dict[str, str] = {}
        self._holding = ExitStack()
        self._hugging_face: Any = None

    def __enter__(self) -> Contenders:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest()

    def rest(self) -> None:
        """Stop the processes that were started for a search."""
        self._holding.close()

    def writers(self, search: Search, peers: Sequence[str]) -> list[DecodingContender]:
        found = [self._ours(search, precision) for precision in self.precisions]
        if search.way == BATCH and self.threads > 1:
            found += [self._workers(search, precision) for precision in self.precisions]
        for peer in peers:
            found += self._peer(peer, search)
        return found

    def _peer(self, peer: str, search: Search) -> list[DecodingContender]:
        """The contenders of a peer; none if it is not installed or can't express the model."""
        if peer == "x-transformers":
            self.left_out[peer] = "it has no cached decoding for an encoder-decoder"
        elif reason := absence(peer):
            self.left_out[peer] = reason
        elif peer not in self.left_out:
            try:
                if peer == "transformers":
                    return [self._transformers(search)] if "float32" in self.precisions else []
                return [self._ctranslate2(search, precision) for precision in self.precisions]
            except ValueError as error:
                self.left_out[peer] = str(error)
        return []

    def _ours(self, search: Search, precision: str) -> DecodingContender:
        subject = self.subject
        translator = Translator(subject.model, subject.tokenizers, self._decoding(search, precision))  # type: ignore[arg-type]

        def write(lines: list[str], choice: int) -> list[TimedTranslation]:
            size: dict[str, Any] = {"batch_tokens": choice} if choice else {}
            found = [each for call in search.calls(lines) for each in translator.translate(call, **size)]
            return [search.written(each.text, len(each.tokens)) for each in found]

        if search.way == ALONE:
            return DecodingContender(f"{OURS} {precision}", precision, write)
        return DecodingContender(f"{OURS} {precision}", precision, write, _BATCHES, _CHOICE)

    def _decoding(self, search: Search, precision: str, batch_tokens: int = _BATCHES[-1]) -> Any:
        """The section `decoding` for this search."""
        changes = {"batch_tokens": batch_tokens, "beam_size": search.beam, "precision": precision}
        limits = {"max_length": search.limit, "max_ratio": 1e6, "length_penalty": "none"}
        return change_decoding(Decoding(), {**changes, **limits})

    def _workers(self, search: Search, precision: str) -> DecodingContender:
        subject, workers = self.subject, self.threads
        origin = RunOrigin((str(subject.run.directory),), "cpu", subject.imports)
        pools: dict[int, WorkerPool] = {}

        def write(lines: list[str], choice: int) -> list[TimedTranslation]:
            if choice not in pools:
                pools[choice] = WorkerPool(origin, self._decoding(search, precision, choice), workers)
                self._holding.callback(pools[choice].close)
            size = WINDOW * workers
            found = pools[choice].stream(lines, window=size, first=size)
            return [search.written(each.text, len(each.tokens)) for each in found]

        name = f"{OURS} {precision}, {workers} workers"
        return DecodingContender(name, precision, write, _BATCHES[1:], _CHOICE, processes=True)

    def _ctranslate2(self, search: Search, precision: str) -> DecodingContender:
        """CTranslate2 on sixfold's export. For BATCH it works on as many batches at once as there are threads."""
        model, tokenizers, folder = self.subject.model, self.subject.tokenizers, self.folder / precision
        if not folder.exists():
            folder.mkdir()
            to_ctranslate2.write(model, tokenizers, folder, precision)
        source, target = to_ctranslate2.vocabularies(tokenizers)
        ids = {name: id_ for id_, name in enumerate(target)}
        engines: list[Any] = []
        options = {"beam_size": search.beam, "max_decoding_length": search.limit, "length_penalty": 0.0}

        def engine() -> Any:
            """One thread per batch: with more, waiting threads spin and take cores from the next contender."""
            if not engines:
                streams = self.threads if search.way == BATCH else 1
                size = {"inter_threads": streams, "intra_threads": 1}
                made = to_ctranslate2.engine().Translator(str(folder), device="cpu", compute_type=precision, **size)
                engines.append(made)
            return engines[0]

        def write(lines: list[str], choice: int) -> list[TimedTranslation]:
            found: list[TimedTranslation] = []
            translator = engine()
            rest = {"max_batch_size": choice, "batch_type": "tokens"} if choice else {}
            for call in search.calls(lines):
                rows = [[source[id_] for id_ in row] for row in tokenizers.source.encode_batch(call)]
                for each in translator.translate_batch(rows, max_input_length=0, **options, **rest):
                    tokens = [ids[name] for name in each.hypotheses[0]]
                    found.append(search.written(tokenizers.target.decode(tokens), len(tokens)))
            return found

        choices, chosen = (_BATCHES, _CHOICE) if search.way == BATCH else ((0,), "")
        return DecodingContender(f"ctranslate2 {precision}", precision, write, choices, chosen)

    def _transformers(self, search: Search) -> DecodingContender:
        """Hugging Face's `generate`, with sentences sorted by length."""
        tokenizers = self.subject.tokenizers
        if self._hugging_face is None:
            self._hugging_face = hugging_face(self.subject.model, 1024)
        peer = self._hugging_face
        peer.generation_config.forced_eos_token_id = None
        options: dict[str, Any] = {"num_beams": search.beam, "do_sample": False, "max_new_tokens": search.limit}
        options |= {"length_penalty": 0.0} if search.beam > 1 else {}

        @torch.inference_mode()
        def write(lines: list[str], choice: int) -> list[TimedTranslation]:
            found: list[TimedTranslation] = []
            for call in search.calls(lines):
                rows = [[*row, EOS] for row in tokenizers.source.encode_batch(call)]
                outputs: dict[int, list[int]] = {}
                for places in batches_by_length([(len(row),) for row in rows], choice // search.beam):
                    source = padded([rows[place] for place in places], torch.device("cpu"))
                    ids = peer.generate(input_ids=source, attention_mask=(source != PAD).long(), **options)
                    outputs |= dict(zip(places, ids[:, 1:].tolist(), strict=True))
                for place in range(len(rows)):
                    tokens = _until_the_end(outputs[place])
                    found.append(search.written(tokenizers.target.decode(tokens), len(tokens)))
            return found

        choices, chosen = (_BATCHES[::2], _CHOICE) if search.way == BATCH else ((0,), "")
        return DecodingContender("transformers float32", "float32", write, choices, chosen)


def _until_the_end(ids: list[int]) -> list[int]:
    return ids[: next((place for place, id_ in enumerate(ids) if id_ in (EOS, PAD)), len(ids))]
