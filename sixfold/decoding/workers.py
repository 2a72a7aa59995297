"""Several processes share the lines: each loads the runs once, and answers one chunk of lines after another.

    this process ──▶ {"lines": …} ──▶ worker        one JSON object a line, through its standard input and output
                 ◀── {"translations": …} ◀──

A worker has at most one chunk, and all its answer is read before it gets the next, so that nobody ever waits for
somebody who waits. Nothing is pickled, and the program that uses this is not run again in the workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from sixfold.decoding.translation import Line, Translation, from_json, to_json

if TYPE_CHECKING:
    from sixfold.config import Decoding
    from sixfold.decoding.task import Origin

CHUNK = 512  # lines
_CHARACTERS = 1 << 20  # or fewer, if they are long


def in_processes(
    origin: Origin | None,
    decoding: Decoding,
    lines: Iterable[str | Line | None],
    workers: int,
    *,
    alignment: bool = False,
    start: int = 1,
    chunk: int | None = None,
) -> Iterator[Translation]:
    """What `Translator.stream` or `Writer.stream_many` gives, computed by others, each with so many lines at a time."""
    if origin is None:
        raise ValueError("workers load runs from their directories: use sixfold.load(RUN), or workers=0")
    if workers < 0:
        raise ValueError(f"there can't be {workers} workers")
    hello = {
        **origin._asdict(),
        "threads": max((os.cpu_count() or 1) // workers, 1),
        "decoding": decoding.model_dump(mode="json"),
        "alignment": alignment,
    }
    return _share(hello, chunks(lines, start, chunk), workers)


def _share(hello: Mapping[str, Any], chunks: Iterator[dict[str, Any] | None], workers: int) -> Iterator[Translation]:
    """Chunks go round; answers are read in the order of the chunks. Workers are started as there is work for them."""
    everybody: list[_Worker] = []
    idle, busy = deque[_Worker](), deque[_Worker]()
    try:
        for chunk in chunks:
            if not idle and len(everybody) < workers and chunk is not None:
                everybody.append(_Worker(hello))
                idle.append(everybody[-1])
            answer = None
            while busy and not (idle and chunk is not None):
                worker = busy.popleft()
                answer = worker.answer()
                idle.append(worker)
                if chunk is None:
                    yield from _translations(answer)
            if chunk is not None:  # before its last answer is handed out, for which it need not wait
                worker = idle.popleft()
                worker.ask(chunk)
                busy.append(worker)
                yield from _translations(answer or {})
        while busy:
            yield from _translations(busy.popleft().answer())
    finally:
        for worker in everybody:
            worker.close()


def _translations(answer: Mapping[str, Any]) -> Iterator[Translation]:
    for record in answer.get("translations", ()):
        yield from_json(record)
    if "error" in answer:
        raise ValueError(answer["error"])


def chunks(lines: Iterable[str | Line | None], start: int, most: int | None = None) -> Iterator[dict[str, Any] | None]:
    """Lines by the chunk; None where no more are there at the moment. An error comes after the lines before it."""
    chunk, characters, failed = list[Line](), 0, None
    most = most or CHUNK
    given = iter(lines)
    while failed is None:
        try:
            line = next(given)
        except StopIteration:
            break
        except (ValueError, OSError) as error:
            failed = error
            break
        if line is not None:
            chunk.append(line if isinstance(line, Line) else Line(line))
            characters += len(chunk[-1].text)
        if chunk and (line is None or len(chunk) >= most or characters >= _CHARACTERS):
            yield {"start": start, "lines": chunk}
            start, chunk, characters = start + len(chunk), [], 0
        if line is None:
            yield None
    if chunk:
        yield {"start": start, "lines": chunk}
    if failed is not None:
        yield None
        raise failed


class _Worker:
    """Another process, seen from this one."""

    def __init__(self, hello: Mapping[str, Any]):
        here = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sixfold.decoding.workers"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,  # Ctrl-C is for this process, which then ends that one
        )
        self.ask(hello)

    def ask(self, question: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; why is in its answer
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            code = self.process.wait()
            raise ValueError(f"a worker process ended before its work was done (exit code {code})")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()  # it holds nothing that could be lost
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


def main() -> None:
    """A worker."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # whatever else is printed is no answer
        serve(sys.stdin.buffer, answers)


def serve(questions: IO[bytes], answers: IO[str]) -> None:
    """Read what to load, and then chunks of lines."""
    try:
        stream = _loaded(json.loads(questions.readline()))
    except (ValueError, OSError) as error:
        _say(answers, {"translations": [], "error": str(error)})
        return
    for question in questions:
        _say(answers, _answer(stream, json.loads(question)))


def _loaded(hello: Mapping[str, Any]) -> Any:
    """→ a function that translates lines, or goes on with prompts"""
    import torch

    from sixfold.decoding.writer import Writer
    from sixfold.loading import load

    torch.set_num_threads(hello["threads"])
    loaded = load(hello["runs"], device=hello["device"], imports=hello["imports"])

    def stream(lines: list[Line], start: int) -> Iterator[Translation]:
        size: dict[str, Any] = {"window": len(lines), "first": len(lines), "start": start}  # all are answered together
        if isinstance(loaded, Writer):
            return loaded.stream_many(lines, **size, **hello["decoding"])
        return loaded.stream(lines, alignment=hello["alignment"], **size, **hello["decoding"])

    return stream


def _answer(stream: Any, question: Mapping[str, Any]) -> dict[str, Any]:
    lines = [Line(text, prefix, tuple(terms)) for text, prefix, terms in question["lines"]]
    answer: dict[str, Any] = {"translations": []}
    try:
        for translation in stream(lines, question["start"]):
            answer["translations"].append(to_json(translation))
    except ValueError as error:
        answer["error"] = str(error)
    return answer


def _say(answers: IO[str], answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
