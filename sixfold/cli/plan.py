"""The verb `plan`: shows how `train` would train, without training."""

from __future__ import annotations

import time
from typing import Any

import typer

from sixfold.cli.app import app
from sixfold.cli.new_run import Out, Overwrite, Recipe, StartFrom, new_config
from sixfold.cli.options import (
    AsJson,
    Import,
    Modify,
    Sectioned,
    TaskOption,
    configured,
    import_parts,
    print_json,
)
from sixfold.terminal import printable


@app.command(cls=Sectioned)
@configured()
def plan(
    recipe: Recipe = None,
    out: Out = None,
    task: TaskOption = None,
    modify: Modify = None,
    imports: Import = None,
    start_from: StartFrom = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Show how `train` would train a model, and why.

    It takes the arguments of `train` for a new run. It reads the text, trains a tokenizer, measures the speed of this
    machine for a few seconds, and writes nothing (so --out and --overwrite have no effect):

    sixfold plan --data.train corpus/train --data.source en --data.target de --training.minutes 30
    """
    from sixfold.config.advice import advice
    from sixfold.runs.run import Run
    from sixfold.training.observers.display import Display
    from sixfold.training.planning import lines, warning_of_slow_preparation
    from sixfold.training.planning import plan as make

    import_parts(imports)
    _, config = new_config(recipe, settings, task, modify or [], start_from)
    before = None if start_from is None else Run(start_from).need()
    with Display() as display:
        minutes, began = config.training.minutes, time.monotonic()
        told = warning_of_slow_preparation(display.progress, display.say, minutes, began)
        planned, prepared, parameters = make(config, told, before)
        for line in prepared.report.lines():
            display.say(line)
        for line in advice(planned):
            display.say(line)
    if as_json:
        chosen = {choice.key: {"value": choice.value, "reason": choice.reason} for choice in planned.choices}
        print_json({"plan": chosen, "parameters": parameters, "length": planned.length()})
        return
    typer.echo(printable("\n".join(lines(planned, parameters))))
