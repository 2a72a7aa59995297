"""What the loop costs: a step as `sixfold train` makes it (data, guard, log, display) against the bare step.

python benchmarks/training_overhead.py [RECIPE] [--rounds 15] [--steps 20] [--section.key value …]

The bare step has the same batches, ready in memory, and does what no training can do without: forward, backward,
clipping, the optimiser. Both train a model of their own; in each round both make their steps, one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from sixfold.config.files import read_config
from sixfold.core.device import be_deterministic
from sixfold.runs.run import Run
from sixfold.tasks.task import settled, task_of
from sixfold.training.make_trainer import make_batches, make_trainer
from sixfold.training.observers.display import Display
from sixfold.training.processes import Processes
from sixfold.training.runner import prepare


class Recorded:
    """Batches that remember what they gave."""

    def __init__(self, batches):
        self.batches, self.given = batches, []

    def __getattr__(self, name):
        return getattr(self.batches, name)

    def next(self, which=None):
        self.given.append(self.batches.next(which))
        return self.given[-1]


def bare_step(model, optimizers, batches, training, rate):
    scored = sum(int((batch.targets != 0).sum()) for batch in batches)
    for batch in batches:
        losses = model(batch, smoothing=training.label_smoothing)
        ((losses.sum + losses.auxiliary * losses.tokens) / scored).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), training.clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="pronounce")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options, rest = parser.parse_known_args()
    settings = {key.removeprefix("--"): value for key, value in zip(rest[::2], rest[1::2], strict=True)}
    config = settled(read_config(options.recipe, settings)).with_steps(10_000)
    be_deterministic(config.training.deterministic)
    with tempfile.TemporaryDirectory() as folder, Display() as display:
        run = Run(folder)
        prepared = prepare(config, run.data)
        recorded = Recorded(make_batches(task_of(config), prepared, config, config.training.accumulate))
        trainer = make_trainer(run, config, prepared, Processes(), batches=recorded, display=display)
        bare = make_trainer(run, config, prepared, Processes())
        trainer.model.train()
        bare.model.train()
        ratios = []
        for number in range(options.rounds + 1):
            recorded.given.clear()
            started = time.perf_counter()
            for _ in range(options.steps):
                trainer.step()
            with_loop = time.perf_counter() - started
            started = time.perf_counter()
            for batches in recorded.given:
                bare_step(bare.model, bare.parts.optimizers, batches, config.training, trainer.rate())
            alone = time.perf_counter() - started
            if number:  # the first is to warm up
                ratios.append(with_loop / alone)
                print(
                    f"round {number}: {1000 * alone / options.steps:.1f} ms bare, {ratios[-1]:.4f} times that",
                    flush=True,
                )
    chance = torch.Generator().manual_seed(1)
    picks = torch.randint(len(ratios), (10_000, len(ratios)), generator=chance)
    medians = torch.tensor(ratios)[picks].median(1).values
    low, high = (float(medians.quantile(q)) for q in (0.025, 0.975))
    print(f"with the loop / bare: {statistics.median(ratios):.4f} [{low:.4f}, {high:.4f}]")
    if options.out:
        options.out.write_text(json.dumps({"recipe": options.recipe, "settings": settings, "ratios": ratios}, indent=2))


if __name__ == "__main__":
    main()
