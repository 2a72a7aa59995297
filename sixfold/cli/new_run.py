"""The arguments of a new run, which `train` and `plan` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.options import say_first
from sixfold.config.files import read_config

if TYPE_CHECKING:
    from sixfold.config.schema import Config

Recipe = Annotated[
    str | None, typer.Argument(help="Name of a recipe, or a YAML file [default: pronounce, on embedded text]")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="RUN", help="Directory of the new run [default: runs/RECIPE]")
]
StartFrom = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="RUN", help="Start from a trained run: its tokenizer, its settings, the weights that fit."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a run that exists in --out.")]


def new_config(
    recipe: str | None, settings: dict[str, Any], task: str | None, modify: list[str], start_from: Path | None
) -> tuple[str | None, Config]:
    """The recipe and the configuration of a new run, from the arguments of `train`."""
    if recipe is None and start_from is None and "data.train" not in settings:
        recipe = "pronounce"
    config = read_config(recipe, settings if task is None else {**settings, "task": task}, say=say_first)
    return recipe, _modified(config, modify, start_from)


def _modified(config: Config, modify: list[str], start_from: Path | None) -> Config:
    """--modify adds to the recipe's modifications; if it has none, to those of the run given as --from."""
    if start_from is None:
        return config.with_modifications(modify)
    from sixfold.runs.run import Run
    from sixfold.training.start_from import add_modifications

    return add_modifications(config, modify, Run(start_from))
