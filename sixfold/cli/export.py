"""The verb `export`: writes a run in a format of another program."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.text import Text

from sixfold.cli.app import app
from sixfold.cli.lines import check_files, ending_well, read_lines
from sixfold.cli.options import AsJson, Import, RunArgument, print_json
from sixfold.terminal import console, printable, table

if TYPE_CHECKING:
    from sixfold.foreign.agreement import Agreement
    from sixfold.foreign.export import Exported


@app.command()
def export(
    run: RunArgument,
    to: Annotated[Literal["ctranslate2", "safetensors", "torch"], typer.Option("--to", help="Format.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory to write; must not exist yet.")],
    quantization: Annotated[
        str | None,
        typer.Option("--quantization", metavar="NAME", help="ctranslate2 only: int8, float16 … [default: float32]"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    sample: Annotated[
        Path | None,
        typer.Option(
            "--sample", metavar="FILE", help="Texts to compare on, one per line [default: the run's own text]"
        ),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", min=0, max=1_000_000, help="Number of lines to compare on; 0: do not compare.")
    ] = 100,
    imports: Import = None,
    as_json: AsJson = False,
) -> None:
    """Write a run in a format of another program.

    \b
    sixfold export runs/mine --to ctranslate2 --out mine-ct2 --quantization int8
    sixfold export runs/mine --to safetensors --out weights       weights and JSON only
    sixfold export runs/mine --to torch --out programs            programs of torch.export

    Before the export is written, sixfold and the exported model decode a sample, and the differences are reported;
    without quantization, the outputs must agree. If the format can't express the model, an error names the part. The
    directory has a README with a program that decodes with the run's settings (beam size, length limits, …), and a list
    of settings that the program lacks.
    """
    from sixfold.foreign.export import export as write

    with ending_well():
        check_files(None, sample)
        texts = None if sample is None else read_lines(sample)
        done = write(
            run,
            to,
            out,
            quantization=quantization,
            overwrite=overwrite,
            lines=lines,
            texts=texts,
            imports=imports or [],
        )
    if as_json:
        print_json(done.json())
    else:
        _report(done)


def _report(done: Exported) -> None:
    typer.echo(printable(f"wrote {done.directory}"))
    if done.agreement is not None:
        rows = table("compared with the original", "", right=(1,))
        for name, value in _compared(done.agreement):
            rows.add_row(Text(name), Text(value))
        console().print(rows)
    for sentence in done.not_carried:
        typer.echo(printable(f"not carried over: {sentence}"))


def _compared(found: Agreement) -> Iterator[tuple[str, str]]:
    """The rows of the table: the exported model compared with the original, then the README's program with the run."""
    yield "texts, decoded greedily", f"{found.texts:,}"
    yield "identical, token by token", f"{found.same:,} ({found.share:.1%})"
    if found.same < found.texts:
        yield "largest loss of log p at the first different token", f"{found.gap:.2g}"
    yield "largest difference in log p of a token", f"{found.log_prob:.2g}"
    used = found.as_used
    if used is None:
        return
    how = "with the run's settings except sampling" if used.drawn else "with the run's settings"
    yield f"texts, decoded by the README's program {how}", f"{found.texts:,}"
    yield "identical to the run's text", f"{used.same:,} ({used.same / found.texts:.1%})"
    if used.cut:
        yield "identical, among texts that reach the length limit", f"{used.cut_same:,} of {used.cut:,}"
    if used.searched:
        yield "identical, where beam and greedy search differ", f"{used.searched_same:,} of {used.searched:,}"
