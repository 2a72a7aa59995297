"""Shared by `translate`, `generate` and `classify`: loading a run, reading lines, writing outputs."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import typer

from sixfold.cli.lines import ProgressLine, StandardInput, read_beside
from sixfold.cli.options import not_with
from sixfold.core.threads import usual_threads

if TYPE_CHECKING:
    from sixfold.decoding.records import Line, Translation
    from sixfold.decoding.trace import TracedCandidate
    from sixfold.text.tokenizer import Tokenizer

_WORTH_A_WORKER = 1 << 17  # without --workers: one worker process for each this many bytes of text
_MOST_WORKERS = 8  # without --workers: a limit, since each process has its own copy of the model

Format = Literal["text", "jsonl"]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="RUN", help="Another run, to decode as an ensemble; may be given several times."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="text, or jsonl: a JSON object for each line.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Output file [default: standard output]")]
TraceOption = Annotated[
    bool, typer.Option("--trace", help="With --format jsonl: list the candidates of every step, kept and cut.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        max=256,
        help="Number of worker processes; 0: decode in this process "
        "[default: 0, or for files over 256 kB on a CPU OMP_NUM_THREADS or the number of cores, at most 8]",
    ),
]
Window = Annotated[
    int,
    typer.Option("--window", min=1, max=1_000_000, help="Number of lines that are read ahead and sorted by length."),
]


def load_for(runs: list[Path], verb: str, device: str, imports: list[Path] | None, settings: dict[str, Any]) -> Any:
    """Load a run with `sixfold.load`; a ValueError if it is for another verb."""
    from sixfold.api.load import load

    loaded = load(runs, device=device, imports=imports or [], settings=settings)
    if loaded.verb != verb:
        raise ValueError(f"{runs[0]} is a model of kind {loaded.model.kind}: use `sixfold {loaded.verb}`")
    return loaded


def need_file(file: Path | None, if_text: str) -> None:
    """Raise a ValueError if there is no such file, with a hint in case a text was given in its place."""
    if file is not None and str(file) != "-" and not os.path.lexists(file):
        raise ValueError(f"there is no file {str(file)!r}; {if_text}")


def worker_count(asked: int | None, file: Path | None, loaded: Any) -> int:
    """The number of worker processes. They take seconds to start, which pays for large files only."""
    if asked is not None:
        return asked
    if file is None or not file.is_file() or next(loaded.model.parameters()).device.type != "cpu":
        return 0
    most = min(usual_threads(), _MOST_WORKERS, file.stat().st_size // _WORTH_A_WORKER)
    return most if most > 1 else 0


def tracing(trace: bool, form: Format, workers: int | None) -> int | None:
    """The value of --workers; with --trace, 0 if it is not given. Raises a ValueError if --trace lacks jsonl."""
    if trace and form != "jsonl":
        raise ValueError("--trace needs --format jsonl")
    return 0 if trace and workers is None else workers


@dataclass
class PendingLines:
    """The lines that are read; each is kept until its output is written."""

    texts: Iterable[str | None]
    terms: Path | None = None
    prefixes: Path | None = None
    unanswered: deque[Line] = field(default_factory=deque)

    @property
    def wait(self) -> Callable[[], None] | None:
        """A function that blocks until the next text arrives; None for a file, whose lines are always ready."""
        return self.texts.wait if isinstance(self.texts, StandardInput) else None

    def __iter__(self) -> Iterator[Line | None]:
        from sixfold.decoding.records import Line

        terms = None if self.terms is None else read_beside(self.terms, "terms")
        prefixes = None if self.prefixes is None else read_beside(self.prefixes, "prefixes")
        for text in self.texts:
            if text is None:
                yield None
                continue
            own = tuple(term for term in next(terms).split("\t") if term) if terms is not None else ()
            begin = next(prefixes) or None if prefixes is not None else None
            line = Line(text, begin, own)
            self.unanswered.append(line)
            yield line
        for path, more in ((self.terms, terms), (self.prefixes, prefixes)):
            if more is not None and _has_more(more):
                raise ValueError(f"{path} has more lines than the input")


def _has_more(lines: Iterator[str]) -> bool:
    try:
        next(lines)
    except ValueError:
        return False
    return True


class Answer(Protocol):
    """The output for a line: a translation, or a label."""

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens written, or for a label those read."""

    @property
    def note(self) -> str:
        """A warning about this output; empty if there is none."""


AnyAnswer = TypeVar("AnyAnswer", bound=Answer)
Write = Callable[[int, "Line", "Translation"], None]


def write_all(
    outputs: Iterator[AnyAnswer],
    lines: PendingLines,
    write: Callable[[int, Line, AnyAnswer], None],
    progress: ProgressLine,
) -> None:
    """Write each output as soon as it is finished; print the number of lines and the time, also after an error."""
    try:
        for number, output in enumerate(outputs, 1):
            write(number, lines.unanswered.popleft(), output)
            progress.count(len(output.tokens))
            if output.note:
                progress.say(f"line {number:,}: {output.note}")
    except BrokenPipeError:
        raise
    except BaseException as error:
        progress.close("interrupted: " if isinstance(error, KeyboardInterrupt) else "broken off: ")
        raise
    else:
        progress.close()


def at_a_terminal(file: Path | None, given: Mapping[str, Any]) -> bool:
    """Whether a person types the lines. Then a ValueError refuses the options `given`, which are for files."""
    typed = file is None and sys.stdin.isatty()
    if typed:
        not_with("lines typed one by one; give FILE, or - for standard input", {name for name in given if given[name]})
    return typed


def ask_for_lines(what: str, answer: Callable[[str], None]) -> None:
    """On a terminal: ask for lines until Ctrl-D."""
    import readline  # noqa: F401  (lines can then be edited, and earlier ones recalled)

    typer.echo(f"{what}; Ctrl-D to leave.", err=True)
    shown = "> " if sys.stdout.isatty() else ""
    while True:
        try:
            line = input(shown)
        except EOFError:
            typer.echo(err=True)
            return
        except UnicodeDecodeError as error:
            typer.echo(f"sixfold: that line is not UTF-8 ({error.reason})", err=True)
            continue
        try:
            answer(line)
        except ValueError as error:
            typer.echo(f"sixfold: {error}", err=True)


def record(
    found: Translation, line: Line, tokenizer: Tokenizer, read: str = "source", *, several: bool = False
) -> dict[str, Any]:
    """The object that --format jsonl writes for a line; docs/decoding.md explains its fields."""
    about: dict[str, Any] = {read: line.text, **_output(found, tokenizer)}
    if found.alignment is not None:
        about["source_tokens"] = found.alignment.source
        about["alignment"] = list(enumerate(found.alignment.tokens))
        about["word_alignment"] = found.alignment.words
    if found.trace is not None:
        about["trace"] = [[_candidate(each, tokenizer) for each in step.candidates] for step in found.trace.steps]
    if several:
        about["n_best"] = [_output(each, tokenizer) for each in found.n_best]
    return {**about, "note": found.note}


def _candidate(candidate: TracedCandidate, tokenizer: Tokenizer) -> dict[str, Any]:
    (token,) = tokenizer.pieces([candidate.token])
    return {**asdict(candidate), "token": token}


def _output(found: Translation, tokenizer: Tokenizer) -> dict[str, Any]:
    *confidence, end = found.confidence or (1.0,)
    return {
        "text": found.text,
        "score": found.score,
        "log_prob": found.log_prob,
        "tokens": tokenizer.pieces(found.tokens),
        "confidence": confidence,
        "end_confidence": end,
        "ended": found.ended,
    }
