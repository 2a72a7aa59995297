"""Runs of two processes, beside runs of one; the tests look at what is in the folder afterwards.

python -m torch.distributed.run --standalone --nproc-per-node 2 -m tests.support.many FOLDER
"""

import math
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

from sixfold.runs.run import Run
from sixfold.training import checkpoint, runner
from sixfold.training.observers.display import Quiet
from sixfold.training.processes import Processes, together
from sixfold.training.trainer import Trainer
from tests.support import documented_tasks, labelled, plain_text, tiny, two_terms

# For each, FSDP2 is compared with DDP: name → (modifications, layers, steps); twenty steps for those of the promise, a
# few for two with ways of their own.
CUT_UP = {
    "vanilla": ([], 1, 20),
    "block_sharing": (["block_sharing"], 2, 20),
    "rezero": (["rezero"], 1, 20),
    "switch": (["switch:experts=4,every=1,capacity=100,jitter=0,balance=0"], 1, 20),
    "funnel": (["funnel:blocks=2"], 2, 4),
    "weighted": (["weighted:freeze=2"], 2, 4),
}
# By how many a run was saved, and by how many it goes on: name → (saved as, so many, so many, then).
MOVES = {
    "ddp from two to one": ("two", 2, 1, "ddp"),
    "ddp from one to two": ("one", 1, 2, "ddp"),
    "fsdp from two to one": ("vanilla-fsdp", 2, 1, "fsdp"),
    "fsdp from one to two": ("one", 1, 2, "fsdp"),
}


# Tasks that are compared with one process: three micro-batches in each of two. The last has a `before`.
TASKS = ("classification", two_terms.two_terms.name, documented_tasks.own_words.name)


class Many:
    """Trains in both processes, or in the first alone while the other waits."""

    def __init__(self, folder, processes):
        self.folder, self.processes = folder, processes

    def train(self, name, number=2, modifications=(), **settings):
        # Without relu's kink, so that what differs in the last bit never leads to another gradient.
        usual = {
            "model__modifications": ["gelu", *modifications],
            "model__dropout": 0.0,
            "training__keep": 9,
            "training__checkpoint_every": 10,
            "training__validate_every": 20,
            "training__metric": "symbol_error_rate",
        }
        config = tiny.config(self.folder, **{**usual, **settings})
        self._in(number, lambda: runner.train(config, self.folder / name, display=Quiet()))

    def resume(self, name, number, old, step, steps, parallel):
        """Go on with a run as if it had been killed after that step."""
        run = Run(self.folder / name)
        if self.processes.first:
            shutil.copytree(self.folder / old, run.directory)
            run.config.write_text(run.config.read_text().replace("parallel: ddp", f"parallel: {parallel}"))
            checkpoint.prune(run.training, [step])
        self.processes.wait()
        self._in(number, lambda: runner.resume(run.directory, {"training.steps": str(steps)}, display=Quiet()))

    def _in(self, number, do):
        group = self.processes if number == 2 else Processes()
        if number == 2 or self.processes.first:
            runner.together = lambda device: nullcontext(group)
            do()
        self.processes.wait()


def equal_batches(many):
    """One process, two processes, two micro-batches in each of them: the same batches."""
    many.train("one", 1, training__steps=20)
    many.train("two", training__steps=20)
    many.train("accumulated", training__steps=20, training__accumulate=2)


def by_minutes(many):
    """Two processes train for a second or two; then one process repeats their plan."""
    length = {"training__steps": None, "training__warmup": 0.1, "training__validate_every": 0.5}
    many.train("minutes", **length, training__minutes=0.03)
    many.train("repeated", 1, **length, training__plan=str(many.folder / "minutes"))


def cut_up(many):
    for name, (modifications, layers, steps) in CUT_UP.items():
        for parallel in ("ddp", "fsdp"):
            many.train(
                f"{name}-{parallel}",
                modifications=modifications,
                model__layers=layers,
                training__parallel=parallel,
                training__steps=steps,
                training__accumulate=2 if name == "vanilla" else 1,
                training__recompute=name == "block_sharing",
            )


def moved(many):
    for name, (old, _, number, parallel) in MOVES.items():
        many.resume(name, number, old, step=10, steps=20, parallel=parallel)
    for parallel in ("ddp", "fsdp"):
        random = {
            "model__dropout": 0.1,
            "training__average": 0.9,
            "training__steps": 8,
            "training__checkpoint_every": 4,
        }
        many.train(f"{parallel}-unbroken", training__parallel=parallel, **random)
        many.resume(f"{parallel}-broken", 2, f"{parallel}-unbroken", step=4, steps=8, parallel=parallel)


def tasks(many):
    """One batch, and six micro-batches of it."""
    labelled.tables(many.folder)
    for task in TASKS:
        make = plain_text.settings if task == documented_tasks.own_words.name else labelled.settings
        own = make(many.folder, task=task, training__steps=10)
        many.train(f"{task}-one", 1, **own)
        for parallel in ("ddp", "fsdp"):
            many.train(f"{task}-{parallel}", training__parallel=parallel, training__accumulate=3, **own)


def poisoned(many):
    """The gradient of the fifth step is not a number, in the second process only."""
    backward = Trainer.backward

    def poison(trainer, batches, scored):
        def poisonous(model, arguments, losses):
            return {name: term._replace(sum=term.sum * math.nan) for name, term in losses.items()}

        if trainer.progress.step == 4 and not trainer.processes.first:
            hook = trainer.model.register_forward_hook(poisonous)
            try:
                return backward(trainer, batches, scored)
            finally:
                hook.remove()
        return backward(trainer, batches, scored)

    Trainer.backward = poison
    for parallel in ("ddp", "fsdp"):
        many.train(f"{parallel}-poisoned", training__parallel=parallel, training__steps=6)
    Trainer.backward = backward


if __name__ == "__main__":
    with together("cpu") as everybody:
        for do in (equal_batches, by_minutes, cut_up, moved, tasks, poisoned):
            do(Many(Path(sys.argv[1]), everybody))
