"""The verb `plan`: shows how `train` would train, without training."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.options import (
    AsJson,
    Import,
    Modify,
    Sectioned,
    TaskOption,
    configured,
    import_parts,
    print_json,
    say_first,
)
from sixfold.config.files import read_config
from sixfold.terminal import printable


@app.command(cls=Sectioned)
@configured()
def plan(
    recipe: Annotated[
        str | None, typer.Argument(help="Name of a recipe, or a YAML file [default: pronounce, on embedded text]")
    ] = None,
    task: TaskOption = None,
    modify: Modify = None,
    imports: Import = None,
    as_json: AsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Show how `train` would train a model, and why.

    It takes the same arguments as `train`. It reads the text, trains a tokenizer, measures the speed of this machine
    for a few seconds, and writes nothing:

    sixfold plan --data.train corpus/train --data.source en --data.target de --training.minutes 30
    """
    from sixfold.config.advice import advice
    from sixfold.training.observers.display import Display
    from sixfold.training.planning import lines
    from sixfold.training.planning import plan as make

    import_parts(imports)
    if recipe is None and "data.train" not in settings:
        recipe = "pronounce"
    config = read_config(recipe, settings if task is None else {**settings, "task": task}, say=say_first)
    with Display() as display:
        began = time.monotonic()
        planned, prepared, parameters = make(config.with_modifications(modify or []), display.progress)
        for line in prepared.report.lines():
            display.say(line)
        for line in advice(planned, time.monotonic() - began):
            display.say(line)
    if as_json:
        chosen = {choice.key: {"value": choice.value, "reason": choice.reason} for choice in planned.choices}
        print_json({"plan": chosen, "parameters": parameters, "length": planned.length()})
        return
    typer.echo(printable("\n".join(lines(planned, parameters))))
