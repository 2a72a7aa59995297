"""The verb `bench`: measures speed and memory of a run or a recipe on this machine."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sixfold.cli.app import app
from sixfold.cli.lines import check_files, ending_well, read_lines, tell
from sixfold.cli.options import Import, Modify, Sectioned, configured, import_parts
from sixfold.core.threads import usual_threads
from sixfold.disk.atomic import write_text
from sixfold.terminal import console, facts, printable, table

if TYPE_CHECKING:
    from sixfold.bench.report import Table


What = Annotated[
    str, typer.Argument(metavar="[RUN or RECIPE]", help="Directory of a run, name of a recipe, or a YAML file.")
]
Only = Annotated[str, typer.Option("--only", metavar="NAMES", help="Sections: training, decoding, length.")]
Seconds = Annotated[float, typer.Option("--seconds", help="About how many seconds all sections may take together.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Largest number of rounds; each round times every library once.")]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Threads of each library [default: OMP_NUM_THREADS, or all cores]")
]
Steps = Annotated[int, typer.Option("--steps", help="training: optimiser steps of one timing.")]
Sentences = Annotated[int, typer.Option("--sentences", help="decoding: largest number of sentences.")]
TextFile = Annotated[
    Path | None,
    typer.Option("--file", metavar="FILE", help="decoding: sentences, one per line [default: the run's test text]"),
]
Beams = Annotated[str, typer.Option("--beams", metavar="NUMBERS", help="decoding: beam sizes; 1: greedy search.")]
Ways = Annotated[
    str,
    typer.Option("--ways", metavar="NAMES", help="decoding: batch (many sentences at once), alone (one at a time)."),
]
Precisions = Annotated[str, typer.Option("--precisions", metavar="NAMES", help="decoding: float32, int8.")]
Peers = Annotated[
    str,
    typer.Option(
        "--peers", metavar="NAMES", help="Libraries to compare with: all (that are installed), none, or names."
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all measurements to a JSON file.")]


@app.command(cls=Sectioned)
@configured()
def bench(
    what: What = "pronounce",
    only: Only = "training,decoding,length",
    seconds: Seconds = 300.0,
    rounds: Rounds = 10,
    threads: Threads = None,
    steps: Steps = 4,
    sentences: Sentences = 1000,
    file: TextFile = None,
    beams: Beams = "1,4",
    ways: Ways = "batch,alone",
    precisions: Precisions = "float32,int8",
    peers: Peers = "all",
    out: JsonFile = None,
    modify: Modify = None,
    imports: Import = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Measure speed and memory, compared with other libraries.

    \b
    sixfold bench runs/mine --json mine.json
    sixfold bench transformer-base --only training --model.d_model 256 --model.heads 4
    sixfold bench runs/mine --only decoding --beams 4 --peers ctranslate2

    training: target tokens per second, and the share of the machine's peak speed. decoding: greedy and beam search, in
    batches and one at a time, float32 and int8. length: time and memory for texts of 256 to 8,192 tokens.
    """
    from sixfold.bench import options

    asked = options.BenchOptions(
        only=options.names(only),
        rounds=rounds,
        steps=steps,
        threads=1 if threads is None else threads,
        sentences=sentences,
        beams=options.numbers(beams, "--beams"),
        ways=options.names(ways),
        precisions=options.names(precisions),
        peers=options.peers(peers),
        seconds=seconds,
        file=None if file is None else str(file),
        texts=_lines(file, out),
    )
    _check_place(out)
    import_parts(imports)
    with ending_well():
        from sixfold.bench.report import bench as measure
        from sixfold.bench.subject import opened

        asked = asked if threads is not None else replace(asked, threads=usual_threads())
        with opened(what, settings, modify or [], [str(each) for each in imports or []]) as subject:
            report = measure(subject, asked, _progress)
        tell("", done=False)
        try:
            _report(report)
        finally:  # the file is written even if printing fails
            if out is not None:
                write_text(out, json.dumps(report, indent=2, ensure_ascii=False) + "\n")


def _progress(news: str) -> None:
    """Show progress: on a terminal the newest message only, in a pipe all of them."""
    tell(news, done=not sys.stderr.isatty())


def _lines(file: Path | None, out: Path | None) -> list[str]:
    check_files(out, file)
    return [] if file is None else list(read_lines(file))


def _check_place(out: Path | None) -> None:
    """Raise a ValueError if --json can't be written, before minutes of measuring."""
    if out is None:
        return
    folder = out.absolute().parent
    if out.is_dir():
        raise ValueError(f"--json {out} is a directory; give the name of a file")
    if not folder.is_dir():
        raise ValueError(f"there is no directory {str(folder)!r} to write {out.name} to")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"directory {str(folder)!r} is not writable; give another --json")


def _report(report: dict[str, Any]) -> None:
    from sixfold.bench.report import told

    screen, subject, machine = console(), report["subject"], report["machine"]
    screen.print(facts(*_described(subject), *((name, value) for name, value in machine.items())))
    for warning in report["warnings"]:
        typer.echo(f"\nwarning: {warning}")
    for name, section in report["sections"].items():
        typer.echo(f"\n{name}")
        tables, notes = told(name, section)
        for each in tables:
            screen.print(_table(each))
        for note in notes:
            typer.echo(printable(note))


def _described(subject: dict[str, Any]) -> list[tuple[str, Any]]:
    sizes = subject["sizes"]
    layers = f"{sizes['encoder_layers']} + {sizes['decoder_layers']} layers"
    words = sizes["vocab"] or f"{sizes['source_vocab']}, {sizes['target_vocab']}"
    model = f"{subject['kind']}, {subject['parameters']:,} parameters, d_model {sizes['d_model']}, {layers}"
    return [
        ("what", subject["name"]),
        ("model", f"{model}, d_ff {sizes['d_ff']}, {sizes['heads']} heads, {words} words"),
        ("modifications", ", ".join(subject["modifications"]) or None),
        ("weights", subject["weights"]),
        ("text", subject["text"]),
    ]


def _table(made: Table) -> Any:
    head, rows = made
    numeric = tuple(i for i in range(len(head)) if all(row[i][:1].isdigit() or not row[i] for row in rows))
    shown = table(*head, right=numeric)
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    return shown
