"""The verb `translate`: line in, line out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.decoding_verbs import (
    Format,
    FormatOption,
    Lines,
    Out,
    TraceOption,
    Window,
    With,
    Workers,
    Write,
    ask_for_lines,
    load_for,
    need_file,
    record,
    tracing,
    worker_count,
    write_all,
)
from sixfold.cli.lines import Output, ProgressLine, arriving_lines, check_files, ending_well, json_line, one_line
from sixfold.cli.options import Device, Import, RunArgument, Sectioned, configured

if TYPE_CHECKING:
    from sixfold.decoding.records import Line, Translation
    from sixfold.decoding.translator import Translator
    from sixfold.text.tokenizer import Tokenizer


@app.command(cls=Sectioned)
@configured("decoding")
def translate(
    run: RunArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Text, a sentence per line; may be gzipped [default: standard input]"),
    ] = None,
    members: With = None,
    out: Out = None,
    form: FormatOption = "text",
    trace: TraceOption = False,
    term: Annotated[
        list[str] | None,
        typer.Option(
            "--term", metavar="TEXT", help="A term that every output must contain; may be given several times."
        ),
    ] = None,
    terms: Annotated[
        Path | None,
        typer.Option(
            "--terms", metavar="FILE", help="For each line the terms its output must contain, with tabs between."
        ),
    ] = None,
    prefixes: Annotated[
        Path | None, typer.Option("--prefixes", metavar="FILE", help="For each line the beginning of its output.")
    ] = None,
    device: Device = "auto",
    workers: Workers = None,
    window: Window = 1024,
    imports: Import = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Translate lines of text.

    One line of output for each line of input, in order: sixfold translate runs/mine < in.txt > out.txt. An empty line
    stays empty. On a terminal, without FILE, it asks for lines. With --n_best, each output is a line of its own: number
    of the input line, score and text, with tabs between.

    The defaults are those of the run's own configuration, where it sets them.
    """
    with ending_well():
        need_file(file, f"give a text as: echo {shlex.quote(str(file))} | sixfold translate {run}")
        check_files(out, file, prefixes, terms=terms)
        workers = tracing(trace, form, workers)
        translator = load_for([run, *(members or [])], "translate", device, imports, settings)
        if term:
            _check_terms(translator, term)
        if file is None and sys.stdin.isatty():
            translator.session()  # checks the options before a line is asked for
            ask_for_lines("A line to translate", lambda line: _show_translation(translator, line, tuple(term or ())))
            return
        lines = Lines(arriving_lines(file), tuple(term or ()), terms, prefixes)
        processes = worker_count(workers, file, translator)
        how: dict[str, Any] = {"workers": processes, "window": window, "trace": trace}
        found = translator.stream(lines, wait=lines.wait, alignment=form == "jsonl", **how)
        with Output(out) as output:  # empties the file, so only after the options were checked
            write = _writer_of(output, form, translator.decoding.n_best, translator.tokenizers.target)
            write_all(found, lines, write, ProgressLine(show=not output.terminal))


def _check_terms(translator: Translator, terms: list[str]) -> None:
    """Check --term before the first line, so that its error does not name a line."""
    translator.check_terms([])  # other errors must not be blamed on --term
    try:
        translator.check_terms(terms)
    except ValueError as error:
        raise ValueError(f"--term: {error}") from None


def _writer_of(output: Output, form: Format, n_best: int, tokenizer: Tokenizer) -> Write:
    if form == "jsonl":
        return lambda _, line, found: output.write(json_line(record(found, line, tokenizer, several=n_best > 1)))
    if n_best == 1:
        return lambda _, __, found: output.write(one_line(found.text))

    def write(number: int, _: Line, found: Translation) -> None:
        for each in found.n_best:
            output.write(str(number), f"{each.score:.4f}", one_line(each.text))

    return write


def _show_translation(translator: Translator, line: str, terms: tuple[str, ...]) -> None:
    (found,) = translator.translate([line], terms=[terms])
    output = Output()
    for each in found.n_best:
        score = [f"{each.score:.4f}"] if found.others else []
        output.write(*score, one_line(each.text))
    if found.note:
        typer.echo(f"sixfold: {found.note}", err=True)
