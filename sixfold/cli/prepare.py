"""The verb `prepare`: makes a corpus from freely available text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sixfold.cli.app import Verbs, app
from sixfold.terminal import printable

preparing = typer.Typer(cls=Verbs, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(preparing, name="prepare", help="Make a corpus from freely available text.")


@preparing.callback()
def _preparing() -> None:
    pass  # without a callback, typer merges a single command with its group


@preparing.command("libreoffice")
def prepare_libreoffice(
    source: Annotated[str, typer.Option(metavar="LANGUAGE", help="Language to translate from, such as en.")],
    target: Annotated[str, typer.Option(metavar="LANGUAGE", help="Language to translate to, such as de.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the new corpus.")],
    source_deb: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Package libreoffice-help-SOURCE [default: fetched by apt-get]")
    ] = None,
    target_deb: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Package libreoffice-help-TARGET [default: fetched by apt-get]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier corpus.")] = False,
) -> None:
    """Make a parallel corpus from LibreOffice's help, in any two of its languages.

    The text comes from Debian packages. apt-get fetches them, and nothing is installed.
    """
    from sixfold.text.libreoffice import prepare

    def tell(news: str) -> None:
        typer.echo(printable(news), err=True)

    for line in prepare(source, target, out, source_deb, target_deb, tell, overwrite=overwrite).lines():
        tell(line)
