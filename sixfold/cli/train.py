"""The verbs `train`, `info`, `plot` and `prepare`: from text to a run, and what it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import Verbs, app
from sixfold.cli.lines import ending_well
from sixfold.cli.options import AsJson, Import, Modify, Sectioned, configured, import_parts, not_with, print_json
from sixfold.config.files import read_config
from sixfold.terminal import console, printable

if TYPE_CHECKING:
    from sixfold.config.schema import Config
    from sixfold.training.runner import Outcome


@app.command(cls=Sectioned)
@configured()
def train(
    recipe: Annotated[
        str | None, typer.Argument(help="A recipe: its name, or a YAML file [default: pronounce, the embedded one]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="RUN", help="The run's directory [default: runs/RECIPE]")
    ] = None,
    modify: Modify = None,
    imports: Import = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Go on with a run from its last checkpoint.")
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Begin with the model and the tokenizer of a trained run."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that is there.")] = False,
    allow_changed_data: Annotated[
        bool, typer.Option("--allow-changed-data", help="Resume although the data files are no longer the same.")
    ] = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Train a model.

    Without RECIPE and --data.train it is the embedded default: English spelling to pronunciation.

    The text may be a pair of files line by line, a TSV or a JSONL; a tokenizer is trained without being asked:
    sixfold train --data.train corpus/train --data.valid corpus/dev --data.source en --data.target de --out runs/mine
    """
    with ending_well():
        import_parts(imports)
        if resume is not None:
            others = {
                "RECIPE": recipe,
                "--out": out,
                "--modify": modify,
                "--from": start_from,
                "--overwrite": overwrite,
            }
            not_with("--resume", {name for name, value in others.items() if value})
            outcome = _resume(resume, settings, allow_changed_data)
        else:
            not_with("a new run", {"--allow-changed-data"} if allow_changed_data else set())
            recipe = "pronounce" if recipe is None and "data.train" not in settings else recipe
            config = read_config(recipe, settings).with_modifications(modify or [])
            out = out or Path("runs", Path(recipe or "transformer").stem)
            outcome = _train(config, out, overwrite, start_from)
    _say_what_next(outcome)
    if not outcome.finished:
        raise typer.Exit(1 if outcome.signal is None else 128 + outcome.signal)


def _train(config: Config, out: Path, overwrite: bool, start_from: Path | None) -> Outcome:
    from sixfold.training.runner import train

    return train(config, out, overwrite=overwrite, start_from=start_from)


def _resume(run: Path, settings: dict[str, Any], allow_changed_data: bool) -> Outcome:
    from sixfold.training.runner import resume

    return resume(run, settings, allow_changed_data=allow_changed_data)


def _say_what_next(outcome: Outcome) -> None:
    from sixfold.training.processes import is_first
    from sixfold.training.what_next import what_next

    if is_first():
        lines = (f"  {command}" for command in what_next(outcome))
        typer.echo(printable("\n".join(["what to type next:", *lines])), err=True)


@app.command()
def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or of a model.")],
    imports: Import = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run is: architecture, sizes, data, progress, best score."""
    from sixfold.api.describe import describe_run, table_of
    from sixfold.runs.run import Run

    import_parts(imports)
    described = describe_run(Run(run))
    if as_json:
        print_json(described)
    else:
        console().print(table_of(described))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The picture, .png or .svg.")] = Path("curves.png"),
) -> None:
    """Draw the curves of runs, loss and metric, into one picture."""
    from sixfold.api.plot import plot as draw
    from sixfold.runs.run import Run

    draw([Run(run) for run in runs], out)
    typer.echo(f"wrote {printable(str(out))}", err=True)


preparing = typer.Typer(cls=Verbs, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(preparing, name="prepare", help="Make a corpus from text that others give away.")


@preparing.callback()
def _preparing() -> None:
    pass  # without this, typer takes the only command for the whole verb


@preparing.command("libreoffice")
def prepare_libreoffice(
    source: Annotated[str, typer.Option(metavar="LANGUAGE", help="Language to translate from, such as en.")],
    target: Annotated[str, typer.Option(metavar="LANGUAGE", help="Language to translate to, such as de.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory to make.")],
    source_deb: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Package libreoffice-help-SOURCE, if not to be fetched.")
    ] = None,
    target_deb: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Package libreoffice-help-TARGET, if not to be fetched.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a corpus made before.")] = False,
) -> None:
    """Make a parallel corpus from LibreOffice's help, in any two of its languages.

    The text comes from Debian's packages, which apt-get fetches; nothing is installed.
    """
    from sixfold.text.libreoffice import prepare

    def tell(news: str) -> None:
        typer.echo(printable(news), err=True)

    for line in prepare(source, target, out, source_deb, target_deb, tell, overwrite=overwrite).lines():
        tell(line)
