"""The command `sixfold`: one verb per function. torch is imported only by the verbs that need it."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

import sixfold
from sixfold.config import keys, read_config

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


def printable(text: str) -> str:
    """Control characters as escapes, so that no text of a user's can drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def configured(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb an option for every key of the configuration; it receives those set as `settings`."""

    @functools.wraps(verb)
    def run(**arguments: Any) -> None:
        settings = {key: arguments.pop(_parameter(key)) for key, _ in keys()}
        verb(**arguments, settings={key: text for key, text in settings.items() if text is not None})

    signature = inspect.signature(verb, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "settings"]
    generated = []
    for key, field in keys():
        default = f" [default: {field.default}]" if field.default not in (None, []) else ""
        option = typer.Option(
            f"--{key}",
            metavar="VALUE",
            help=f"{field.description}{default}",
            rich_help_panel=f"Configuration: {key.partition('.')[0]}",
        )
        annotation = Annotated[str | None, option]
        generated.append(
            inspect.Parameter(_parameter(key), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    run.__signature__ = signature.replace(parameters=[*own, *generated])  # type: ignore[attr-defined]
    return run


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
        table = _table("name", "slots", "what it does", "paper")
        for m in found:
            table.add_row(*map(Text, (m.name, ", ".join(m.slots), m.summary, m.paper or "")))
        _console().print(table)


@app.command()
@configured
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
        _count_study(as_json)
        return
    config = read_config(recipe, settings)
    model = build(config.sizes(), [*config.model.modifications, *(modify or [])], config.model.kind, device="meta")
    counted = count_model(model, source_length, target_length)
    if as_json:
        lengths = {"source_length": source_length, "target_length": target_length}
        _print_json({"model": config.model.kind, **vars(counted), **lengths})
        return
    table = _table("part", "parameters", "multiply-accumulates", right=(1, 2))
    for part in dict.fromkeys([*counted.parameters_by_part, *counted.operations_by_part]):
        amounts = counted.parameters_by_part.get(part, 0), counted.operations_by_part.get(part, 0)
        table.add_row(part, *(f"{amount:,}" for amount in amounts))
    table.add_section()
    table.add_row("total", f"{counted.parameters:,}", f"{counted.operations:,}")
    _console().print(table)
    typer.echo(
        f"one forward pass of {source_length} source and {target_length} target tokens; look-ups are not products"
    )


def _count_study(as_json: bool) -> None:
    from sixfold.checks.study import count_study
    from sixfold.study import ROWS

    with typer.progressbar(count_study(), length=len(ROWS), file=sys.stderr, label="counting") as rows:
        counted = list(rows)
    if as_json:
        _print_json([vars(row) for row in counted])
        return
    columns = ("row", "parameters", "published", "operations", "as the study", "published", "difference")
    table = _table(*columns, right=(1, 2, 3, 4, 5, 6))
    for row in counted:
        off = row.operations_study / row.published_operations - 1
        ours = (
            f"{row.parameters / 1e6:,.1f}M",
            f"{row.published_parameters / 1e6:,.0f}M",
            f"{row.operations / 1e12:.2f}T",
        )
        study = (f"{row.operations_study / 1e12:.2f}T", f"{row.published_operations / 1e12:.1f}T", f"{off:+.1%}")
        table.add_row(row.name, *ours, *study)
    _console().print(table)


def _import(files: list[Path] | None) -> None:
    from sixfold.registry import import_file

    for file in files or []:
        import_file(file)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def _console() -> Console:
    """For a person as wide as the terminal; for a pipe as wide as it takes, so that nothing is cut."""
    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else 200)


def _table(*columns: str, right: tuple[int, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i in right else "left", no_wrap=i == 0)
    return table
