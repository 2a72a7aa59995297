"""`make demo`: train on the embedded text for some minutes, then show what the model has learned.

python -m sixfold.demo [--minutes 4] [--out runs/demo]
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sixfold.cli.app import BUSY, errors_in_a_line
from sixfold.core.threads import sleep_soon_if_busy


def main(
    minutes: Annotated[float, typer.Option(min=0.001, help="Minutes of training.")] = 4.0,
    out: Annotated[Path, typer.Option(help="Directory of the run; an earlier run is replaced.")] = Path("runs/demo"),
) -> None:
    """Train a model from English spelling to pronunciation, and show what it has learned."""
    if sleep_soon_if_busy():
        typer.echo(BUSY, err=True)
    from sixfold.demonstration import demo  # here, since torch must not be imported earlier

    code = demo(minutes, out)
    if code:
        raise typer.Exit(code)


if __name__ == "__main__":
    with errors_in_a_line():
        typer.run(main)
