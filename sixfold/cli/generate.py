"""The verb `generate`: a language model continues a text."""

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
    at_a_terminal,
    load_for,
    need_file,
    record,
    tracing,
    worker_count,
    write_all,
)
from sixfold.cli.lines import Output, ProgressLine, arriving_lines, check_files, ending_well, json_line
from sixfold.cli.options import Device, Import, RunArgument, Sectioned, configured, not_with

if TYPE_CHECKING:
    from sixfold.decoding.generator import Generator
    from sixfold.decoding.records import Line, Translation
    from sixfold.text.tokenizer import Tokenizer


@app.command(cls=Sectioned)
@configured("decoding")
def generate(
    run: RunArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Prompts, one per line [default: standard input]")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="The text to continue; may be empty.")
    ] = None,
    members: With = None,
    out: Out = None,
    form: FormatOption = "text",
    trace: TraceOption = False,
    device: Device = "auto",
    workers: Workers = None,
    window: Window = 1024,
    imports: Import = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Continue a text with a language model.

    Words are drawn by their probability; with --sample false the likeliest is taken. The output for a single prompt
    appears word by word, after the prompt. Several outputs are separated by a line of dashes; programs should use
    --format jsonl.
    """
    with ending_well():
        if prompt is not None and file is not None:
            raise ValueError("give --prompt or FILE, not both")
        if prompt is not None:
            not_with("--prompt, which is a single text", {"--workers"} if workers else set())
        elif at_a_terminal(file, {"--workers": workers}):
            prompt = ""
        need_file(file, f"give a prompt as --prompt {shlex.quote(str(file))}")
        check_files(out, file)
        workers = tracing(trace, form, workers)
        writer = load_for([run, *(members or [])], "generate", device, imports, settings)
        if prompt is not None and writer.decoding.n_best == writer.decoding.beam_size == 1 and form == "text":
            with Output(out) as output:
                _stream(writer, prompt, output)
            return
        lines = PendingLines(arriving_lines(file) if prompt is None else iter([prompt]))
        processes = worker_count(workers, file, writer)
        found = writer.stream_many(lines, wait=lines.wait, workers=processes, window=window, trace=trace)
        with Output(out) as output:
            write = _text_writer(output, form, writer.decoding.n_best, writer.tokenizers.target)
            write_all(found, lines, write, ProgressLine("prompts", show=not output.terminal))


def _text_writer(output: Output, form: Format, n_best: int, tokenizer: Tokenizer) -> Write:
    """Writes texts, which may have several lines, with a line of dashes between them."""
    if form == "jsonl":
        several = n_best > 1
        return lambda _, line, found: output.write(json_line(record(found, line, tokenizer, "prompt", several=several)))

    def write(number: int, line: Line, found: Translation) -> None:
        for index, each in enumerate(found.n_best):
            if (number, index) != (1, 0):
                output.write("----")
            output.write(line.text + each.text, end="" if each.text.endswith("\n") else "\n")

    return write


def _stream(writer: Generator, prompt: str, output: Output) -> None:
    """Write the prompt, then its continuation word by word."""
    output.write(prompt, end="")
    note, last = "", prompt
    try:
        for text, complete in writer.follow(prompt):
            output.write(text, end="")
            last, note = text or last, "" if complete is None else complete.note
    finally:
        if not last.endswith("\n"):
            output.write("")
    if note:
        typer.echo(f"sixfold: {note}", err=True)
