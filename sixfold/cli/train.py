"""The verb `train`: trains a model on text, into a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.lines import ending_well
from sixfold.cli.new_run import Out, Overwrite, Recipe, StartFrom, new_config
from sixfold.cli.options import Import, Modify, Sectioned, TaskOption, configured, import_parts, not_with
from sixfold.terminal import printable

if TYPE_CHECKING:
    from sixfold.config.schema import Config
    from sixfold.training.runner import Outcome

_FINDINGS = 3  # most that are printed after training


@app.command(cls=Sectioned)
@configured()
def train(
    recipe: Recipe = None,
    out: Out = None,
    task: TaskOption = None,
    modify: Modify = None,
    imports: Import = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Continue a run from its last checkpoint.")
    ] = None,
    start_from: StartFrom = None,
    overwrite: Overwrite = False,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="Resume even if the data files have changed.")
    ] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model.

    Without RECIPE and --data.train, it trains on the embedded example: English spelling to pronunciation.

    To train on your own text, give two files with a sentence per line, a TSV file or a JSONL file. A tokenizer is
    trained first. This reads corpus/train.en, corpus/train.de, corpus/dev.en and corpus/dev.de:

    sixfold train --data.train corpus/train --data.valid corpus/dev --data.source en --data.target de --out runs/mine
    """
    with ending_well():
        import_parts(imports)
        if resume is not None:
            others = {
                "RECIPE": recipe,
                "--out": out,
                "--task": task,
                "--modify": modify,
                "--from": start_from,
                "--overwrite": overwrite,
            }
            not_with("--resume", {name for name, value in others.items() if value})
            outcome = _resume(resume, settings, allow_changed_data)
        else:
            not_with("a new run", {"--allow-changed-data"} if allow_changed_data else set())
            recipe, config = new_config(recipe, settings, task, modify or [], start_from)
            out = out or Path("runs", Path(recipe or "transformer").stem)
            outcome = _train(config, out, overwrite, start_from)
    _say_how_it_went(outcome)
    _say_what_next(outcome)
    if not outcome.finished:
        raise typer.Exit(1 if outcome.signal is None else 128 + outcome.signal)


def _train(config: Config, out: Path, overwrite: bool, start_from: Path | None) -> Outcome:
    from sixfold.training.runner import train

    return train(config, out, overwrite=overwrite, start_from=start_from)


def _resume(run: Path, settings: dict[str, Any], allow_changed_data: bool) -> Outcome:
    from sixfold.training.runner import resume

    return resume(run, settings, allow_changed_data=allow_changed_data)


def _say_how_it_went(outcome: Outcome) -> None:
    """The most important findings on the run; `sixfold info` prints all."""
    from sixfold.doctor.run_doctor import examine
    from sixfold.runs.run import Run
    from sixfold.training.processes import is_first

    run = Run(outcome.run)
    if is_first() and run.exists() and (found := examine(run)):
        lines = (f"  {finding.text()}" for finding in found[:_FINDINGS])
        typer.echo(printable("\n".join(["how it went:", *lines])), err=True)


def _say_what_next(outcome: Outcome) -> None:
    from sixfold.training.processes import is_first
    from sixfold.training.what_next import what_next

    if is_first():
        lines = (f"  {command}" for command in what_next(outcome))
        typer.echo(printable("\n".join(["what to type next:", *lines])), err=True)
