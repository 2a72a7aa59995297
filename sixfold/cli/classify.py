"""The verb `classify`: line in, label out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.decoding_verbs import (
    Format,
    FormatOption,
    Out,
    PendingLines,
    Window,
    ask_for_lines,
    at_a_terminal,
    load_for,
    need_file,
    write_all,
)
from sixfold.cli.lines import Output, ProgressLine, arriving_lines, check_files, ending_well, json_line, one_line
from sixfold.cli.options import Device, Import, RunArgument, Sectioned, configured

if TYPE_CHECKING:
    from sixfold.decoding.classifier import Classification, Classifier
    from sixfold.decoding.records import Line


@app.command(cls=Sectioned)
@configured("decoding.max_source", "decoding.too_long", "decoding.batch_tokens", "decoding.precision")
def classify(
    run: RunArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Texts, one per line; may be gzipped [default: standard input]"),
    ] = None,
    out: Out = None,
    form: FormatOption = "text",
    device: Device = "auto",
    window: Window = 1024,
    imports: Import = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Predict the label of each line of text.

    One line of output for each line of input, in order: sixfold classify runs/reviews < in.txt > out.tsv. It is the
    likeliest label and its probability, with a tab between; an empty line stays empty. --format jsonl gives the
    probability of every label. On a terminal, without FILE, it asks for lines.
    """
    with ending_well():
        need_file(file, f"give a text as: echo {shlex.quote(str(file))} | sixfold classify {run}")
        check_files(out, file)
        typed = at_a_terminal(file, {"--out": out})
        classifier = load_for([run], "classify", device, imports, settings)
        if typed:
            ask_for_lines("A text to classify", lambda line: _show(classifier, line, form))
        else:
            classify_lines(classifier, arriving_lines(file), out, form, window)


def classify_lines(
    classifier: Classifier, texts: Iterable[str | None], out: Path | None, form: Format, window: int
) -> None:
    """Write the label of each text to a file or to standard output. A text is None while no input has arrived."""
    lines = PendingLines(texts)
    found = classifier.stream(lines, wait=lines.wait, window=window)
    with Output(out) as output:  # empties the file, so only after the options were checked

        def write(_: int, line: Line, answer: Classification) -> None:
            output.write(*_columns(line.text, answer, form))

        write_all(found, lines, write, ProgressLine(show=not output.terminal))


def _columns(text: str, found: Classification, form: Format) -> list[str]:
    """The columns of a text's line."""
    if form == "jsonl":
        return [json_line(record(text, found))]
    return [one_line(found.label), f"{found.probability:.4f}"] if found.label else [""]


def record(text: str, found: Classification) -> dict[str, Any]:
    """The object that --format jsonl writes for a text; docs/classification.md explains its fields."""
    return {
        "text": text,
        "label": found.label,
        "probability": found.probability,
        "probabilities": dict(found.probabilities),
        "note": found.note,
    }


def _show(classifier: Classifier, text: str, form: Format) -> None:
    (found,) = classifier.classify([text])
    Output().write(*_columns(text, found, form))
    if found.note:
        typer.echo(f"sixfold: {found.note}", err=True)
