"""A worker process of decoding/workers.py: loads the runs, then asks for lines and answers them.

It is started as `python -m sixfold.api.worker` and exchanges JSON lines on standard input and output.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

import torch

from sixfold.api.load import load
from sixfold.decoding.job import Sentence
from sixfold.decoding.records import Line, to_json
from sixfold.decoding.session import DecodingSession
from sixfold.decoding.workers import PORTION
from sixfold.models.model import evaluating

_SOON = 0.1  # seconds that an output waits at most for others, to be sent with them


def main() -> None:
    """Run a worker until its standard input or output is closed."""
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # prints of other code go to standard error, so that they are not taken for messages
        serve(sys.stdin.buffer, answers)


def serve(questions: IO[bytes], answers: IO[str]) -> None:
    """Read which runs to load; then answer lines until the questions end. An error that concerns all lines is sent."""
    try:
        session = _session(json.loads(questions.readline()))
        _Worker(session, questions, answers).run()
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        _say(answers, {"error": str(error)})


def _session(hello: Mapping[str, Any]) -> DecodingSession:
    torch.set_num_threads(hello["threads"])
    loaded = load(hello["runs"], device=hello["device"], imports=hello["imports"])
    return loaded.session(**hello["extras"], **hello["decoding"])


class _Worker:
    """An engine that exchanges messages with the pool between two steps."""

    def __init__(self, session: DecodingSession, questions: IO[bytes], answers: IO[str]):
        self.session, self.engine, self.answers = session, session.engine(), answers
        self.numbers: dict[Sentence, int] = {}  # by which the pool knows the tickets that are not answered
        self.order = count()  # jobs begin in the order in which their lines came
        self.done: list[Sentence] = []  # not sent yet
        self.done_since = 0.0  # when the first of them was done
        self.asked = False  # for lines, and there was no reply yet
        self.none_left = False  # the last reply had no lines
        self.inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        Thread(target=self._listen, args=(questions,), daemon=True).start()

    def _listen(self, questions: IO[bytes]) -> None:
        with suppress(ValueError, OSError):  # the stream was closed
            for question in questions:
                self.inbox.put(json.loads(question))
        self.inbox.put(None)

    def run(self) -> None:
        with evaluating(*self.session.models), torch.inference_mode():
            while self._hear():
                self._step()

    def _step(self) -> None:
        done = self.engine.step()
        self.done_since = self.done_since if self.done else time.monotonic()
        self.done += done
        enough = self.none_left or len(self.done) >= PORTION
        if self.done and (enough or time.monotonic() - self.done_since > _SOON):
            self._tell()

    def _hear(self) -> bool:
        """Handle all messages; wait for one if there is no work, or lines may come that fill the batch.

        → False if the pool has closed the connection
        """
        while True:
            self._ask()
            waiting = not self.engine.busy or (self.asked and self.engine.hungry)
            if waiting:
                self._tell()
            try:
                message = self.inbox.get(block=waiting)
            except Empty:
                return True
            if message is None:
                return False
            self._cancel(message.get("cancel", ()))
            if "lines" in message:
                self.asked, self.none_left = False, not message["lines"]
                self._begin(message["lines"])

    def _ask(self) -> None:
        """Ask for lines before the batch has room for them."""
        if not (self.asked or self.none_left) and (self.engine.hungry or len(self.engine.waiting) < PORTION):
            _say(self.answers, {})
            self.asked = True

    def _cancel(self, numbers: Sequence[int]) -> None:
        for ticket in [ticket for ticket, number in self.numbers.items() if number in numbers]:
            self.engine.cancel(ticket)
            del self.numbers[ticket]

    def _begin(self, given: Sequence[Any]) -> None:
        lines = [Line(text, prefix, tuple(terms)) for _, (text, prefix, terms) in given]
        for (number, _), job in zip(given, self.session.jobs(lines), strict=True):
            if isinstance(job, ValueError):
                _say(self.answers, {"failed": [[number, str(job)]]})
            elif job is None:
                _say(self.answers, {"translations": [[number, to_json(self.session.empty)]]})
            else:
                self.numbers[self.engine.submit(job, next(self.order))] = number

    def _tell(self) -> None:
        """Send outputs. They are finished only now, so that alignments are read for many at once."""
        numbered = [(self.numbers.pop(ticket), ticket) for ticket in self.done if ticket in self.numbers]
        failed = [[number, str(ticket.error)] for number, ticket in numbered if ticket.error is not None]
        found = [(number, ticket) for number, ticket in numbered if ticket.error is None]
        outputs = self.session.finish([ticket for _, ticket in found])
        if numbered:
            texts = [[number, to_json(each)] for (number, _), each in zip(found, outputs, strict=True)]
            _say(self.answers, {"translations": texts, "failed": failed})
        self.done = []


def _say(answers: IO[str], answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
