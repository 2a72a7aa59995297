"""A worker process of decoding/workers.py: loads the runs, then asks for lines, and answers them.

It is started as `python -m sixfold.api.worker` and speaks JSON lines on standard input and output.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import torch

from sixfold.api.load import load
from sixfold.config.schema import change_decoding
from sixfold.decoding.engine import Job, Unanswerable
from sixfold.decoding.generator import GenerationSession, Generator
from sixfold.decoding.ordered import Tag
from sixfold.decoding.records import Line, Translation, to_json
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
        task = _loaded(json.loads(questions.readline()))
        _Worker(task, questions, answers).run()
    except BrokenPipeError:
        raise
    except Unanswerable as error:
        _say(answers, {"error": str(error), "number": error.job.tag.number})
    except (ValueError, OSError) as error:
        _say(answers, {"error": str(error)})


def _loaded(hello: Mapping[str, Any]) -> Any:
    """→ the task of a translator or a writer"""
    torch.set_num_threads(hello["threads"])
    loaded = load(hello["runs"], device=hello["device"], imports=hello["imports"])
    decoding = change_decoding(loaded.decoding, hello["decoding"])
    if isinstance(loaded, Generator):
        return GenerationSession(loaded, decoding, None)
    return TranslationSession(loaded, decoding, Extras(hello["alignment"]))


class _Worker:
    """What a worker does: it searches, as long as it gets lines."""

    def __init__(self, task: Any, questions: IO[bytes], answers: IO[str]):
        self.task, self.questions, self.answers = task, questions, answers
        self.found: list[tuple[Job, Any]] = []  # that nobody was told of yet
        self.ended = False

    def run(self) -> None:
        with evaluating(*self.task.models), torch.inference_mode():
            while not self.ended:
                for found in self.task.search(self._jobs()):
                    self.found.append(found)
                    if len(self.found) >= PORTION:
                        self._tell()
                self._tell()

    def _jobs(self) -> Iterator[Job]:
        """Until there are no more for the moment. Lines are asked for before there is room for them."""
        self._ask()
        while lines := self._read():
            self._ask()
            yield from self._make(lines)

    def _ask(self) -> None:
        _say(self.answers, {})

    def _read(self) -> list[tuple[int, Line]]:
        self._tell()
        question = self.questions.readline()
        self.ended = not question
        given = json.loads(question)["lines"] if question else []
        return [(number, Line(text, prefix, tuple(terms))) for number, (text, prefix, terms) in given]

    def _make(self, lines: Sequence[tuple[int, Line]]) -> Iterator[Job]:
        for (number, line), ids in zip(lines, self.task.encode([line for _, line in lines]), strict=True):
            try:
                job = self.task.job(number, line, ids)
            except ValueError as error:
                raise Unanswerable(Job(limit=0, tag=Tag(number, line)), str(error)) from None
            if job is None:
                _say(self.answers, {"translations": [[number, to_json(Translation())]]})
            else:
                yield job

    def _tell(self) -> None:
        """Say what was found, and is finished only now, so that alignments are read for many at once."""
        if self.found:
            finished = zip(self.found, self.task.finish(self.found), strict=True)
            _say(self.answers, {"translations": [[job.tag.number, to_json(each)] for (job, _), each in finished]})
            self.found = []


def _say(answers: IO[str], answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
