"""Several processes share the lines: each loads the runs once, and asks for a few lines before it has room for them.

    worker ──▶ {}                    ──▶ this process     "there is room": one JSON object a line, through its
           ◀── {"lines": […]}        ◀──                  standard input and output
           ──▶ {"translations": […]} ──▶                  whatever is done, in any order

So lines go to whichever worker has time, every worker's batch stays full, and all workers finish at about the same
time. An `OrderedStream` sorts lines, restores their order and reports mistakes, as if the search ran here. Nothing is
pickled, and a worker does not import the caller's main program.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from sixfold.core.threads import usual_threads
from sixfold.decoding.engine import Job, Unanswerable
from sixfold.decoding.ordered import FIRST, WINDOW, OrderedStream, Tag
from sixfold.decoding.records import Line, Translation, from_json

if TYPE_CHECKING:
    from sixfold.config.schema import Decoding
    from sixfold.decoding.session import RunOrigin

_CHILD = "sixfold.api.worker"  # started by name: decoding does not import what loads runs
PORTION = 16  # lines that a worker gets at a time
_CHARACTERS = 1 << 14  # or fewer, if they are so long: what is written at once must not wait for its reader
AHEAD = 64  # lines for each worker that are looked at in advance, to see the end coming


def in_processes(
    origin: RunOrigin | None,
    decoding: Decoding,
    lines: Iterable[str | Line | None],
    workers: int,
    *,
    alignment: bool = False,
    window: int = WINDOW,
    first: int = FIRST,
    start: int = 1,
) -> Iterator[Translation]:
    """What `Translator.stream` or `Generator.stream_many` gives, computed by others. Windows are of lines for each."""
    if origin is None:
        raise ValueError("workers load runs from their directories: use sixfold.load(RUN), or workers=0")
    if workers < 0:
        raise ValueError(f"there can't be {workers} workers")
    hello = {
        **origin._asdict(),
        "threads": max(usual_threads() // workers, 1),
        "decoding": decoding.model_dump(mode="json"),
        "alignment": alignment,
    }
    team = _WorkerPool(hello, workers)
    return _closing(team, OrderedStream(team, lines, window * workers, start, first * workers))


def _closing(team: _WorkerPool, stream: OrderedStream[Translation]) -> Iterator[Translation]:
    try:
        yield from stream
    finally:
        team.close()


class _WorkerPool:
    """The workers: a task whose searches are done elsewhere. They are started as there is work for them."""

    empty = Translation()

    def __init__(self, hello: Mapping[str, Any], most: int):
        self.hello, self.most = hello, most
        self.workers: list[_Worker] = []
        self.heard: SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = SimpleQueue()

    def encode(self, lines: Sequence[Line]) -> list[list[int]]:
        """That is done elsewhere, too."""
        return [[] for _ in lines]

    def job(self, number: int, line: Line, ids: Sequence[int]) -> Job:
        return Job(limit=0, size=len(line.text) + 1, tag=Tag(number, line))

    def finish(self, found: Sequence[tuple[Job, Sequence[Translation]]]) -> list[Translation]:
        return [translation for _, (translation,) in found]

    def search(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Translation]]]:
        """Each job with its translation, as soon as it is done."""
        waiting = _Backlog(jobs, AHEAD * self.most)
        try:
            while waiting.look_ahead() or any(worker.jobs for worker in self.workers):
                self._deal(waiting)
                worker, said = self.heard.get()
                for number, translation in worker.hear(said):
                    yield worker.jobs.pop(number), [translation]
        except ValueError:
            self.close()  # whatever they hold, others begin again with it
            raise

    def _deal(self, waiting: _Backlog) -> None:
        """Give lines to those who have asked. Who has enough is told so, and asks again when it is through."""
        while len(self.workers) < min(self.most, math.ceil(len(waiting.ahead) / PORTION)):
            self.workers.append(_Worker(self.heard))
            self.workers[-1].tell(self.hello)
        for worker in self.workers:
            if worker.asks and (waiting.ahead or worker.jobs):
                held = sum(each.held for each in self.workers)
                worker.give(waiting.portion(len(self.workers), held, worker.held))

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers, self.heard = [], SimpleQueue()


class _Backlog:
    """Jobs that nobody has yet. Some of them are looked at in advance."""

    def __init__(self, jobs: Iterable[Job], most: int):
        self.jobs, self.most = iter(jobs), most
        self.ahead: list[Job] = []
        self.all = False  # no more will come

    def look_ahead(self) -> bool:
        """Whether there are any."""
        if not self.all and len(self.ahead) <= self.most // 2:
            wanted = self.most - len(self.ahead)
            more = list(islice(self.jobs, wanted))
            self.ahead += more
            self.all = len(more) < wanted
        return bool(self.ahead)

    def portion(self, workers: int, held: int, by_it: int) -> list[Job]:
        """Some for one of the workers, of every length: others take those between. In the end, no more than its share
        of all that is left to do."""
        share = (sum(job.tokens for job in self.ahead) + held) / workers - by_it if self.all else float("inf")
        taken = list[int]()
        for place in range(0, len(self.ahead), workers)[:PORTION]:
            if share <= 0:
                break
            taken.append(place)
            share -= self.ahead[place].tokens
            if sum(self.ahead[place].tokens for place in taken) >= _CHARACTERS:
                break
        portion = [self.ahead[place] for place in taken]
        for place in reversed(taken):
            del self.ahead[place]
        return portion


class _Worker:
    """Another process, seen from this one."""

    def __init__(self, heard: SimpleQueue[tuple[_Worker, dict[str, Any] | None]]):
        self.jobs: dict[int, Job] = {}  # that it has
        self.asks = False  # and waits for an answer
        self.questions, self.answers = self._start()
        self.listener = Thread(target=self._listen, args=(heard,), daemon=True)
        self.listener.start()

    @property
    def held(self) -> int:
        """How much it has to do."""
        return sum(job.tokens for job in self.jobs.values())

    def _start(self) -> tuple[IO[bytes], IO[bytes]]:
        here = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def _listen(self, heard: SimpleQueue[tuple[_Worker, dict[str, Any] | None]]) -> None:
        with self.answers, suppress(ValueError):  # whoever says what is no answer is not listened to any more
            for line in self.answers:
                heard.put((self, json.loads(line)))
        heard.put((self, None))

    def hear(self, said: dict[str, Any] | None) -> Iterator[tuple[int, Translation]]:
        """Translations by the number of their line. A mistake is an error."""
        if said is None:
            self.process.kill()
            raise ValueError(f"a worker process ended before its work was done (exit code {self.process.wait()})")
        if "error" in said:
            raise self._mistake(**said)
        self.asks = self.asks or not said
        for number, record in said.get("translations", ()):
            yield number, from_json(record)

    def _mistake(self, error: str, number: int | None = None) -> ValueError:
        return ValueError(error) if number is None else Unanswerable(self.jobs[number], error)

    def give(self, jobs: Sequence[Job]) -> None:
        """None means: go on with what you have."""
        self.asks = False
        self.jobs |= {job.tag.number: job for job in jobs}
        self.tell({"lines": [[job.tag.number, job.tag.line] for job in jobs]})

    def tell(self, message: Mapping[str, Any]) -> None:
        with suppress(BrokenPipeError):  # it has ended; why is what it said last
            self.questions.write(json.dumps(message).encode() + b"\n")
            self.questions.flush()

    def close(self) -> None:
        self.process.kill()  # it holds nothing that could be lost
        self.process.wait()
        self.listener.join()
        with suppress(BrokenPipeError):
            self.questions.close()
