"""The verb `show`: a recipe, as it is written, to read or to copy."""

from __future__ import annotations

from typing import Annotated

import typer

from sixfold.cli.app import app
from sixfold.config.files import recipes
from sixfold.core.names import unknown


@app.command()
def show(recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="`sixfold list --recipes` names them.")]) -> None:
    """Print a recipe. `sixfold show lm > mine.yaml` is a copy to change: `sixfold train mine.yaml`."""
    known = recipes()
    if recipe not in known:
        raise ValueError(unknown("recipe", recipe, known))
    typer.echo(known[recipe].read_text(encoding="utf-8").rstrip())
