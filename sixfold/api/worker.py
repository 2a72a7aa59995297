"""A worker process of decoding/workers.py: loads the runs, then asks for lines, and answers them.

It is started as `python -m sixfold.api.worker` and speaks JSON lines on standard input and output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any

import torch

from sixfold.api.load import load
from sixfold.config.schema import change_decoding
from sixfold.decoding.generator import GenerationSession, Generator
from sixfold.decoding.job import Ticket
from sixfold.decoding.records import Line, to_json
from sixfold.decoding.translator import Extras, TranslationSession
from sixfold.decoding.workers import PORTION
from sixfold.models.model import evaluating


def main() -> None:
    """A worker. It ends when nobody listens to it any more."""
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever else is printed is no answer
        serve(sys.stdin.buffer, answers)


def serve(questions: IO[bytes], answers: IO[str]) -> None:
    """Read what to load; then ask for lines, until there are no more questions, or one that has no answer."""
    try:
        session = _loaded(json.loads(questions.readline()))
        _Worker(session, questions, answers).run()
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        _say(answers, {"error": str(error)})


def _loaded(hello: Mapping[str, Any]) -> Any:
    """→ the session of a translator or a generator"""
    torch.set_num_threads(hello["threads"])
    loaded = load(hello["runs"], device=hello["device"], imports=hello["imports"])
    decoding = change_decoding(loaded.decoding, hello["decoding"])
    if isinstance(loaded, Generator):
        return GenerationSession(loaded, decoding)
    return TranslationSession(loaded, decoding, Extras(hello["alignment"]))


class _Worker:
    """An engine that hears and speaks between two steps."""

    def __init__(self, session: Any, questions: IO[bytes], answers: IO[str]):
        self.session, self.engine, self.answers = session, session.engine(), answers
        self.numbers: dict[Ticket, int] = {}  # by which the other side knows them
        self.order = count()  # they begin as they came
        self.done: list[Ticket] = []  # that it was not told of yet
        self.asked = False  # for lines, and there was no answer yet
        self.none_left = False  # the answer was that there are none yet
        self.inbox: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        Thread(target=self._listen, args=(questions,), daemon=True).start()

    def _listen(self, questions: IO[bytes]) -> None:
        with suppress(ValueError, OSError):  # it was closed
            for question in questions:
                self.inbox.put(json.loads(question))
        self.inbox.put(None)

    def run(self) -> None:
        with evaluating(*self.session.models), torch.inference_mode():
            while self._hear():
                self.done += self.engine.step()
                if len(self.done) >= PORTION or self.none_left:
                    self._tell()

    def _hear(self) -> bool:
        """Take in all that was said; wait for it where it may fill the batch. → False: nobody is there any more"""
        while True:
            self._ask()
            waiting = not self.engine.busy or (self.asked and self.engine.hungry)
            if waiting:
                self._tell()
            try:
                said = self.inbox.get(block=waiting)
            except Empty:
                return True
            if said is None:
                return False
            for ticket in [ticket for ticket, number in self.numbers.items() if number in said.get("cancel", ())]:
                self.engine.cancel(ticket)
                del self.numbers[ticket]
            if "lines" in said:
                self.asked, self.none_left = False, not said["lines"]
                self._begin(said["lines"])

    def _ask(self) -> None:
        """Before there is room for them."""
        if not (self.asked or self.none_left) and (self.engine.hungry or len(self.engine.waiting) < PORTION):
            _say(self.answers, {})
            self.asked = True

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
        """Say what was found, and is finished only now, so that alignments are read for many at once."""
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
