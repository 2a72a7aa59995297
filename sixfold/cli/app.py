"""The command itself, and how it ends when something is wrong."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import sixfold
from sixfold.core.names import unknown
from sixfold.terminal import printable

_NEAR = 0.8  # how alike a typo is to what was meant: `explore` and `export` are 0.77 alike


class Verbs(TyperGroup):
    """A group whose error for an unknown verb names those that exist."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        typed, verbs = args[0], self.list_commands(ctx)
        if typed in verbs or typed.startswith("-"):
            return super().resolve_command(ctx, args)
        raise ValueError(unknown("verb", typed, verbs, cutoff=_NEAR))


app = typer.Typer(
    cls=Verbs,
    help="Train, understand, compare and ship Transformers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
        said = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        _complain("\n".join([said, *getattr(error, "__notes__", [])]))
        sys.exit(1)


def _complain(message: str) -> None:
    typer.echo(f"sixfold: {printable(message)}", err=True)


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
