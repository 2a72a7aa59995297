"""The verb `plot`: draws the curves of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sixfold.cli.app import app
from sixfold.terminal import printable


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The picture, .png or .svg.")] = Path("curves.png"),
) -> None:
    """Draw loss and metric of one or several runs as curves."""
    from sixfold.api.plot import plot as draw
    from sixfold.runs.run import Run

    draw([Run(run) for run in runs], out)
    typer.echo(f"wrote {printable(str(out))}", err=True)
