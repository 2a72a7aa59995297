"""Several processes share the lines: each loads the runs once, and asks for a few lines before it has room for them.

    worker ──▶ {}                    ──▶ this process     "there is room": one JSON object a line, through its
           ◀── {"lines": […]}        ◀──                  standard input and output; [] if there are none yet
           ◀── {"cancel": […]}       ◀──                  before the worker's next step
           ──▶ {"translations": […]} ──▶                  whatever is done, in any order
           ──▶ {"failed": […]}       ──▶

So lines go to whichever worker has time, every worker's batch stays full, and all workers finish at about the same
time. To an `OrderedStream`, a `WorkerPool` is an engine like any other. Nothing is pickled, and a worker does not
import the caller's main program.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from sixfold.core.threads import usual_threads
from sixfold.decoding.job import Job, JobEngine, Ticket, Unanswerable
from sixfold.decoding.ordered import FIRST, WINDOW, Lines, OrderedStream
from sixfold.decoding.records import Line, Translation, from_json

if TYPE_CHECKING:
    from sixfold.config.schema import Decoding
    from sixfold.decoding.session import RunOrigin

_CHILD = "sixfold.api.worker"  # started by name: decoding does not import what loads runs
PORTION = 16  # lines that a worker gets at a time
_CHARACTERS = 1 << 14  # or fewer, if they are so long: what is written at once must not wait for its reader
AHEAD = 64  # lines for each worker that are looked at in advance, to see the end coming
_MOMENT = 0.02  # seconds to listen to workers, until somebody else may have something to say


def in_processes(
    origin: RunOrigin | None,
    decoding: Decoding,
    lines: Lines,
    workers: int,
    *,
    alignment: bool = False,
    window: int = WINDOW,
    first: int = FIRST,
    start: int = 1,
    **how: Any,
) -> Iterator[Translation]:
    """What `Translator.stream` or `Generator.stream_many` gives, computed by others. Windows are of lines for each."""
    team = WorkerPool(origin, decoding, workers, alignment=alignment)
    return _closing(team, OrderedStream(team, lines, window * workers, start, first * workers, **how))


def _closing(team: WorkerPool, stream: OrderedStream[Translation]) -> Iterator[Translation]:
    try:
        yield from stream
    finally:
        team.close()


class WorkerPool(JobEngine[Ticket]):
    """Worker processes as a session and its engine. They are started as there is work for them, and stay until `close`.

    Those that wait are with no worker yet.
    """

    empty = Translation()

    def __init__(self, origin: RunOrigin | None, decoding: Decoding, workers: int, *, alignment: bool = False):
        if origin is None:
            raise ValueError("workers load runs from their directories: use sixfold.load(RUN), or workers=0")
        if workers < 0:
            raise ValueError(f"there can't be {workers} workers")
        self.hello = {
            **origin._asdict(),
            "threads": max(usual_threads() // workers, 1),
            "decoding": decoding.model_dump(mode="json"),
            "alignment": alignment,
        }
        super().__init__()
        self.most = workers
        self.workers: list[_Worker] = []
        self.heard: SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = SimpleQueue()

    def engine(self) -> WorkerPool:
        return self

    def jobs(self, lines: Sequence[Line]) -> list[Job | ValueError | None]:
        """What the workers make jobs of."""
        return [Job(limit=0, size=len(line.text) + 1, tag=line) for line in lines]

    def finish(self, tickets: Sequence[Ticket]) -> list[Translation]:
        return [ticket.found[0] for ticket in tickets]

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(worker.tickets for worker in self.workers)

    @property
    def hungry(self) -> bool:
        """Whether the end may be near: then workers get no more than their share."""
        return len(self.waiting) < AHEAD * self.most

    def _ticket(self, job: Job) -> Ticket:
        return Ticket(job)

    def step(self) -> list[Ticket]:
        """Give lines to those who have room, and listen for a moment. → those that were answered"""
        self._forget()
        if self._left:
            for each in self.workers:
                each.cancel()
        self._left = False
        self._deal()
        try:
            worker, said = self.heard.get(timeout=_MOMENT)
        except Empty:
            return []
        return worker.hear(said)

    def _deal(self) -> None:
        while len(self.workers) < min(self.most, math.ceil(len(self.waiting) / PORTION)):
            self.workers.append(_Worker(self.heard))
            self.workers[-1].tell(self.hello)
        last = self.hungry
        for worker in self.workers:
            if worker.has_room and (self.waiting or (worker.asks and worker.tickets)):
                held = sum(each.held for each in self.workers)
                taken = portion(self.waiting, len(self.workers), held, worker.held, last)
                if taken or worker.asks:
                    worker.give(taken)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.workers, self.heard = [], SimpleQueue()


def portion(
    waiting: list[tuple[float, int, Ticket]], workers: int, held: int, by_it: int, last: bool
) -> dict[int, Ticket]:
    """Take some for one of the workers, by their numbers, of every length: others take those between.

    If these are the `last`, no more than its share of all that is left to do: of these, and of what workers hold.
    """
    share = (sum(ticket.job.tokens for _, _, ticket in waiting) + held) / workers - by_it
    taken, tokens = list[int](), 0
    for index in range(0, len(waiting), workers)[:PORTION]:
        if tokens >= _CHARACTERS or (last and tokens >= share):
            break
        taken.append(index)
        tokens += waiting[index][-1].job.tokens
    tickets = {waiting[index][1]: waiting[index][2] for index in taken}
    for index in reversed(taken):
        del waiting[index]
    return tickets


class _Worker:
    """Another process, seen from this one."""

    def __init__(self, heard: SimpleQueue[tuple[_Worker, dict[str, Any] | None]]):
        self.tickets: dict[int, Ticket] = {}  # that it has, by their numbers
        self.has_room = False  # it said so, and got nothing since
        self.asks = False  # it said so, and waits for an answer
        self.questions, self.answers = self._start()
        self.listener = Thread(target=self._listen, args=(heard,), daemon=True)
        self.listener.start()

    @property
    def held(self) -> int:
        """How much it has to do."""
        return sum(ticket.job.tokens for ticket in self.tickets.values())

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

    def hear(self, said: dict[str, Any] | None) -> list[Ticket]:
        """Those that it has answered. Who was cancelled meanwhile is not known any more."""
        if said is None:
            self.process.kill()
            raise ValueError(f"a worker process ended before its work was done (exit code {self.process.wait()})")
        if "error" in said:
            raise ValueError(said["error"])
        if not said:
            self.has_room = self.asks = True
        answered = [(self.tickets.pop(number, None), answer) for number, answer in said.get("translations", ())]
        failed = [(self.tickets.pop(number, None), why) for number, why in said.get("failed", ())]
        for ticket, answer in answered:
            if ticket is not None:
                ticket.found, ticket.done = [from_json(answer)], True
        for ticket, why in failed:
            if ticket is not None:
                ticket.fail(Unanswerable(ticket.job, why))
        return [ticket for ticket, _ in (*answered, *failed) if ticket is not None]

    def give(self, tickets: Mapping[int, Ticket]) -> None:
        """None means: go on with what you have."""
        self.has_room, self.asks = not tickets, False
        self.tickets |= tickets
        self.tell({"lines": [[number, ticket.job.tag] for number, ticket in tickets.items()]})

    def cancel(self) -> None:
        """It shall forget, before its next step, what nobody waits for any more."""
        gone = [number for number, ticket in self.tickets.items() if ticket.done]
        if gone:
            self.tickets = {number: ticket for number, ticket in self.tickets.items() if not ticket.done}
            self.tell({"cancel": gone})

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
