"""The verb `export`: a run as other programs read it."""

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
    to: Annotated[Literal["ctranslate2", "safetensors", "torch"], typer.Option("--to", help="For whom.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A directory, which must be new.")],
    quantization: Annotated[
        str | None,
        typer.Option("--quantization", metavar="NAME", help="ctranslate2 only: int8, float16 … [default: float32]"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    sample: Annotated[
        Path | None,
        typer.Option("--sample", metavar="FILE", help="What both engines write [default: the run's own text]"),
    ] = None,
    lines: Annotated[
        int, typer.Option("--lines", min=0, max=1_000_000, help="And how many lines of it; 0: none.")
    ] = 100,
    imports: Import = None,
    as_json: AsJson = False,
) -> None:
    """Write a run for other programs.

    \b
    sixfold export runs/mine --to ctranslate2 --out mine-ct2 --quantization int8
    sixfold export runs/mine --to safetensors --out weights       weights and JSON, nothing else
    sixfold export runs/mine --to torch --out programs            programs of torch.export

    Both engines then write a sample, and what is reported is how far they agree; without quantization they have to.
    A model that can't be expressed there is refused by name. The directory has a README with a program that decodes
    with the run's settings (beam, length limits, …); settings that it can't have are named.
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
        typer.echo(printable(f"not carried: {sentence}"))


def _compared(found: Agreement) -> Iterator[tuple[str, str]]:
    """The engine beside the model, then the README's program beside the run."""
    yield "texts, written greedily", f"{found.texts:,}"
    yield "the same, token by token", f"{found.same:,} ({found.share:.1%})"
    if found.same < found.texts:
        yield "log p by which the first other word is less likely, at most", f"{found.gap:.2g}"
    yield "difference in log p of a token, at most", f"{found.log_prob:.2g}"
    used = found.as_used
    if used is None:
        return
    how = "with its settings but no sampling" if used.drawn else "with the run's settings"
    yield f"texts, written by the README's program {how}", f"{found.texts:,}"
    yield "the same text as by the run", f"{used.same:,} ({used.same / found.texts:.1%})"
    if used.cut:
        yield "of those that reach the length limit, the same", f"{used.cut_same:,} of {used.cut:,}"
    if used.searched:
        yield "of those where beam and greedy search differ, the same", f"{used.searched_same:,} of {used.searched:,}"
