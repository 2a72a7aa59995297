"""The verb `translate`: line in, line out."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.decoding_verbs import (
    Format,
    FormatOption,
    Out,
    PendingLines,
    TraceOption,
    Window,
    With,
    Workers,
    Write,
    ask_for_lines,
    at_a_terminal,
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
    from sixfold.decoding.translator import TranslationSession
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
    stays empty. On a terminal, without FILE, it asks for lines. With --n_best, each output has its own line: number of
    the input line, score and text, with tabs between.

    The defaults are those of the run's own configuration, where it sets them.
    """
    with ending_well():
        need_file(file, f"give a text as: echo {shlex.quote(str(file))} | sixfold translate {run}")
        check_files(out, file, prefixes, terms=terms)
        for_files = {"--out": out, "--terms": terms, "--prefixes": prefixes, "--workers": workers}
        typed, workers = at_a_terminal(file, for_files), tracing(trace, form, workers)
        translator = load_for([run, *(members or [])], "translate", device, imports, settings)
        if typed:  # an error in the options comes before the first prompt
            session = translator.session(terms=term or (), alignment=form == "jsonl", trace=trace)
            ask_for_lines("A line to translate", lambda text: _show_translation(session, text, form))
            return
        lines = PendingLines(arriving_lines(file), terms, prefixes)
        how: dict[str, Any] = {"workers": worker_count(workers, file, translator), "window": window, "trace": trace}
        found = translator.stream(lines, wait=lines.wait, terms=term or (), alignment=form == "jsonl", **how)
        with Output(out) as output:  # empties the file, so only after the options were checked
            write = _writer_of(output, form, translator.decoding.n_best, translator.tokenizers.target)
            write_all(found, lines, write, ProgressLine(show=not output.terminal))


def _writer_of(output: Output, form: Format, n_best: int, tokenizer: Tokenizer) -> Write:
    if form == "jsonl":
        return lambda _, line, found: output.write(json_line(record(found, line, tokenizer, several=n_best > 1)))
    if n_best == 1:
        return lambda _, __, found: output.write(one_line(found.text))

    def write(number: int, _: Line, found: Translation) -> None:
        for each in found.n_best:
            output.write(str(number), f"{each.score:.4f}", one_line(each.text))

    return write


def _show_translation(session: TranslationSession, text: str, form: Format) -> None:
    from sixfold.decoding.records import Line

    (found,) = session.stream([text])
    output = Output()
    if form == "jsonl":
        _writer_of(output, form, session.decoding.n_best, session.tokenizer)(1, Line(text), found)
        return
    for each in found.n_best:
        score = [f"{each.score:.4f}"] if found.others else []
        output.write(*score, one_line(each.text))
    if found.note:
        typer.echo(f"sixfold: {found.note}", err=True)
