"""The verb `classify`: line in, label out."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.decoding_verbs import (
    Format,
    FormatOption,
    Lines,
    Out,
    Window,
    ask_for_lines,
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
        Path | None, typer.Argument(metavar="FILE", help="The texts, line by line, also .gz [default: standard input]")
    ] = None,
    out: Out = None,
    form: FormatOption = "text",
    device: Device = "auto",
    window: Window = 1024,
    imports: Import = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Say which label each line of text has.

    Line in, line out, in order: sixfold classify runs/reviews < in.txt > out.tsv. A line out is a label and its
    probability, with a tab between them; that of an empty line is empty. --format jsonl has the probability of every
    label. With a terminal and no FILE it is a prompt.
    """
    with ending_well():
        need_file(file, f"a text is given as: echo {shlex.quote(str(file))} | sixfold classify {run}")
        check_files(out, file)
        classifier = load_for([run], "classify", device, imports, settings)
        if file is None and sys.stdin.isatty():
            ask_for_lines("A text to classify", lambda line: _show(classifier, line, form))
        else:
            classify_lines(classifier, arriving_lines(file), out, form, window)


def classify_lines(
    classifier: Classifier, texts: Iterable[str | None], out: Path | None, form: Format, window: int
) -> None:
    """Write the label of each text to a file, or to standard output; None where no more texts come at the moment."""
    lines = Lines(texts)
    found = classifier.stream(lines, wait=lines.wait, window=window)
    with Output(out) as output:  # which is emptied only now that nothing is wrong with the options

        def write(_: int, line: Line, answer: Classification) -> None:
            output.write(*_columns(line.text, answer, form))

        write_all(found, lines, write, ProgressLine(show=not output.terminal))


def _columns(text: str, found: Classification, form: Format) -> list[str]:
    """What is written of a text, with tabs between."""
    if form == "jsonl":
        return [json_line(record(text, found))]
    return [one_line(found.label), f"{found.probability:.4f}"] if found.label else [""]


def record(text: str, found: Classification) -> dict[str, Any]:
    """What --format jsonl says of a text; docs/classification.md explains it."""
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
