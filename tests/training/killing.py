"""Kill a run at every kind of moment, resume it, and compare with one that was left alone.

python -m tests.training.killing FOLDER MODIFICATION…

Each trial is a child forked before any thread runs: it trains with two threads until it kills itself, by SIGKILL,
at the n-th thing it does to a file of the run, in the middle of writing one, or after so many milliseconds.
"""

import os
import random
import shutil
import signal
import sys
import threading
import traceback
from pathlib import Path

import safetensors.torch
import torch

from sixfold.run import Run
from sixfold.training.display import Quiet
from sixfold.training.start import resume, train
from tests.training import tiny

FILE_EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "shutil.rmtree")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_file_event(out, number):
    """Before the n-th operation on a file of the run. → the counter"""
    seen = []

    def hook(event, arguments):
        if event in FILE_EVENTS and any(str(out) in str(a) for a in arguments[:2]):
            seen.append(event)
            if len(seen) == number:
                die()

    sys.addaudithook(hook)
    return seen


def die_inside_write(number):
    """In the middle of the n-th file of tensors: half of it is there."""
    whole, written = safetensors.torch.save_file, []

    def half(tensors, path, *rest):
        whole(tensors, path, *rest)
        written.append(path)
        if len(written) == number:
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    safetensors.torch.save_file = half


def die_after(milliseconds):
    timer = threading.Timer(milliseconds / 1000, die)
    timer.daemon = True
    timer.start()


def child(do):
    """Run in a child. → whether it was killed; anything else than that and success ends us"""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(2)
            do()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if not killed and status:
        sys.exit(f"a child failed with status {status}")
    return killed


def go_on(run, config):
    """As a person would: resume what is a run, begin what is not one yet."""
    if run.exists():
        resume(run.directory, display=Quiet())
    else:
        train(config, run.directory, display=Quiet())


def trial(folder, config, left_alone, prepare):
    run = Run(folder / "killed")
    shutil.rmtree(run.directory, ignore_errors=True)

    def doomed():
        prepare(run.directory)
        train(config, run.directory, display=Quiet())

    killed = child(doomed)
    child(lambda: go_on(run, config))
    assert tiny.bytes_of(run) == tiny.bytes_of(left_alone), "other weights"
    assert tiny.log_without_times(run) == tiny.log_without_times(left_alone), "another log"
    leftovers = [p.name for p in [*run.directory.glob(".*"), *run.training.glob(".*")]]
    assert not leftovers, f"left behind: {leftovers}"
    return killed


def some_of_each(events, chance):
    """Numbers of events: of each kind one in the first half of the run and one in the second."""
    half, found = len(events) // 2, set()
    for kind in sorted(set(events)):
        numbers = [number for number, event in enumerate(events, 1) if event == kind]
        early, late = ([n for n in numbers if (n <= half) is first] for first in (True, False))
        found |= {chance.choice(side) for side in (early, late) if side}
    return sorted(found)


def main(folder, modifications):
    config = tiny.config(tiny.corpus(folder), model__modifications=modifications)
    left_alone = Run(folder / "left_alone")

    def counted():
        seen = die_at_file_event(left_alone.directory, -1)
        train(config, left_alone.directory, display=Quiet())
        (folder / "events").write_text("\n".join(seen))

    child(counted)
    events = (folder / "events").read_text().split("\n")
    chance = random.Random(repr(modifications))
    moments = some_of_each(events, chance)
    killed = [trial(folder, config, left_alone, lambda out, n=n: die_at_file_event(out, n)) for n in moments]
    killed += [trial(folder, config, left_alone, lambda out, n=n: die_inside_write(n)) for n in (1, 5, 8)]
    times = [chance.uniform(20, 700) for _ in range(5)]
    by_time = [trial(folder, config, left_alone, lambda out, t=t: die_after(t)) for t in times]
    assert all(killed), "somebody was not killed"
    sys.stdout.write(f"{len(killed)} killed at file events, {sum(by_time)} of {len(by_time)} by the clock\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
