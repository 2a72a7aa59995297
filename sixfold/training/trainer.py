"""The training loop: what happens in a run, in the order in which it happens."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from sixfold.config.schema import Config
from sixfold.core.batch import Batch
from sixfold.core.device import autocast, generators, set_generators
from sixfold.core.ids import PAD
from sixfold.core.loss import perplexity_of
from sixfold.core.sharded_tensors import whole, whole_tensors
from sixfold.models.build import build
from sixfold.runs import model_files
from sixfold.runs.run import Run, versions
from sixfold.text.batches import Batches
from sixfold.text.corpus import Prepared
from sixfold.training import checkpoint
from sixfold.training.average import make_average
from sixfold.training.guard import Guard, Verdict
from sixfold.training.log import Log
from sixfold.training.optimizer import make_optimizers
from sixfold.training.processes import Processes
from sixfold.training.schedule import rate
from sixfold.training.signals import Signals
from sixfold.training.validation import Validation
from sixfold.training.what_next import to_resume

if TYPE_CHECKING:
    from sixfold.training.display import Display


@dataclass
class RunState:
    """What changes in the course of a run, besides tensors and the place in the data."""

    step: int = 0
    tokens: int = 0  # scored target tokens so far
    validated: int = 0  # the last step that was validated
    best: float | None = None  # of the metric
    best_loss: float | None = None  # of the same weights
    best_step: int = 0
    waited: int = 0  # validations since then
    # Since the last line of the log:
    loss: float = 0.0
    scored: float = 0.0
    padding: list[float] = field(default_factory=list)


class Reason(NamedTuple):
    """Why a run stops."""

    text: str
    asked: bool = False  # by a signal: there is more to do


class Trainer:
    """Trains the model of one run, on one of its processes."""

    def __init__(self, run: Run, config: Config, prepared: Prepared, processes: Processes, display: Display):
        self.run, self.config, self.processes, self.display = run, config, processes, display
        training = config.training
        assert training.steps is not None, "minutes must have been turned into steps"
        self.steps = training.steps
        made = config.sizes_with(prepared.tokenizers), config.model.modifications, config.model.kind
        self.model = build(*made, seed=training.seed).to(processes.device)
        self.candidate = build(*made, device="meta").to_empty(device=processes.device).eval()
        if training.compile:
            self.model.compile()
        self.callable = processes.wrap(self.model, training.parallel)
        self.optimizers = make_optimizers(self.model, training)
        pieces = processes.size * training.accumulate
        self.mine = processes.mine(pieces)
        self.batches = Batches(
            prepared.train,
            config.model.kind,
            batch_tokens=training.batch_tokens,
            seed=training.seed,
            pieces=pieces,
            vocab=len(prepared.tokenizers.target),
        )
        fingerprints = [tokenizer.fingerprint for tokenizer in prepared.tokenizers]
        self.data = {"hashes": prepared.hashes, "tokenizers": fingerprints}
        self.average = make_average(training, run, processes)
        self.validation = Validation(config, prepared, processes)
        self.guard, self.progress = Guard(), RunState()
        self.saved = False  # whether there is a checkpoint of all this
        self.gradient = math.nan  # its norm in the last step of this process
        self.log, self.signals = Log(run, display, active=processes.first), Signals(self.answer)
        torch.manual_seed(training.seed * 1_000_003 + processes.rank)  # dropout differs between processes

    def move(self, run: Run) -> None:
        """Go on in another directory, to which all that was written has been moved. No step has been made."""
        assert self.progress.step == 0, "averages and the log belong to the directory where they began"
        self.run, self.log = run, Log(run, self.display, active=self.processes.first)
        self.average = make_average(self.config.training, run, self.processes)

    def train(self) -> Reason:
        """Go on until there is a reason to stop. → the reason"""
        self.model.train()
        self.display.begin(self.progress.step, self.steps)
        with self.signals:
            while True:
                if self.validation_is_due():
                    self.validate()
                reason = self.reason_to_stop()
                if not self.saved and (reason or self.checkpoint_is_due()):
                    self.save()
                if reason:
                    self.tell()  # after the checkpoint, which remembers the steps since the last line itself
                    self.log.event(self.progress.step, "stopped", reason=reason.text)
                    return reason
                self.step()

    def answer(self, signal: str, again: bool) -> None:
        """Say what a signal does, at once: this is called by another thread."""
        resume, step = to_resume(self.run.directory), self.progress.step
        if not again:
            self.display.say(
                f"{signal}: it stops after this step and saves (a second {signal} leaves at once, without saving); "
                f"go on with: {resume}"
            )
            return
        saved = max(
            (s for s in map(checkpoint.step_of, checkpoint.checkpoints_in(self.run.training)) if s <= step), default=0
        )
        self.display.say(
            f"{signal} again: it leaves at step {step:,} and loses all since the checkpoint of step {saved:,}; "
            f"go on with: {resume}"
        )

    def step(self) -> None:
        """One optimiser step: all micro-batches, their gradients as of one batch, and what the guard says of them."""
        started, self.saved = time.perf_counter(), False
        batches = [batch.to(self.processes.device) for batch in self.batches.next(self.mine)]
        scored = float(sum(int((batch.targets != PAD).sum()) for batch in batches))
        scored = self.processes.sum(scored)[0]
        loss = self.backward(batches, scored)
        norm = self.clip()
        self.progress.step += 1
        self.learn(loss, norm)
        self.progress.tokens += int(scored)
        self.record(loss, norm, scored, time.perf_counter() - started)

    def backward(self, batches: list[Batch], scored: float) -> float:
        """Gradients of the loss per token of the whole step. → that loss, without smoothing and auxiliaries"""
        training, total = self.config.training, 0.0
        for number, batch in enumerate(batches, 1):
            together = self.processes.gradients(self.callable, last=number == len(batches))
            with together:
                with autocast(self.processes.device, training.precision):
                    losses = self.callable(batch, training.label_smoothing, training.recompute)
                # What each process has is averaged over processes, and we want the sum.
                share = self.processes.size / scored
                ((losses.sum + losses.auxiliary * losses.tokens) * share).backward()
            total += float(losses.plain)
        return self.processes.sum(total)[0] / scored

    def clip(self) -> float:
        """Scale the gradient down to the norm allowed. → the norm it had"""
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.training.clip or math.inf)
        return float(whole(norm))

    def learn(self, loss: float, norm: float) -> None:
        """Let the optimiser act, unless the guard objects."""
        step, verdict = self.progress.step, self.guard.judge(loss, norm)
        if verdict is Verdict.GO:
            self.set_rate()
            for optimizer in self.optimizers:
                optimizer.step()
            self.model.after_step(step, self.steps)
            self.average.update(self.model)
        else:
            self.log.event(step, verdict.value, reason=self.guard.reason, loss=loss, gradient=norm)
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        if verdict in (Verdict.ROLL_BACK, Verdict.STOP):  # what is left behind should be a good state, too
            self.roll_back()

    def set_rate(self) -> None:
        base = self.rate()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = base * group["factor"]

    def rate(self) -> float:
        return rate(self.config.training, self.progress.step, self.steps) * self.guard.rate

    def record(self, loss: float, norm: float, scored: float, seconds: float) -> None:
        """Add a step to what the next line of the log will say; the display hears of each."""
        progress = self.progress
        if math.isfinite(loss):
            progress.loss += loss * scored
            progress.scored += scored
        progress.padding.append(self.batches.padding)
        self.gradient = norm
        self.display.step(progress.step, self.steps, loss, self.rate(), scored, seconds, self.batches.padding)
        if progress.step % self.config.training.log_every == 0 or progress.step == self.steps:
            self.tell()

    def tell(self) -> None:
        """A line of the log on the steps since the last one, if there are any."""
        progress = self.progress
        if not progress.padding:
            return
        mean = progress.loss / progress.scored if progress.scored else math.nan
        self.log.write(
            "train",
            progress.step,
            epoch=self.batches.epoch,
            loss=mean,
            perplexity=perplexity_of(mean),
            learning_rate=self.rate(),
            gradient=self.gradient,
            tokens=progress.tokens,
            padding=sum(progress.padding) / len(progress.padding),
            seconds=self.log.seconds(),
        )
        progress.loss, progress.scored, progress.padding = 0.0, 0.0, []

    def validation_is_due(self) -> bool:
        step = self.progress.step
        planned = step % self.config.training.validate_every == 0 or step == self.steps
        return step > 0 and planned and self.progress.validated != step and self.validation.possible

    def validate(self) -> None:
        """Score the weights as they are, or their average, on text that is not trained on."""
        self.load_candidate()
        scores = self.validation.score(self.candidate, self.signals)
        if scores is None:  # somebody asked to stop, and cannot wait: it is done on resuming
            return
        self.saved = False
        progress = self.progress
        progress.validated = progress.step
        better = self.validation.is_better(scores, progress.best, progress.best_loss)
        if better:
            progress.best, progress.best_loss = scores[self.validation.metric], scores["loss"]
            progress.best_step, progress.waited = progress.step, 0
        else:
            progress.waited += 1
        self.log.write("valid", progress.step, best=better, **scores)

    def reason_to_stop(self) -> Reason | None:
        progress, patience = self.progress, self.config.training.patience
        if self.guard.gave_up:
            return Reason(self.guard.gave_up)
        if progress.step >= self.steps and not self.validation_is_due():  # which a signal may have put off
            return Reason(f"all {self.steps:,} steps are done")
        if patience is not None and progress.waited >= patience:
            return Reason(f"no better {self.validation.metric} in {patience} validations")
        if self.processes.any(self.signals.asked):  # a signal reaches one before the other, but they leave together
            return Reason(f"{self.signals.name or 'a signal'} asked to stop", asked=True)
        return None

    def checkpoint_is_due(self) -> bool:
        step, training = self.progress.step, self.config.training
        return step % training.checkpoint_every == 0 or (self.validation.possible and self.progress.validated == step)

    def save(self) -> None:
        """Write everything down; then the model that is best so far, which can be made again from it."""
        step = self.progress.step
        grid = step % self.config.training.checkpoint_every == 0
        self.load_candidate()
        random = self.processes.gather_tensors(generators(self.processes.device))
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": checkpoint.optimizer_tensors(self.model, self.optimizers),
            "random": {str(rank): state for rank, state in enumerate(random)},
            **self.average.saved(self.candidate),
        }
        state = {**self.state(), "grid": grid}
        checkpoint.write(self.run.training / f"step-{step}", state, tensors, self.processes)
        self.saved = True
        self.derive()
        if self.processes.first:
            self.prune()
        self.processes.wait()

    def prune(self, later_too: bool = True) -> None:
        """Delete the checkpoints that nobody will need again.

        Later ones than this step are damaged, and of a future that will be another one; but until there is something
        in their place, they may stay.
        """
        now, keep = self.progress.step, self.config.training.keep
        steps = [checkpoint.step_of(p) for p in checkpoint.checkpoints_in(self.run.training)]
        recent, later = [s for s in steps if s <= now], [s for s in steps if s > now]
        wanted = {*recent[:keep], self.progress.best_step, *self.average.needs(recent), *self.good_steps()[:1]}
        checkpoint.prune(self.run.training, wanted if later_too else wanted.union(later))

    def state(self) -> dict[str, Any]:
        """All that is not a tensor."""
        return {
            "step": self.progress.step,
            "progress": asdict(self.progress),
            "data": self.data,
            "batches": self.batches.state(),
            "guard": self.guard.state(),
            "healthy": self.guard.healthy,
            "log": self.log.size(),
            "processes": self.processes.size,
            "threads": torch.get_num_threads(),
            "versions": versions(),
            "config": self.config.model_dump(mode="json"),
        }

    def derive(self) -> None:
        """The run's own model is the best one; as long as no validation has found one, the last."""
        if self.processes.first and self.best_step() == self.progress.step:
            model_files.save(self.candidate, self.run.directory, overwrite=True)

    def derive_again(self, saved: checkpoint.Checkpoint) -> None:
        """The run's own model as it was when this checkpoint was the last, whatever has become of it since."""
        step = self.best_step()
        try:
            best = saved if step == saved.step else checkpoint.read(self.run.training / f"step-{step}")
        except checkpoint.DamagedError as damage:
            self.display.say(f"{damage}; that was the best so far, so {model_files.WEIGHTS} is left as it is")
            return
        checkpoint.load_weights(self.candidate, self.average.handed_out(best))
        model_files.save(self.candidate, self.run.directory, overwrite=True)

    def best_step(self) -> int:
        return self.progress.step if self.progress.best is None else self.progress.best_step

    def load_candidate(self) -> None:
        """Give the copy that is validated and handed out the weights of now, averaged if that is wished."""
        weights = whole_tensors(self.model.state_dict())
        checkpoint.load_weights(self.candidate, self.average.weights(weights, self.progress.step))

    def restore(self, saved: checkpoint.Checkpoint) -> None:
        """Go on from a checkpoint, bit for bit; with new data, from the beginning of another epoch."""
        state = saved.state
        data = state.get("data", self.data)  # early checkpoints don't say
        assert data["tokenizers"] == self.data["tokenizers"], "who resumes a run sees to that"
        self.load_tensors(saved)
        self.progress = RunState(**state["progress"])
        place, same = state["batches"], data["hashes"] == self.data["hashes"]
        self.batches.load_state(place if same else {"epoch": place["epoch"] + 1, "index": 0})
        self.guard.load_state(state["guard"])
        self.log.cut(state["log"])
        if state["processes"] == self.processes.size:
            set_generators(saved.tensors("random")[str(self.processes.rank)], self.processes.device)
        else:
            torch.manual_seed(self.config.training.seed * 1_000_003 + state["step"] * 997 + self.processes.rank)
        self.saved = True
        if self.processes.first:  # what came after the checkpoint was written may have been cut off
            self.derive_again(saved)
            self.prune(later_too=False)

    def roll_back(self) -> None:
        """Weights and optimiser as they were at the last good checkpoint; the data go on."""
        for step in self.good_steps():
            with suppress(checkpoint.DamagedError):
                self.load_tensors(checkpoint.read(self.run.training / f"step-{step}"))
                return

    def good_steps(self) -> list[int]:
        """The steps that this run may go back to, the last first."""
        states = checkpoint.states(self.run.training)
        return [s["step"] for s in states if s.get("grid") and s.get("healthy") and s["step"] <= self.progress.step]

    def load_tensors(self, saved: checkpoint.Checkpoint) -> None:
        weights = self.model.state_dict()
        checkpoint.load_weights(self.model, saved.tensors("model", weights))
        checkpoint.load_optimizers(self.model, self.optimizers, saved.tensors("optimizer", weights))
        self.average.load(saved)
