"""The verb `show`: prints a recipe, to read or to copy."""

from __future__ import annotations

from typing import Annotated

import typer

from sixfold.cli.app import app
from sixfold.config.files import recipes
from sixfold.core.names import unknown


@app.command()
def show(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a recipe; `sixfold list --recipes` lists them.")
    ],
) -> None:
    """Print a recipe, to read or to copy.

    To make a recipe of your own: sixfold show lm > mine.yaml, change it, then sixfold train mine.yaml.
    """
    known = recipes()
    if recipe not in known:
        raise ValueError(unknown("recipe", recipe, known))
    typer.echo(known[recipe].read_text(encoding="utf-8").rstrip())
