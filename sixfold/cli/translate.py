"""The verbs `translate` and `generate`: a run at work."""

from __future__ import annotations

import os
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sixfold.cli.app import app
from sixfold.cli.lines import (
    Output,
    ProgressLine,
    check_files,
    ending_well,
    json_line,
    one_line,
    read_beside,
    read_lines,
)
from sixfold.cli.options import Device, Import, Sectioned, configured, not_with
from sixfold.core.threads import usual_threads

if TYPE_CHECKING:
    from sixfold.decoding.generator import Generator
    from sixfold.decoding.records import Line, Translation
    from sixfold.decoding.translator import Translator
    from sixfold.text.tokenizer import Tokenizer

_WORTH_A_WORKER = 1 << 17  # bytes of text, without being asked
_MOST_WORKERS = 8  # without being asked: each needs memory of its own

Format = Literal["text", "jsonl"]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", metavar="RUN", help="One more run, for an ensemble; may be given often."),
]
FormatOption = Annotated[Format, typer.Option("--format", help="Text, or a JSON object for each line.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write here, in place of standard output.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=0,
        max=256,
        help="Processes that share the work; 0: this one "
        "[default: for a file of over 256 kB on a CPU one for each thread: OMP_NUM_THREADS, or all cores]",
    ),
]
Window = Annotated[
    int, typer.Option("--window", min=1, max=1_000_000, help="How many lines are sorted by length together.")
]


@app.command(cls=Sectioned)
@configured("decoding")
def translate(
    run: RunArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The text, line by line, also .gz [default: standard input]")
    ] = None,
    members: With = None,
    out: Out = None,
    form: FormatOption = "text",
    term: Annotated[
        list[str] | None,
        typer.Option("--term", metavar="TEXT", help="What must occur in every output; may be given often."),
    ] = None,
    terms: Annotated[
        Path | None, typer.Option("--terms", metavar="FILE", help="For each line what must occur, between tabs.")
    ] = None,
    prefixes: Annotated[
        Path | None, typer.Option("--prefixes", metavar="FILE", help="For each line how its output must begin.")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    window: Window = 1024,
    imports: Import = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Translate lines of text.

    Line in, line out, in order: sixfold translate runs/mine < in.txt > out.txt. An empty line stays an empty line.
    With a terminal and no FILE it is a prompt. With --n_best, text is number, score and output between tabs.

    What the run's own configuration says of decoding holds, unless an option says otherwise.
    """
    with ending_well():
        _need_file(file, f"a text is given as: echo {shlex.quote(str(file))} | sixfold translate {run}")
        check_files(out, file, prefixes, terms=terms)
        translator = _load([run, *(members or [])], "translate", device, imports, settings)
        _check_terms(translator, term or [])
        if file is None and sys.stdin.isatty():
            _prompt(lambda line: _show_translation(translator, line, tuple(term or ())))
            return
        lines = _Lines(read_lines(file), tuple(term or ()), terms, prefixes)
        processes = _processes(workers, file, translator)
        found = translator.stream(lines, workers=processes, window=window, alignment=form == "jsonl")
        with Output(out) as output:  # which is emptied only now that nothing is wrong with the options
            write = _writer_of(output, form, translator.decoding.n_best, translator.tokenizers.target)
            _write_all(found, lines, write, ProgressLine(show=not output.terminal))


@app.command(cls=Sectioned)
@configured("decoding")
def generate(
    run: RunArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Prompts, line by line [default: standard input]")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="What to go on with; may be empty.")
    ] = None,
    members: With = None,
    out: Out = None,
    form: FormatOption = "text",
    device: Device = "auto",
    workers: Workers = None,
    window: Window = 1024,
    imports: Import = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Go on with a text, by a language model.

    It draws words by their probability; --sample false takes the likeliest. One prompt is answered as it is written,
    the prompt first. Several outputs are set apart by a line of dashes; for programs there is --format jsonl.
    """
    with ending_well():
        if prompt is not None and file is not None:
            raise ValueError("give --prompt or FILE, not both")
        not_with("--prompt, which is one text", {"--workers"} if prompt is not None and workers else set())
        _need_file(file, f"a prompt is given as --prompt {shlex.quote(str(file))}")
        check_files(out, file)
        writer = _load([run, *(members or [])], "generate", device, imports, settings)
        if prompt is None and file is None and sys.stdin.isatty():
            prompt = ""
        if prompt is not None and writer.decoding.n_best == writer.decoding.beam_size == 1 and form == "text":
            with Output(out) as output:
                _stream(writer, prompt, output)
            return
        lines = _Lines(read_lines(file) if prompt is None else iter([prompt]))
        found = writer.stream_many(lines, workers=_processes(workers, file, writer), window=window)
        with Output(out) as output:
            write = _text_writer(output, form, writer.decoding.n_best, writer.tokenizers.target)
            _write_all(found, lines, write, ProgressLine("prompts", show=not output.terminal))


def _load(runs: list[Path], verb: str, device: str, imports: list[Path] | None, settings: dict[str, Any]) -> Any:
    """What `sixfold.load` gives, if it is for this verb."""
    from sixfold.api.load import load

    loaded = load(runs, device=device, imports=imports or [], settings=settings)
    verbs = {"encoder_decoder": "translate", "decoder_only": "generate"}
    kind = loaded.model.kind
    if verbs[kind] != verb:
        raise ValueError(f"{runs[0]} is a model of kind {kind}: use `sixfold {verbs[kind]}`")
    return loaded


def _need_file(file: Path | None, if_text: str) -> None:
    """Say what to do with a text in the place of FILE."""
    if file is not None and str(file) != "-" and not os.path.lexists(file):
        raise ValueError(f"there is no file {str(file)!r}; {if_text}")


def _processes(asked: int | None, file: Path | None, loaded: Any) -> int:
    """How many processes share the work: each takes a while to start, which pays where there is much to do."""
    if asked is not None:
        return asked
    if file is None or not file.is_file() or next(loaded.model.parameters()).device.type != "cpu":
        return 0
    most = min(usual_threads(), _MOST_WORKERS, file.stat().st_size // _WORTH_A_WORKER)
    return most if most > 1 else 0


def _check_terms(translator: Translator, terms: list[str]) -> None:
    """A mistake in an option is none of the first line."""
    translator.check_terms([])  # what is wrong without them is not their fault
    try:
        translator.check_terms(terms)
    except ValueError as error:
        raise ValueError(f"--term: {error}") from None


@dataclass
class _Lines:
    """The lines that are read, each remembered until its output is there."""

    texts: Iterable[str | None]
    always: tuple[str, ...] = ()  # terms of all lines
    terms: Path | None = None
    prefixes: Path | None = None
    unanswered: deque[Line] = field(default_factory=deque)

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
            line = Line(text, begin, (*self.always, *own))
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


Write = Callable[[int, "Line", "Translation"], None]


def _write_all(outputs: Iterator[Translation], lines: _Lines, write: Write, progress: ProgressLine) -> None:
    """Write each output as soon as it is there; tell how it went, however it ended."""
    how = "broken off: "
    try:
        for number, output in enumerate(outputs, 1):
            write(number, lines.unanswered.popleft(), output)
            progress.count(len(output.tokens))
            if output.note:
                progress.say(f"line {number:,}: {output.note}")
        how = ""
    except BrokenPipeError:
        raise
    except BaseException as error:
        how = "interrupted: " if isinstance(error, KeyboardInterrupt) else how
        progress.close(how)
        raise
    else:
        progress.close()


def _writer_of(output: Output, form: Format, n_best: int, tokenizer: Tokenizer) -> Write:
    if form == "jsonl":
        return lambda _, line, found: output.write(json_line(record(found, line, tokenizer, several=n_best > 1)))
    if n_best == 1:
        return lambda _, __, found: output.write(one_line(found.text))

    def write(number: int, _: Line, found: Translation) -> None:
        for each in found.n_best:
            output.write(str(number), f"{each.score:.4f}", one_line(each.text))

    return write


def _text_writer(output: Output, form: Format, n_best: int, tokenizer: Tokenizer) -> Write:
    """Whole texts, which may have many lines: set apart by a line of dashes."""
    if form == "jsonl":
        several = n_best > 1
        return lambda _, line, found: output.write(json_line(record(found, line, tokenizer, "prompt", several=several)))

    def write(number: int, line: Line, found: Translation) -> None:
        for place, each in enumerate(found.n_best):
            if (number, place) != (1, 0):
                output.write("----")
            output.write(line.text + each.text, end="" if each.text.endswith("\n") else "\n")

    return write


def record(
    found: Translation, line: Line, tokenizer: Tokenizer, read: str = "source", *, several: bool = False
) -> dict[str, Any]:
    """What --format jsonl says of a line; docs/decoding.md explains it."""
    about: dict[str, Any] = {read: line.text, **_output(found, tokenizer)}
    if found.alignment is not None:
        about["source_tokens"] = found.alignment.source
        about["alignment"] = list(enumerate(found.alignment.tokens))
        about["word_alignment"] = found.alignment.words
    if several:
        about["n_best"] = [_output(each, tokenizer) for each in found.n_best]
    return {**about, "note": found.note}


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


def _stream(writer: Generator, prompt: str, output: Output) -> None:
    """One text as it is written, the prompt first."""
    output.write(prompt, end="")
    note, last = "", prompt
    try:
        for text, whole in writer.follow(prompt):
            output.write(text, end="")
            last, note = text or last, "" if whole is None else whole.note
    finally:
        if not last.endswith("\n"):
            output.write("")
    if note:
        typer.echo(f"sixfold: {note}", err=True)


def _prompt(answer: Callable[[str], None]) -> None:
    """Ask for lines until Ctrl-D."""
    import readline  # noqa: F401  (so that lines can be edited, and those before come back)

    typer.echo("A line to translate; Ctrl-D to leave.", err=True)
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


def _show_translation(translator: Translator, line: str, terms: tuple[str, ...]) -> None:
    (found,) = translator.translate([line], terms=[terms])
    output = Output()
    for each in found.n_best:
        score = [f"{each.score:.4f}"] if found.others else []
        output.write(*score, one_line(each.text))
    if found.note:
        typer.echo(f"sixfold: {found.note}", err=True)
