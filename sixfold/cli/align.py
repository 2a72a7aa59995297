"""The verb `align`: draws where a model looks in the source while it translates."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sixfold.cli.app import app
from sixfold.cli.decoding_verbs import load_for
from sixfold.cli.options import Device, Import


@app.command()
def align(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run that translates.")],
    source: Annotated[str, typer.Argument(metavar="TEXT", help="The text to translate.")],
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="TEXT", help="Its translation [default: the model's own]."),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option("--layer", min=1, help="A decoder layer, from 1 [default: the one with the sharpest attention]."),
    ] = None,
    head: Annotated[
        int | None, typer.Option("--head", min=1, help="A head of that layer, from 1 [default: the mean of all heads].")
    ] = None,
    width: Annotated[int, typer.Option("--width", min=20, help="Width of the drawing in columns.")] = 80,
    device: Device = "auto",
    imports: Import = None,
) -> None:
    """Draw where a model looks in the source while it translates."""
    from sixfold.decoding.attention_picture import drawn

    translator = load_for([run], "translate", device, imports, {})
    if target is None:
        target = next(iter(translator.translate([source]))).text
        typer.echo(target)
    seen = translator.cross_attention(source, target)
    typer.echo(drawn(seen, layer=layer, head=head, width=width))
