"""Validation: the loss on held-out text, and the task's metric on the model's decoded answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sixfold.config.schema import Config
from sixfold.core.loss import perplexity_of
from sixfold.decoding.ordered import Stopped
from sixfold.models.model import Model
from sixfold.scoring.metrics import METRICS
from sixfold.scoring.outputs import output_statistics
from sixfold.tasks.task import Task
from sixfold.text.corpus import Prepared
from sixfold.training.drift import drifted, watched
from sixfold.training.processes import Processes, share
from sixfold.training.signals import Signals


def choose_metric(config: Config, task: Task) -> str:
    """The metric that decides which weights are best."""
    name = config.training.metric
    if name == "auto":
        return task.usual_metric
    if name not in task.known_metrics:
        raise ValueError(
            f"training.metric: there is no {name!r} for {task.name}; there are {', '.join(task.known_metrics)}"
        )
    return name


def check_validation(config: Config, task: Task) -> None:
    """Raise a ValueError if a metric or patience is configured without validation text."""
    training = config.training
    metric = None if choose_metric(config, task) == "loss" else training.metric
    for key, value in {"metric": metric, "patience": training.patience}.items():
        if value not in (None, "auto") and not config.data.validates:
            raise ValueError(
                f"training.{key} is {value}, but there is no text to validate on: give --data.valid, or leave out "
                f"--data.held_out 0"
            )


class Validation:
    """Scores a model; the sentences are divided among the processes, each of which has all weights."""

    def __init__(self, config: Config, task: Task, prepared: Prepared, processes: Processes):
        self.config, self.task, self.prepared, self.processes = config, task, prepared, processes
        self.metric = choose_metric(config, task)
        self.answers: list[str] = []  # of the last validation, if the metric needs them

    @property
    def possible(self) -> bool:
        return self.prepared.valid is not None

    def rehearse(self, model: Model) -> None:
        """Raise a ValueError if this model can't decode this text with the section `decoding`."""
        if self.task.rehearse is not None:
            asked = self.prepared.references if self.possible and self.metric in METRICS else []
            self.task.rehearse(self._user(model), asked)

    def is_better(self, scores: Mapping[str, float], best: float | None, best_loss: float | None) -> bool:
        """Whether these scores are the best so far: by the metric, then by the lower loss; never NaN."""
        value, loss = scores[self.metric], scores["loss"]
        if not (math.isfinite(value) and math.isfinite(loss)):
            return False
        if best is None or value == best:
            return best_loss is None or loss < best_loss
        up = self.metric in METRICS and METRICS[self.metric].higher_is_better
        return value > best if up else value < best

    @property
    def at_start(self) -> bool:
        """Whether the weights before the first step are validated, too."""
        return self.task.trained

    def watched(self, scores: Mapping[str, float]) -> dict[str, float]:
        """The scores that end a run of this task if they drift; none for most tasks."""
        return {} if self.task.drift is None or self.metric not in METRICS else watched(scores, METRICS[self.metric])

    def drifted(self, first: Mapping[str, float], scores: Mapping[str, float]) -> str:
        """How scores have left the limits that the first validation sets; empty if they have not."""
        return drifted(first, scores, METRICS[self.metric], self.task.drift or 0.0) if first else ""

    def score(self, model: Model, signals: Signals) -> dict[str, float] | None:
        """The losses, the metric and, for pairs, statistics of outputs; None if a signal interrupted it."""
        shares = self._by_all(self._losses, model, signals)
        if shares is None:
            return None
        losses = {
            name: sum(each[name][0] for each in shares) / max(sum(each[name][1] for each in shares), 1.0)
            for name in shares[0]
        }
        loss = losses.pop(self.task.main)
        scores = {
            "loss": loss,
            "perplexity": perplexity_of(loss),
            **{self.task.label(name): value for name, value in losses.items()},
        }
        if self.metric not in METRICS:
            return scores
        if not math.isfinite(loss):  # then decoding would compute NaN as well
            return {**scores, self.metric: math.nan}
        answers = self._by_all(self._answers, model, signals)
        if answers is None:
            return None
        self.answers = [""] * len(self.prepared.references)
        for rank, texts in enumerate(answers):
            self.answers[rank :: self.processes.size] = texts
        truth = [reference.targets for reference in self.prepared.references]
        scores |= METRICS[self.metric].score(self.answers, truth)
        return scores | (output_statistics(self.answers, self.prepared.references) if self.task.form.has_pairs else {})

    def _by_all(self, work: Callable[[Model, Signals], Any], model: Model, signals: Signals) -> list[Any] | None:
        """The results of all processes; None if a signal interrupted any of them."""
        try:
            mine = work(model, signals)
        except Stopped:
            mine = None
        results = self.processes.gather(mine)
        if None in results:
            signals.asked = True
            return None
        return results

    @torch.inference_mode()
    def _losses(self, model: Model, signals: Signals) -> dict[str, tuple[float, float]]:
        """For each term its sum and its count, over this process's share."""
        valid, task = self.prepared.valid, self.task
        assert valid is not None
        score, words = task.scoring(self.prepared.tokenizers), len(self.prepared.tokenizers.target)
        batches = task.in_order(valid, self.config.training.batch_tokens, words)
        found: dict[str, tuple[float, float]] = {}
        for number, batch in enumerate(batches):
            if signals.asked:
                raise Stopped
            before = {name: found.get(name, (0.0, 0.0)) for name in batch.counts}
            found = {**before, **found}
            if number % self.processes.size == self.processes.rank:
                terms, counts = score(model, batch.to(self.processes.device), number)
                for name, (total, scored) in before.items():
                    found[name] = total + float(terms[name].shown), scored + counts[name]
        return found

    def _answers(self, model: Model, signals: Signals) -> list[str]:
        assert self.task.answers is not None, "only a task with metrics is asked"
        sources = [reference.source for reference in share(self.prepared.references, self.processes)]
        return self.task.answers(self._user(model), sources, lambda: signals.asked)

    def _user(self, model: Model) -> Any:
        assert self.task.user is not None
        prepared = self.prepared
        return self.task.user(
            model, prepared.tokenizers, self.config.decoding, labels=prepared.labels, data=self.config.data
        )
