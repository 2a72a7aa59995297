"""Validation: the loss on text that is not trained on, and the task's own metric by really decoding it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sixfold.config.schema import Config
from sixfold.core.loss import perplexity_of
from sixfold.decoding.generator import GenerationSession, Generator
from sixfold.decoding.records import Line
from sixfold.decoding.session import Stopped
from sixfold.decoding.translator import Extras, TranslationSession, Translator
from sixfold.models.decoder_only import DecoderOnly
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.model import Model
from sixfold.scoring.metrics import METRICS
from sixfold.text.batches import in_order
from sixfold.text.corpus import Prepared
from sixfold.text.tokenizer import UNK
from sixfold.training.processes import Processes, share
from sixfold.training.signals import Signals

LOSSES = ("loss", "perplexity")


def choose_metric(config: Config) -> str:
    """What says which weights are best."""
    kind, name = config.model.kind, config.training.metric
    if name == "auto":
        return "bleu" if kind == "encoder_decoder" else "loss"
    known = [*LOSSES, *(METRICS if kind == "encoder_decoder" else ())]
    if name not in known:
        raise ValueError(f"training.metric: there is no {name!r} for {kind}; there are {', '.join(known)}")
    return name


def check_validation(config: Config) -> None:
    """Raise a ValueError if validation can't be done as it is asked for."""
    training = config.training
    asked = {"metric": None if choose_metric(config) == "loss" else training.metric, "patience": training.patience}
    for key, value in asked.items():
        if value not in (None, "auto") and config.data.valid is None:
            raise ValueError(f"training.{key} is {value}, but there is nothing to validate on: give --data.valid too")


class Validation:
    """Scores a model; sentences are dealt to the processes, each of which has all weights."""

    def __init__(self, config: Config, prepared: Prepared, processes: Processes):
        self.config, self.prepared, self.processes = config, prepared, processes
        self.metric = choose_metric(config)

    @property
    def possible(self) -> bool:
        return self.prepared.valid is not None

    def rehearse(self, model: Model) -> None:
        """Raise a ValueError if the section `decoding` can't be kept to, by this model or for this text.

        All is done that is done before a search, so that a mistake is found before the first step is.
        """
        tokenizers, decoding = self.prepared.tokenizers, self.config.decoding
        if isinstance(model, EncoderDecoder):
            task: TranslationSession | GenerationSession = TranslationSession(
                Translator(model, tokenizers, decoding), decoding, Extras()
            )
        elif isinstance(model, DecoderOnly):
            task = GenerationSession(Generator(model, tokenizers, decoding), decoding, None)
        else:
            return  # it writes no text
        task.job(1, Line(""), [UNK])
        if not self.possible or self.metric not in METRICS:
            return
        lines = [Line(reference.source) for reference in self.prepared.references]
        for number, (line, ids) in enumerate(zip(lines, task.encode(lines), strict=True), 1):
            try:
                task.job(number, line, ids)
            except ValueError as error:
                raise ValueError(f"data.valid, text {number} ({line.text:.40}) can't be decoded: {error}") from None

    def is_better(self, scores: Mapping[str, float], best: float | None, best_loss: float | None) -> bool:
        """Whether these are the best so far: by the metric; of equals the lower loss; never what is no number."""
        value, loss = scores[self.metric], scores["loss"]
        if not (math.isfinite(value) and math.isfinite(loss)):
            return False
        if best is None or value == best:
            return best_loss is None or loss < best_loss
        up = self.metric in METRICS and METRICS[self.metric].higher_is_better
        return value > best if up else value < best

    def score(self, model: Model, signals: Signals) -> dict[str, float] | None:
        """The loss, the perplexity and the metric; None if a signal came in between."""
        losses = self._by_all(self._loss, model, signals)
        if losses is None:
            return None
        loss = sum(total for total, _ in losses) / sum(scored for _, scored in losses)
        scores = {"loss": loss, "perplexity": perplexity_of(loss)}
        if self.metric not in METRICS:
            return scores
        if not math.isfinite(loss):  # a model that knows no probabilities has nothing to say
            return {**scores, self.metric: math.nan}
        shares = self._by_all(self._decode, model, signals)
        if shares is None:
            return None
        hypotheses = [""] * len(self.prepared.references)
        for rank, texts in enumerate(shares):
            hypotheses[rank :: self.processes.size] = texts
        truth = [reference.targets for reference in self.prepared.references]
        return {**scores, **METRICS[self.metric].score(hypotheses, truth)}

    def _by_all(self, work: Callable[[Model, Signals], Any], model: Model, signals: Signals) -> list[Any] | None:
        """What each process has made of its share; None if a signal came in between, to whichever of them."""
        try:
            mine = work(model, signals)
        except Stopped:
            mine = None
        everybody = self.processes.gather(mine)
        if None in everybody:
            signals.asked = True
            return None
        return everybody

    @torch.inference_mode()
    def _loss(self, model: Model, signals: Signals) -> tuple[float, float]:
        """Σ −log p over this process's share, and over how many tokens."""
        assert self.prepared.valid is not None
        training, total, scored = self.config.training, 0.0, 0.0
        vocab = len(self.prepared.tokenizers.target)
        batches = in_order(self.prepared.valid, self.config.model.kind, training.batch_tokens, vocab)
        for number, batch in enumerate(batches):
            if signals.asked:
                raise Stopped
            if number % self.processes.size == self.processes.rank:
                losses = model(batch.to(self.processes.device))
                total, scored = total + float(losses.sum), scored + float(losses.tokens)
        return total, scored

    def _decode(self, model: Model, signals: Signals) -> list[str]:
        assert isinstance(model, EncoderDecoder), "only these have metrics"
        translator = Translator(model, self.prepared.tokenizers, self.config.decoding)
        sources = [reference.source for reference in share(self.prepared.references, self.processes)]
        return [t.text for t in translator.translate(sources, stop=lambda: signals.asked)]
