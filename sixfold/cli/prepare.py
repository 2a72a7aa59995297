"""The verb `prepare`: a corpus from text that others give away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sixfold.cli.app import Verbs, app
from sixfold.terminal import printable

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
