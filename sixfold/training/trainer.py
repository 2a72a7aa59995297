"""The training loop, in the order of events. make_trainer.py builds its parts."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from sixfold.core.batch import Batch
from sixfold.core.device import autocast, generators, set_generators
from sixfold.core.loss import perplexity_of
from sixfold.core.sharded_tensors import whole
from sixfold.models.model import evaluating
from sixfold.training import checkpoint
from sixfold.training.guard import Guard, Verdict
from sixfold.training.observers.log import strict
from sixfold.training.observers.observer import StepDone, Validated
from sixfold.training.run_state import Reason, RunState
from sixfold.training.schedule import rate
from sixfold.training.signals import Signals
from sixfold.training.trainer_parts import Parts
from sixfold.training.what_next import about_signal


class Trainer:
    """Trains the model of one run, on one of its processes."""

    def __init__(self, parts: Parts):
        self.parts, self.training = parts, parts.training
        self.model, self.batches, self.processes, self.store = parts.model, parts.batches, parts.processes, parts.store
        self.validation, self.pace = parts.validation, parts.pace
        self.mine = self.processes.mine(self.processes.size * self.training.accumulate)
        self.guard, self.progress, self.signals = Guard(), RunState(), Signals(self.answer)
        self.saved = False  # whether there is a checkpoint of this state
        self.gradient = math.nan  # its norm in the last step
        self.scores: dict[str, float] = {}  # of the last validation
        self._began = time.monotonic()

    @property
    def steps(self) -> int:
        """Steps of the complete run, as planned now."""
        return self.pace.steps

    def train(self) -> Reason:
        """Train until there is a reason to stop. → the reason"""
        self.model.train()
        for observer in self.parts.observers:
            observer.begin(self.progress.step, self.pace.known_steps)
        with self.signals:
            while True:
                if self.validation_is_due():
                    self.validate()
                    self.decay()
                reason = self.reason_to_stop()
                if not self.saved and (reason or self.checkpoint_is_due()):
                    self.save()
                if reason:
                    self.tell()  # after the checkpoint, which itself holds the sums since the last line
                    self.record("stopped", reason=reason.text)
                    return reason
                self.step()
                self.plan()

    # One step ------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One optimiser step: the gradient of all micro-batches as of one batch, then the guard's verdict."""
        started, self.saved = time.perf_counter(), False
        batches = [self.ready(batch, number) for number, batch in enumerate(self.batches.next(self.mine))]
        counts = self.count(batches)
        losses = self.backward(batches, counts)
        norm = self.clip()
        self.progress.step += 1
        self.learn(self.parts.watched(losses), norm)
        self.progress.tokens += int(counts[self.parts.main])
        self.note(losses, norm, counts, time.perf_counter() - started)

    def ready(self, batch: Batch, number: int = 0) -> Batch:
        """A micro-batch on the device, after the task's `before`, in evaluation mode and without gradient.

        Its key, the seed of all randomness in `before`, differs for each micro-batch.
        """
        batch = batch.to(self.processes.device)
        rewrite = self.parts.rewriting((self.training.seed, self.progress.step, self.processes.rank, number))
        if rewrite is None:
            return batch
        with torch.no_grad(), evaluating(self.model), autocast(self.processes.device, self.training.precision):
            return self.parts.callable(batch, rewrite)  # inside forward, where FSDP has gathered the weights

    def count(self, batches: Sequence[Batch]) -> dict[str, float]:
        """The counts of the step, summed over all micro-batches and processes."""
        names = list(batches[0].counts)
        return dict(
            zip(names, self.processes.sum(*(float(sum(b.counts[n] for b in batches)) for n in names)), strict=True)
        )

    def backward(self, batches: Sequence[Batch], counts: Mapping[str, float]) -> dict[str, float]:
        """Add the gradients of all terms, each divided by its count in the step. → the reported loss of each term

        A term without its own count, such as an auxiliary loss, is divided by that of the main term.
        """
        training, main = self.training, counts[self.parts.main]
        shown, measured = dict.fromkeys(counts, 0.0), dict[str, Tensor]()
        for number, batch in enumerate(batches, 1):
            with self.processes.gradients(self.parts.callable, last=number == len(batches)):
                with autocast(self.processes.device, training.precision):
                    terms = self.parts.callable(batch, self.parts.losses)
                batch.need_terms(terms)
                # DDP and FSDP average gradients over processes; times their number, they are summed.
                shares = {name: self.processes.size / max(counts.get(name, main), 1.0) for name in terms}
                sum(term.sum * shares[name] for name, term in terms.items()).backward()
            for name in counts:
                shown[name] += float(terms[name].shown)
            for name, term in terms.items():
                if term.shown.dim():
                    measured[name] = measured.get(name, 0) + term.shown.double()
        for name, values in measured.items():
            self.progress.measure(name, self.processes.sum(*values.tolist()))
        total = self.processes.sum(*shown.values())
        return {name: value / max(counts[name], 1.0) for name, value in zip(shown, total, strict=True)}

    def clip(self) -> float:
        """Clip the gradient's norm to training.clip. → the norm before"""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip or math.inf)
        return float(whole(norm))

    def learn(self, loss: float, norm: float) -> None:
        """Make the optimiser step, unless the guard objects."""
        step, verdict = self.progress.step, self.guard.judge(loss, norm)
        if verdict is Verdict.GO:
            self.set_rate()
            for optimizer in self.parts.optimizers:
                optimizer.step()
            self.model.after_step(step, self.steps)
            self.store.average.update(self.model)
        else:
            self.record(verdict.value, reason=self.guard.reason, loss=loss, gradient=norm)
            if self.parts.carried is not None:
                self.parts.carried.forget()
        for optimizer in self.parts.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if verdict in (Verdict.ROLL_BACK, Verdict.STOP):  # the last checkpoint should be a good state, too
            self.roll_back()

    def set_rate(self) -> None:
        base = self.rate()
        for optimizer in self.parts.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = base * group["factor"]

    def rate(self) -> float:
        return rate(self.training, self.pace.virtual_step(self.progress.step), self.steps) * self.guard.rate

    def decay(self) -> None:
        """In a run without a length, begin the decay when patience ends: from the weights of the best checkpoint."""
        steps = self.pace.decay(self.progress.step, self.progress.waited)
        if steps is None:
            return
        best = self.store.run.training / f"step-{self.best_step()}"
        self.load_tensors(checkpoint.read(best))
        self.progress.waited = 0
        self.change_plan(steps)

    def plan(self) -> None:
        """In a run by minutes, change the number of steps if a plan is due. The first process decides."""
        steps = self.pace.plan(self.progress.step, self.training.validate_every)
        if self.training.minutes is not None:
            steps = self.processes.agree(steps)
        if steps is not None:
            self.change_plan(steps)

    def change_plan(self, steps: int) -> None:
        self.pace.add(self.progress.step, steps)
        self.record("plan", steps=steps)

    # Log and observers ---------------------------------------------------------------------------------------

    def note(self, losses: Mapping[str, float], norm: float, counts: Mapping[str, float], seconds: float) -> None:
        """Add a step to the sums for the next line of the log, and call the observers."""
        progress, main, self.gradient = self.progress, self.parts.main, norm
        loss, scored = losses[main], counts[main]
        if math.isfinite(loss):
            progress.loss += loss * scored
            progress.scored += scored
        for name in counts.keys() - {main}:
            total, number = progress.terms.get(name, (0.0, 0.0))
            progress.terms[name] = [total + losses[name] * counts[name], number + counts[name]]
        progress.padding.append(self.batches.padding)
        self.pace.tell_step(seconds)
        padding, unit = self.batches.padding, "tokens" if main == "words" else main
        done = StepDone(progress.step, self.pace.known_steps, loss, self.rate(), scored, seconds, padding, unit)
        for observer in self.parts.observers:
            observer.step(done)
        if progress.step % self.training.log_every == 0 or progress.step == self.steps:
            self.tell()

    def tell(self) -> None:
        """Write a line of the log on the steps since the last line, if there are any."""
        progress = self.progress
        if not progress.padding:
            return
        mean = progress.loss / progress.scored if progress.scored else math.nan
        self.record(
            "train",
            epoch=self.batches.epoch,
            loss=mean,
            perplexity=perplexity_of(mean),
            **{self.parts.label(name): total / max(n, 1.0) for name, (total, n) in sorted(progress.terms.items())},
            **progress.shares(),
            learning_rate=self.rate(),
            gradient=self.gradient,
            tokens=progress.tokens,
            padding=sum(progress.padding) / len(progress.padding),
            seconds=self.seconds(),
        )
        progress.loss, progress.scored, progress.padding = 0.0, 0.0, []
        progress.terms, progress.measured = {}, {}

    def seconds(self) -> float:
        """Seconds since this trainer was built."""
        return time.monotonic() - self._began

    def record(self, kind: str, **fields: Any) -> None:
        """Write a line of the log, and hand it to all observers."""
        line = strict({"kind": kind, "step": self.progress.step, **fields})
        for observer in (*([] if self.parts.log is None else [self.parts.log]), *self.parts.observers):
            observer.record(line)

    def answer(self, signal: str, again: bool) -> None:
        """Print the effect of a signal at once. Called by the listening thread."""
        step = self.progress.step
        self.parts.say(about_signal(signal, again, self.store.run.directory, step, self.store.saved_step(step)))

    # Validation, and when to stop -----------------------------------------------------------------------------

    def validation_is_due(self) -> bool:
        step = self.progress.step
        if step == 0:
            return self.validation.at_start and self.validation.possible and self.progress.best is None
        planned = self.pace.crosses(step, self.training.validate_every) or step == self.steps
        return planned and self.progress.validated != step and self.validation.possible

    def validate(self) -> None:
        """Score the current weights, or their average, on held-out text."""
        started = time.perf_counter()
        self.store.load_candidate(self.model, self.progress.step)
        scores = self.validation.score(self.store.candidate, self.signals)
        if scores is None:  # interrupted by a signal: it is repeated on resuming
            return
        self.pace.tell_validation(time.perf_counter() - started)
        self.saved, self.scores = False, scores
        progress = self.progress
        progress.validated = progress.step
        better = self.validation.is_better(scores, progress.best, progress.best_loss)
        if better:
            progress.best, progress.best_loss = scores[self.validation.metric], scores["loss"]
            progress.best_step, progress.waited = progress.step, 0
        else:
            progress.waited += 1
        progress.first = progress.first or self.validation.watched(scores)
        progress.drifted = self.validation.drifted(progress.first, scores)
        self.record("valid", best=better, **scores)
        done = Validated(progress.step, scores, self.validation.prepared.references, self.validation.answers)
        for observer in self.parts.observers:
            observer.validated(done)

    def reason_to_stop(self) -> Reason | None:
        progress, patience = self.progress, self.training.patience
        if self.guard.gave_up:
            return Reason(self.guard.gave_up)
        if progress.drifted:
            return Reason(f"{progress.drifted}; the best weights, of step {self.best_step():,}, are kept")
        if progress.step >= self.steps and not self.validation_is_due():  # a signal may have interrupted it
            return Reason(f"all {self.steps:,} steps are done")
        if patience is not None and progress.waited >= patience and self.pace.patience_ends:
            return Reason(f"no better {self.validation.metric} in {patience} validations")
        if self.processes.any(self.signals.asked):  # a signal may reach one process only, but all stop together
            return Reason(f"interrupted by {self.signals.name or 'a signal'}", asked=True)
        return None

    # Checkpoints ----------------------------------------------------------------------------------------------

    def checkpoint_is_due(self) -> bool:
        step = self.progress.step
        validated = self.validation.possible and self.progress.validated == step
        return self.pace.crosses(step, self.training.checkpoint_every) or validated

    def save(self) -> None:
        """Write a checkpoint."""
        step = self.progress.step
        self.store.load_candidate(self.model, step)
        random = self.processes.gather_tensors(generators(self.processes.device))
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": checkpoint.optimizer_tensors(self.model, self.parts.optimizers),
            "random": {str(rank): state for rank, state in enumerate(random)},
            **({"carried": self.parts.carried.tensors()} if self.parts.carried is not None else {}),
        }
        grid = self.pace.crosses(step, self.training.checkpoint_every)
        self.store.write(self.state(), tensors, self.best_step(), grid)
        self.saved = True

    def state(self) -> dict[str, Any]:
        """The state that is not tensors."""
        return {
            "step": self.progress.step,
            "progress": asdict(self.progress),
            "batches": self.batches.state(),
            "guard": self.guard.state(),
            "healthy": self.guard.healthy,
            "log": 0 if self.parts.log is None else self.parts.log.size(),
            **self.pace.state(),
            "processes": self.processes.size,
            "threads": torch.get_num_threads(),
            **self.parts.said,
        }

    def best_step(self) -> int:
        return self.progress.step if self.progress.best is None else self.progress.best_step

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Continue from a checkpoint, bit for bit; with changed data, from the beginning of the next epoch."""
        state, mine = saved.state, self.parts.said["data"]
        data = state.get("data", mine)  # early checkpoints lack it
        assert data["tokenizers"] == mine["tokenizers"], "need_same_tokenizers has checked this"
        self.load_tensors(saved)
        self.progress = RunState(**state["progress"])
        position, same = state["batches"], data["hashes"] == mine["hashes"]
        self.batches.load_state(position if same else {**position, "epoch": position["epoch"] + 1, "index": 0})
        self.guard.load_state(state["guard"])
        if self.parts.carried is not None:
            self.parts.carried.load(saved.tensors("carried"), self.processes.device)
        self.pace.load_state(state)
        if self.parts.log is not None and (lost := self.parts.log.cut(state["log"])):
            self.parts.say(lost)
        if state["processes"] == self.processes.size:
            set_generators(saved.tensors("random")[str(self.processes.rank)], self.processes.device)
        else:
            torch.manual_seed(self.training.seed * 1_000_003 + state["step"] * 997 + self.processes.rank)
        self.saved = True
        if self.processes.first:  # the writes after the checkpoint may have been interrupted
            self.store.restore_best(saved, self.best_step())
            self.store.prune(self.progress.step, self.best_step(), later_too=False)

    def roll_back(self) -> None:
        """Load the weights and optimisers of the last good checkpoint; the position in the data stays."""
        if (good := self.store.last_good(self.progress.step)) is not None:
            self.load_tensors(good)

    def load_tensors(self, saved: checkpoint.Checkpoint) -> None:
        weights = self.model.state_dict()
        checkpoint.load_weights(self.model, saved.tensors("model", weights))
        checkpoint.load_optimizers(self.model, self.parts.optimizers, saved.tensors("optimizer", weights))
        self.store.average.load(saved)
