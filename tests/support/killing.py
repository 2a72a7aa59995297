"""Kill a run at every kind of moment, resume it, and compare with one that was left alone.

python -m tests.support.killing FOLDER TASK MODIFICATION…      TASK is translation or classification

Each trial is a child forked before torch has threads: it trains with two until SIGKILL ends it, before it does
something to a file of the run, in the middle of writing one, or at a random moment. Another child goes on with what is
left. Where that one stands when it begins to train decides all that follows, so what was once seen to end well is not
followed to its end again.
"""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch

from sixfold.runs.run import LOCK, Run
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from tests.support import labelled, tiny

MAKING, CHANGING = ("os.mkdir",), ("os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
SAVED = "saved"  # an event of our own: what writes tensors tells nobody
RANDOM_MOMENTS, OF_OTHER_MODELS = 12, 4
KILLED, ENDED, AS_BEFORE = -signal.SIGKILL, 0, 3  # how a child ends
# Checkpoints, validations and lines of the log come in turn and together, and there are checkpoints to delete.
SETTINGS = {
    "training__steps": 8,
    "training__validate_every": 4,
    "training__checkpoint_every": 3,
    "training__log_every": 2,
}


class Moment(NamedTuple):
    """Before the n-th time that something is done at a place in the run."""

    what: str
    place: str
    nth: int

    @property
    def inside_a_write(self):
        """Whether a file has just been written, or a line of the log is about to be: tear it, and it was inside.

        All but the log is written aside; a file that is opened in its own place is only read.
        """
        if self.place == "log.jsonl":
            return self.what == "write"
        written = self.what == "sync" and "sixfold-aside" in self.place
        return self.what == SAVED or (written and not self.place.endswith(".safetensors"))


def deed(event, arguments):
    """What is about to be done, or None if that changes nothing and is no sign that something has been written."""
    path = Path(arguments[0])
    if event == "open":
        _, mode, flags = arguments
        for_writing = flags & (os.O_WRONLY | os.O_RDWR)
        return "write" if for_writing else "sync" if mode is None and path.is_file() else None
    happens = path.exists() if event in CHANGING else not path.exists() if event in MAKING else event == SAVED
    return event if happens else None


def watch(directory, tell):
    """Tell of whatever is about to be done to a run: what, and to which file."""

    def hook(event, arguments):
        if event in ("open", SAVED, *MAKING, *CHANGING) and str(arguments[0]).startswith(str(directory)):
            what = deed(event, arguments)
            if what:
                tell(what, Path(arguments[0]))

    save = safetensors.torch.save_file

    def saved(tensors, path, *rest):
        save(tensors, path, *rest)
        sys.audit(SAVED, path)

    safetensors.torch.save_file = saved
    sys.addaudithook(hook)


def place(path, directory):
    """What a file is of, whichever step, part or side it belongs to and whatever it is called while aside."""
    name = str(path.relative_to(directory))
    name = re.sub(r"(sixfold-aside\.[^/]+)[.-]\w{8}(?=$|/|\.old)", r"\1", name)
    name = re.sub(r"step-\d+", "step", name)
    return re.sub(r"(train|valid)\.(?=source|target)|(source|target)\.(?=tokenizer|ids|offsets)", "", name)


def die_at(moment, torn, directory):
    times = 0

    def count(what, path):
        nonlocal times
        if (what, place(path, directory)) != (moment.what, moment.place):
            return
        times += 1
        if times == moment.nth:
            if torn:
                tear(path, tensors=what == SAVED)
            os.kill(os.getpid(), signal.SIGKILL)

    watch(directory, count)


def tear(path, tensors):
    """As a kill inside the write would have left it: half a file, or half a line at the end of the log."""
    if path.name == "log.jsonl":
        with open(path, "ab") as log:
            log.write(b'{"kind": "tra')
        return
    os.truncate(path, path.stat().st_size // 2)
    if tensors:  # safetensors, of which some versions write to a name of their own first
        shutil.copy(path, path.with_name(".tmpqwerty"))


def child(do, lasting=None):
    """Run in a child, which is killed after so many seconds. → its exit code, or minus the signal that ended it"""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(2)
            Trainer.seconds = lambda trainer: 0.0  # or no two logs would be equal
            code = do() or ENDED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if lasting is not None:
        time.sleep(lasting)
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (KILLED, ENDED, AS_BEFORE):
        sys.exit(f"a child ended with {code}")
    return code


def contents(run):
    """All that is in a run, whatever it is called, but for the lock, which says who held it."""
    paths = {str(path.relative_to(run.directory)): path for path in run.directory.rglob("*") if path.name != LOCK}
    return {name: path.read_bytes() if path.is_file() else None for name, path in sorted(paths.items())}


class Trials:
    """Runs that are killed, beside one that is left alone."""

    def __init__(self, folder, task, modifications):
        self.folder, self.task, self.modifications = folder, task, modifications
        self.left_alone, self.killed = Run(folder / "left_alone"), Run(folder / "killed")
        self.config = self.config_in(folder, seed=0)
        self.began_at = folder / "began_at"  # a child says here from where it trains
        self.ended_well = set()

    def config_in(self, folder, seed):
        settings = {**SETTINGS, "model__modifications": self.modifications}
        if self.task == "classification":
            return labelled.config(labelled.tables(folder, number=60 - seed), **settings)
        return tiny.config(tiny.corpus(folder, seed=seed), **settings)

    def warm_up(self):
        """What is done for the first time takes long, so do all of it once, with other data, before there are children.

        One thread: a child can't have those of its parent.
        """
        torch.set_num_threads(1)
        other = self.folder / "other"
        other.mkdir()
        train(self.config_in(other, seed=1), other / "run", display=Quiet())
        resume(other / "run", {"training.steps": "9"}, display=Quiet())

    def leave_alone(self):
        """Train undisturbed. → all moments of that, and how many seconds it took"""
        directory, noted = self.left_alone.directory, self.folder / "moments"

        def watched():
            seen = []
            watch(directory, lambda what, path: seen.append((what, place(path, directory))))
            train(self.config, directory, display=Quiet())
            noted.write_text(json.dumps(seen))

        started = time.monotonic()
        child(watched)
        took, times = time.monotonic() - started, Counter()
        self.aim, moments = contents(self.left_alone), []
        for what, where in json.loads(noted.read_text()):
            times[what, where] += 1
            moments.append(Moment(what, where, times[what, where]))
        return moments, took

    def kill_at(self, moment, torn=False):
        shutil.rmtree(self.killed.directory, ignore_errors=True)
        code = child(lambda: self.begin(lambda: die_at(moment, torn, self.killed.directory)))
        assert code == KILLED, f"not killed: {moment}"
        self.go_on(f"{'inside' if torn else 'before'} {moment}")

    def kill_after(self, seconds):
        """So soon, or if it is done by then sooner: machines are not always equally fast."""
        code = ENDED
        while code != KILLED:
            shutil.rmtree(self.killed.directory, ignore_errors=True)
            code = child(lambda: self.begin(lambda: None), lasting=seconds)
            self.go_on(f"after {seconds} s")
            seconds *= 0.7

    def begin(self, prepare):
        prepare()
        train(self.config, self.killed.directory, display=Quiet())

    def go_on(self, when):
        """See that the run, killed at some time, ends as the other did."""
        if child(self.as_a_person_would) == AS_BEFORE:
            return
        found = contents(self.killed)
        different = [name for name in {**found, **self.aim} if found.get(name, "") != self.aim.get(name, "")]
        assert not different, f"killed {when}, these are different: {different}"
        self.ended_well.add(self.began_at.read_text())

    def as_a_person_would(self):
        """Resume what is a run, begin what is not one yet."""
        is_run, on = self.killed.exists(), Trainer.train

        def unless_as_before(trainer):
            state = hashlib.sha256(repr((is_run, contents(self.killed))).encode()).hexdigest()
            if state in self.ended_well:
                os._exit(AS_BEFORE)
            self.began_at.write_text(state)
            return on(trainer)

        Trainer.train = unless_as_before
        if is_run:
            resume(self.killed.directory, display=Quiet())
        else:
            train(self.config, self.killed.directory, display=Quiet())


def some_of_each(moments, kind, chance):
    """Of each kind one moment in the first half of the run and one in the second."""
    half, found = len(moments) // 2, {}
    for number, moment in enumerate(moments):
        found.setdefault((kind(moment), number < half), []).append(moment)
    return [chance.choice(alike) for alike in found.values()]


def main(folder, task, modifications):
    trials, chance = Trials(folder, task, modifications), random.Random(repr(modifications))
    usual = task == "translation" and not modifications
    trials.warm_up()
    moments, took = trials.leave_alone()

    def kind(moment):
        """Files are written alike whatever the model is: with one model it is each of them, with others any.

        A file of labels is one of its own.
        """
        return (moment.what, moment.place if usual or "label" in moment.place else "")

    chosen = some_of_each([m for m in moments if m.what != "sync"], kind, chance)
    torn = some_of_each([m for m in moments if m.inside_a_write], kind, chance)
    for moment in chosen:
        trials.kill_at(moment)
    for moment in torn:
        trials.kill_at(moment, torn=True)
    random_moments = RANDOM_MOMENTS if usual else OF_OTHER_MODELS
    for number in range(random_moments):  # one in each twelfth of the run, or in each quarter
        trials.kill_after(took * (number + chance.random()) / random_moments)
    assert len(trials.ended_well) > 2, "they were all killed before there was a checkpoint"
    sys.stdout.write(
        f"killed at {len(chosen)} of {len(moments)} moments, inside {len(torn)} writes and at {random_moments} random "
        f"times; there were {len(trials.ended_well)} states to go on from\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
