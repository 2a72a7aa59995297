"""The verb `list`: shows the modifications and baselines, the tasks, or the recipes."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sixfold.cli.app import app
from sixfold.cli.options import AsJson, Import, import_parts, not_with, print_json
from sixfold.core.names import did_you_mean
from sixfold.terminal import console, table

if TYPE_CHECKING:
    from sixfold.modifications._index import Entry


@app.command("list")
def list_modifications(
    name: Annotated[str | None, typer.Argument(help="A modification, to show its page.")] = None,
    tasks: Annotated[
        bool, typer.Option("--tasks", help="List the tasks that models can be trained for, with their options.")
    ] = False,
    recipes: Annotated[
        bool, typer.Option("--recipes", help="List the recipes that come with sixfold; `sixfold show` prints one.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Check on small models that NAME keeps sixfold's promises.")
    ] = False,
    imports: Import = None,
    as_json: AsJson = False,
) -> None:
    """List modifications and baselines, or show one."""
    import_parts(imports)
    if tasks or recipes:
        others = {"NAME": name, "--recipes": tasks and recipes, "--check": check}
        not_with("--tasks" if tasks else "--recipes", {other for other, given in others.items() if given})
        _list_tasks(as_json) if tasks else _list_recipes(as_json)
        return
    if check:
        _check(name, as_json)
        return
    known = _known(name, registered=bool(imports))
    if name and name not in known:
        raise ValueError(f"there is no modification {name!r}{did_you_mean(name, known)}; `sixfold list` shows all")
    found = [known[name]] if name else list(known.values())
    if as_json:
        print_json([{key: value for key, value in asdict(entry).items() if key != "page"} for entry in found])
    elif name:
        typer.echo(found[0].page.rstrip())
    else:
        _print_groups(found)


def _print_groups(found: list[Entry]) -> None:
    """A table for each group."""
    for number, group in enumerate(dict.fromkeys(entry.group for entry in found)):
        rows = table(group, "slots", "what it does", "paper")
        for entry in found:
            if entry.group == group:
                rows.add_row(*map(Text, (entry.name, ", ".join(entry.slots), entry.summary, entry.paper or "")))
        console().print(*[""] * bool(number), rows, sep="\n")


def _known(name: str | None, registered: bool) -> dict[str, Entry]:
    """The modifications of the index, which needs no torch; those of the registry, if the index can't answer."""
    from sixfold.modifications._index import entries

    known = None if registered else entries()
    if known is None or (name and name not in known):
        from sixfold.modifications._pages import registered_entries

        return registered_entries()
    return known


def _list_recipes(as_json: bool) -> None:
    """The recipes, each with the comment at the top of its file."""
    from sixfold.config.files import about_recipes

    found = about_recipes()
    if as_json:
        print_json([{"name": name, "about": about} for name, about in found.items()])
        return
    rows = table("name", "what it trains")
    for recipe, about in found.items():
        rows.add_row(Text(recipe), Text(about))
    console().print(rows)


def _list_tasks(as_json: bool) -> None:
    from sixfold.tasks.task import all_tasks

    found = all_tasks().values()
    if as_json:
        keys = ("name", "about", "kinds", "verb", "metrics")
        print_json([{**{key: getattr(task, key) for key in keys}, "options": asdict(task.options)} for task in found])
        return
    rows = table("name", "what it is", "model.kind", "options", "metrics", "verb")
    for task in found:
        options = ", ".join(f"{option.name}={getattr(task.options, option.name)}" for option in fields(task.options))
        metrics = ", ".join(task.known_metrics[2:]) or "loss"
        rows.add_row(*map(Text, (task.name, task.about, " or ".join(task.kinds), options, metrics, task.verb)))
    console().print(rows)


def _check(name: str | None, as_json: bool) -> None:
    """Print what `check_part` found; the exit code is 1 if a check failed."""
    if name is None:
        raise ValueError("--check needs the NAME of a modification")
    from sixfold.verify.contract.part import check_part

    report = check_part(name, raises=False)
    if as_json:
        print_json([asdict(finding) for finding in report.findings])
    else:
        rows = table("check", "model.kind", "result")
        for finding, kinds in report.by_check():
            note = finding.note if finding.result == "does not apply" else ""
            rows.add_row(*map(Text, (finding.check, kinds, f"{finding.result}: {note}" if note else finding.result)))
        console().print(rows)
        typer.echo(str(report))
    if report.failures:
        raise typer.Exit(1)
