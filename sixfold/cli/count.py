"""The verb `count`: counts a model's parameters and multiply-accumulates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.options import AsJson, Import, Modify, Sectioned, configured, import_parts, not_with, print_json
from sixfold.config.files import read_config
from sixfold.terminal import console, table

if TYPE_CHECKING:
    from sixfold.config.schema import Config
    from sixfold.narang.counts import Counted


@app.command(cls=Sectioned)
@configured("data.vocabulary", "model")
def count(
    recipe: Annotated[str | None, typer.Argument(help="Name of a recipe, or a YAML file.")] = None,
    modify: Modify = None,
    imports: Import = None,
    source_length: Annotated[int, typer.Option(min=1, max=1_000_000, help="Source tokens of the forward pass.")] = 32,
    target_length: Annotated[int, typer.Option(min=1, max=1_000_000, help="Target tokens of the forward pass.")] = 32,
    study: Annotated[
        bool, typer.Option("--study", help="Count all rows of the modification study, beside its published numbers.")
    ] = False,
    paths: Annotated[
        bool,
        typer.Option(
            "--paths",
            help="Show how information travels: what can't be computed in parallel, how far apart two tokens are, and "
            "how the work grows. Without a recipe and a setting, for several models.",
        ),
    ] = False,
    as_json: AsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Count a model's parameters and multiply-accumulates.

    Both are given for each part and in total; multiply-accumulates are those of one forward pass.

    No weights are allocated, so a model of any size can be counted:
    sixfold count transformer-base --modify rotary --model.d_model 1024 --model.heads 16
    """
    from sixfold.models.build import build
    from sixfold.models.count import count as count_model
    from sixfold.tasks.task import settled

    import_parts(imports)
    if study:
        given = {"RECIPE": recipe, "--modify": modify, **{f"--{key}": text for key, text in settings.items()}}
        not_with("--study", {name for name, value in given.items() if value})
        _count_study(as_json)
        return
    config = settled(read_config(recipe, settings))
    if paths:
        modifications = [*config.model.modifications, *(modify or [])]
        _show_paths(config, modifications, compare=not (recipe or modify or settings), as_json=as_json)
        return
    model = build(config.sizes(), [*config.model.modifications, *(modify or [])], config.model.kind, device="meta")
    counted = count_model(model, source_length, target_length)
    if as_json:
        lengths = {"source_length": source_length, "target_length": target_length}
        print_json({"model": config.model.kind, **vars(counted), **lengths})
        return
    rows = table("part", "parameters", "multiply-accumulates", right=(1, 2))
    for part in dict.fromkeys([*counted.parameters_by_part, *counted.operations_by_part]):
        amounts = counted.parameters_by_part.get(part, 0), counted.operations_by_part.get(part, 0)
        rows.add_row(part, *(f"{amount:,}" for amount in amounts))
    rows.add_section()
    rows.add_row("total", f"{counted.parameters:,}", f"{counted.operations:,}")
    console().print(rows)
    typer.echo(
        f"for one forward pass of {source_length} source and {target_length} target tokens; looking up an embedding "
        "counts as 0"
    )


_LAYERS_COMPARED = 2


def _show_paths(config: Config, modifications: list[Any], *, compare: bool, as_json: bool) -> None:
    """Print how information travels in a model, or in those to compare."""
    from sixfold.models.paths import COMPARED, LENGTHS, travel

    if config.data.vocabulary is None:  # the tables are not counted
        config = config.model_copy(update={"data": config.data.model_copy(update={"vocabulary": 1000})})
    sizes = config.sizes()
    if compare:
        sizes = replace(sizes, encoder_layers=_LAYERS_COMPARED, decoder_layers=_LAYERS_COMPARED)
        found = {name: travel(sizes, parts, kind) for name, parts, kind in COMPARED}
        ways = {name: of for name, of_stacks in found.items() for of in of_stacks.values()}
    else:
        ways = travel(sizes, modifications, config.model.kind)
    if as_json:
        shown = ("chain", "distance", "reach")
        print_json({way: {**asdict(of), **{name: getattr(of, name) for name in shown}} for way, of in ways.items()})
        return
    rows = table("", "longest chain", "largest distance", "depends on", "multiply-accumulates")
    for way, of in ways.items():
        rows.add_row(way, of.chain, of.distance, of.reach, _polynomial(of.work))
    console().print(rows)
    if compare:
        typer.echo(f"{_LAYERS_COMPARED} layers of width {sizes.d_model}")
    typer.echo(_ABOUT_PATHS.format(", ".join(map(str, LENGTHS))))


_ABOUT_PATHS = (
    "longest chain: operations that can only be computed one after the other, in texts of {} tokens\n"
    "largest distance: operations between the two tokens that are furthest apart, on the shortest path\n"
    "depends on: the tokens that the state of one token depends on, to either side\n"
    "multiply-accumulates: in all layers, for n tokens"
)


def _polynomial(work: tuple[float, float] | None) -> str:
    """(1000, 2) → 1,000 n + 2 n²"""
    if work is None:
        return ""
    linear, square = work
    return f"{linear:,.0f} n" + (f" + {square:,.0f} n²" if square >= 0.5 else "")


def _shown(counting: Iterator[Counted], rows: int) -> Iterator[Counted]:
    """Show progress on standard error: a bar on a terminal, otherwise a line for every 13 rows."""
    if sys.stderr.isatty():
        with typer.progressbar(counting, length=rows, file=sys.stderr, label="counting") as bar:
            yield from bar
        return
    for number, row in enumerate(counting, 1):
        yield row
        if number % 13 == 0:
            typer.echo(f"counted {number} of {rows} rows", err=True)


def _count_study(as_json: bool) -> None:
    from sixfold.narang.counts import count_study
    from sixfold.narang.rows import ROWS

    counted = list(_shown(count_study(), len(ROWS)))
    if as_json:
        print_json([vars(row) for row in counted])
        return
    columns = ("row", "parameters", "published", "operations", "the study's way", "published", "difference")
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
