"""The command `sixfold`: one verb per function. torch is imported only by the verbs that need it."""

from __future__ import annotations

import functools
import inspect
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperCommand

import sixfold
from sixfold.config import keys, read_config
from sixfold.terminal import console, printable, table

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from sixfold.config import Config
    from sixfold.training.start import Outcome

app = typer.Typer(
    help="Train, understand, compare and ship Transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Import = Annotated[
    list[Path] | None,
    typer.Option("--import", metavar="FILE.py", help="Run a Python file that registers modifications of your own."),
]
Modify = Annotated[
    list[str] | None,
    typer.Option("--modify", metavar="NAME[:key=value,…]", help="Add a modification; may be given often."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> None:
    """Run the command line; a user's mistake ends in one line on stderr and exit code 2."""
    try:
        app()
    except ValueError as error:
        _complain(str(error))
        sys.exit(2)
    except OSError as error:
        if isinstance(error, BrokenPipeError):  # whoever read our output has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        _complain(f"{error.strerror}: {error.filename}" if error.filename else str(error))
        sys.exit(1)


def _complain(message: str) -> None:
    typer.echo(f"sixfold: {printable(message)}", err=True)


class Sectioned(TyperCommand):
    """A verb whose help shows the keys of the configuration by section."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def configured(*wanted: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb an option for every key of these sections (or keys); it receives those set as `settings`."""
    fields = {key: field for key, field in keys() if not wanted or {key, key.partition(".")[0]} & set(wanted)}

    def give(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def run(**arguments: Any) -> None:
            settings = {key: arguments.pop(_parameter(key)) for key in fields}
            verb(**arguments, settings={key: text for key, text in settings.items() if text is not None})

        signature = inspect.signature(verb, eval_str=True)
        own = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for p in signature.parameters.values()
            if p.name != "settings"
        ]
        generated = [_option(key, field) for key, field in fields.items()]
        run.__signature__ = signature.replace(parameters=[*own, *generated])  # type: ignore[attr-defined]
        return run

    return give


def _option(key: str, field: FieldInfo) -> inspect.Parameter:
    default = f" [default: {field.default}]" if field.default not in (None, []) else ""
    option = typer.Option(
        f"--{key}",
        metavar="VALUE",
        help=f"{field.description}{default}",
        rich_help_panel=f"Configuration: {key.partition('.')[0]}",
    )
    annotation = Annotated[str | None, option]
    return inspect.Parameter(_parameter(key), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter(key: str) -> str:
    return key.replace(".", "__")


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sixfold {sixfold.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_modifications(
    name: Annotated[str | None, typer.Argument(help="One modification, to read its page.")] = None,
    imports: Import = None,
    as_json: AsJson = False,
) -> None:
    """List the modifications; with NAME, show its page."""
    from sixfold.pages import page
    from sixfold.registry import Modification, all_modifications, find

    _import(imports)
    found = [find(name)] if name else list(all_modifications().values())

    def row(m: Modification) -> dict[str, Any]:
        options = {key: option.default for key, option in m.options.items()}
        return {"name": m.name, "slots": list(m.slots), "summary": m.summary, "paper": m.paper, "options": options}

    if as_json:
        _print_json([row(m) for m in found])
    elif name:
        typer.echo(page(found[0]).rstrip())
    else:
        rows = table("name", "slots", "what it does", "paper")
        for m in found:
            rows.add_row(*map(Text, (m.name, ", ".join(m.slots), m.summary, m.paper or "")))
        console().print(rows)


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
    settings: dict[str, str],
) -> None:
    """Train a model.

    Without RECIPE and --data.train it is the embedded default: English spelling to pronunciation.

    The text may be a pair of files line by line, a TSV or a JSONL; a tokenizer is trained without being asked:
    sixfold train --data.train corpus/train --data.valid corpus/dev --data.source en --data.target de --out runs/mine
    """
    _import(imports)
    if resume is not None:
        others = {"RECIPE": recipe, "--out": out, "--modify": modify, "--from": start_from, "--overwrite": overwrite}
        _not_with("--resume", {name for name, value in others.items() if value})
        outcome = _resume(resume, settings, allow_changed_data)
    else:
        _not_with("a new run", {"--allow-changed-data"} if allow_changed_data else set())
        recipe = "pronounce" if recipe is None and "data.train" not in settings else recipe
        config = read_config(recipe, settings).with_modifications(modify or [])
        out = out or Path("runs", Path(recipe or "transformer").stem)
        outcome = _train(config, out, overwrite, start_from)
    _say_what_next(outcome)
    if not outcome.finished:
        raise typer.Exit(1 if outcome.signal is None else 128 + outcome.signal)


def _train(config: Config, out: Path, overwrite: bool, start_from: Path | None) -> Outcome:
    from sixfold.training.start import train

    return train(config, out, overwrite=overwrite, start_from=start_from)


def _resume(run: Path, settings: dict[str, str], allow_changed_data: bool) -> Outcome:
    from sixfold.training.start import resume

    return resume(run, settings, allow_changed_data=allow_changed_data)


def _not_with(what: str, given: set[str]) -> None:
    if given:
        raise ValueError(f"{', '.join(sorted(given))} can't be given with {what}")


def _say_what_next(outcome: Outcome) -> None:
    from sixfold.training.processes import is_first

    if not is_first():
        return
    run = shlex.quote(str(outcome.run))
    lines = [f"  sixfold info {run}", f"  sixfold plot {run}"]
    if outcome.signal is not None:
        lines = [f"  sixfold train --resume {run}    to go on", *lines]
    typer.echo(printable("\n".join(["what to type next:", *lines])), err=True)


@app.command()
def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or of a model.")],
    imports: Import = None,
    as_json: AsJson = False,
) -> None:
    """Say what a run is: architecture, sizes, data, progress, best score."""
    from sixfold.info import describe_run, table_of
    from sixfold.run import Run

    _import(imports)
    described = describe_run(Run(run))
    if as_json:
        _print_json(described)
    else:
        console().print(table_of(described))


@app.command()
def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The picture, .png or .svg.")] = Path("curves.png"),
) -> None:
    """Draw the curves of runs, loss and metric, into one picture."""
    from sixfold.plot import plot as draw
    from sixfold.run import Run

    draw([Run(run) for run in runs], out)
    typer.echo(f"wrote {printable(str(out))}", err=True)


@app.command(cls=Sectioned)
@configured("data.vocabulary", "model")
def count(
    recipe: Annotated[str | None, typer.Argument(help="A recipe: its name, or a YAML file.")] = None,
    modify: Modify = None,
    imports: Import = None,
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens of the forward pass.")] = 32,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens of the forward pass.")] = 32,
    study: Annotated[
        bool, typer.Option("--study", help="Count all rows of the modification study, beside what it published.")
    ] = False,
    as_json: AsJson = False,
    *,
    settings: dict[str, str],
) -> None:
    """Count a model's parameters and multiply-accumulates.

    Both are given in total and by part, the latter for one forward pass.

    Nothing is allocated, so any size can be counted:
    sixfold count transformer-base --modify rotary --model.d_model 1024 --model.heads 16
    """
    from sixfold.checks.count import count as count_model
    from sixfold.models import build

    _import(imports)
    if study:
        given = {"RECIPE": recipe, "--modify": modify, **{f"--{key}": text for key, text in settings.items()}}
        _not_with("--study", {name for name, value in given.items() if value})
        _count_study(as_json)
        return
    config = read_config(recipe, settings)
    model = build(config.sizes(), [*config.model.modifications, *(modify or [])], config.model.kind, device="meta")
    counted = count_model(model, source_length, target_length)
    if as_json:
        lengths = {"source_length": source_length, "target_length": target_length}
        _print_json({"model": config.model.kind, **vars(counted), **lengths})
        return
    rows = table("part", "parameters", "multiply-accumulates", right=(1, 2))
    for part in dict.fromkeys([*counted.parameters_by_part, *counted.operations_by_part]):
        amounts = counted.parameters_by_part.get(part, 0), counted.operations_by_part.get(part, 0)
        rows.add_row(part, *(f"{amount:,}" for amount in amounts))
    rows.add_section()
    rows.add_row("total", f"{counted.parameters:,}", f"{counted.operations:,}")
    console().print(rows)
    typer.echo(
        f"one forward pass of {source_length} source and {target_length} target tokens; look-ups are not products"
    )


def _count_study(as_json: bool) -> None:
    from sixfold.checks.study import count_study
    from sixfold.study import ROWS

    with typer.progressbar(count_study(), length=len(ROWS), file=sys.stderr, label="counting") as counting:
        counted = list(counting)
    if as_json:
        _print_json([vars(row) for row in counted])
        return
    columns = ("row", "parameters", "published", "operations", "as the study", "published", "difference")
    rows = table(*columns, right=(1, 2, 3, 4, 5, 6))
    for row in counted:
        off = row.operations_study / row.published_operations - 1
        ours = (
            f"{row.parameters / 1e6:,.1f}M",
            f"{row.published_parameters / 1e6:,.0f}M",
            f"{row.operations / 1e12:.2f}T",
        )
        study = (f"{row.operations_study / 1e12:.2f}T", f"{row.published_operations / 1e12:.1f}T", f"{off:+.1%}")
        rows.add_row(row.name, *ours, *study)
    console().print(rows)


def _import(files: list[Path] | None) -> None:
    from sixfold.registry import import_file

    for file in files or []:
        import_file(file)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


preparing = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
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
