"""Worker processes share the lines. Each loads the runs once, and asks for more lines shortly before it needs them.

    worker ──▶ {}                    ──▶ pool     asks for lines: one JSON object a line, on the worker's standard
           ◀── {"lines": […]}        ◀──          input and output; [] if there are none yet
           ◀── {"cancel": […]}       ◀──          takes effect before the worker's next step
           ──▶ {"translations": […]} ──▶          outputs that are done, in any order
           ──▶ {"failed": […]}       ──▶

Each line goes to a worker that asks for it, so that all batches stay full and all workers end at about the same time. A
`WorkerPool` is a session and its engine in one. Nothing is pickled, and a worker does not import the caller's main
program.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from sixfold.core.threads import usual_threads
from sixfold.decoding.job import Job, JobEngine, Ticket, Unanswerable
from sixfold.decoding.ordered import LineSession
from sixfold.decoding.records import Line, Translation, from_json

if TYPE_CHECKING:
    from sixfold.config.schema import Decoding
    from sixfold.decoding.session import RunOrigin

_CHILD = "sixfold.api.worker"  # started by name: decoding does not import the module that loads runs
PORTION = 16  # most lines given to a worker at a time
_CHARACTERS = 1 << 14  # characters from which on a portion is complete with fewer lines
AHEAD = 64  # lines for each worker that are read in advance; fewer mean that the end may be near
_MOMENT = 0.02  # seconds that a step waits for a worker's message

Message = dict[str, Any]
Inbox = SimpleQueue[tuple["_Worker", Message | None]]  # None: the worker has ended


class WorkerPool(LineSession[Translation], JobEngine[Ticket]):
    """Worker processes, as a session that is its own engine. They start when there is work, and run until `close`.

    A ticket in `waiting` has not been given to a worker.
    """

    empty = Translation()

    def __init__(
        self,
        origin: RunOrigin | None,
        decoding: Decoding,
        workers: int,
        *,
        terms: Sequence[str] = (),
        alignment: bool = False,
    ):
        if origin is None:
            raise ValueError("workers load runs from their directories: use sixfold.load(RUN), or workers=0")
        if workers < 1:
            raise ValueError(f"a pool has at least one worker, got {workers}")
        super().__init__()
        self.hello: Message = {
            **origin._asdict(),
            "threads": max(usual_threads() // workers, 1),
            "decoding": decoding.model_dump(mode="json"),
            "extras": {**({"alignment": True} if alignment else {}), "terms": list(terms)},
        }
        self.most = workers
        self.workers: list[_Worker] = []
        self.inbox: Inbox = SimpleQueue()

    def engine(self) -> WorkerPool:
        return self

    def encode(self, lines: Sequence[Line]) -> Sequence[Sequence[int]]:
        return [()] * len(lines)

    def job(self, line: Line, ids: Sequence[int]) -> Job:
        """Carries the line to a worker, whose session makes the job that is decoded."""
        return Job(limit=0, size=len(line.text) + 1, tag=line)

    def finish(self, tickets: Sequence[Ticket]) -> list[Translation]:
        return [ticket.found[0] for ticket in tickets]

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(worker.tickets for worker in self.workers)

    @property
    def hungry(self) -> bool:
        return len(self.waiting) < AHEAD * self.most

    def _ticket(self, job: Job) -> Ticket:
        return Ticket(job)

    def step(self) -> list[Ticket]:
        """Send cancellations, give lines to workers that have room, and wait a moment for a message."""
        late = self._late([ticket for worker in self.workers for ticket in worker.tickets.values()])
        self._forget()
        if self._left:
            for each in self.workers:
                each.cancel()
        self._left = False
        self._deal()
        try:
            worker, message = self.inbox.get(timeout=_MOMENT)
        except Empty:
            return late
        return late + worker.hear(message)

    def _deal(self) -> None:
        while len(self.workers) < min(self.most, math.ceil(len(self.waiting) / PORTION)):
            self.workers.append(_Worker(self.inbox))
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
        self.workers, self.inbox = [], SimpleQueue()


def portion(
    waiting: list[tuple[float, int, Ticket]], workers: int, held: int, by_it: int, last: bool
) -> dict[int, Ticket]:
    """Take tickets for one worker from those that wait, by their numbers.

    It takes every n-th of those that wait, for n workers, so that each worker gets short and long lines. If these are
    the `last`, it takes no more than one worker's share of all tokens that wait or are `held` by workers, of which it
    holds `by_it` already.
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
    """A worker process, seen from the pool."""

    def __init__(self, inbox: Inbox):
        self.tickets: dict[int, Ticket] = {}  # those given to it and not done, by number
        self.has_room = False  # it asked for lines, and has received none since
        self.asks = False  # it asked for lines, and waits for a reply
        self.questions, self.answers = self._start()
        self.listener = Thread(target=self._listen, args=(inbox,), daemon=True)
        self.listener.start()

    @property
    def held(self) -> int:
        """The tokens of its lines that are not done."""
        return sum(ticket.job.tokens for ticket in self.tickets.values())

    def _start(self) -> tuple[IO[bytes], IO[bytes]]:
        here = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C reaches the caller's process only, which then ends the worker
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        return self.process.stdin, self.process.stdout

    def _listen(self, inbox: Inbox) -> None:
        with self.answers, suppress(ValueError):  # a worker that sends invalid JSON is treated as ended
            for line in self.answers:
                inbox.put((self, json.loads(line)))
        inbox.put((self, None))

    def hear(self, message: Message | None) -> list[Ticket]:
        """The tickets that the worker has answered, without those that were cancelled meanwhile."""
        if message is None:
            self.process.kill()
            raise ValueError(f"a worker process ended before its work was done (exit code {self.process.wait()})")
        if "error" in message:
            raise ValueError(message["error"])
        if not message:
            self.has_room = self.asks = True
        answered = [(self.tickets.pop(number, None), answer) for number, answer in message.get("translations", ())]
        failed = [(self.tickets.pop(number, None), why) for number, why in message.get("failed", ())]
        for ticket, answer in answered:
            if ticket is not None:
                ticket.found, ticket.done = [from_json(answer)], True
        for ticket, why in failed:
            if ticket is not None:
                ticket.fail(Unanswerable(ticket.job, why))
        return [ticket for ticket, _ in (*answered, *failed) if ticket is not None]

    def give(self, tickets: Mapping[int, Ticket]) -> None:
        """Reply with lines; after an empty reply, the worker continues with its own."""
        self.has_room, self.asks = not tickets, False
        self.tickets |= tickets
        self.tell({"lines": [[number, ticket.job.tag] for number, ticket in tickets.items()]})

    def cancel(self) -> None:
        """Tell it which of its tickets have failed here, by cancellation or by their deadline."""
        gone = [number for number, ticket in self.tickets.items() if ticket.done]
        if gone:
            self.tickets = {number: ticket for number, ticket in self.tickets.items() if not ticket.done}
            self.tell({"cancel": gone})

    def tell(self, message: Message) -> None:
        with suppress(BrokenPipeError):  # the worker has ended; `hear` reports why
            self.questions.write(json.dumps(message).encode() + b"\n")
            self.questions.flush()

    def close(self) -> None:
        self.process.kill()  # the worker has nothing to save
        self.process.wait()
        self.listener.join()
        with suppress(BrokenPipeError):
            self.questions.close()
