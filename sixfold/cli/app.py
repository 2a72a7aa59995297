"""The command `sixfold`: it finds the verb, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import re
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import sixfold
from sixfold.cli.streams import abandon_output, take_closed
from sixfold.core.names import unknown
from sixfold.core.threads import limit_spinning
from sixfold.spec.moved import where_now
from sixfold.terminal import printable

VERBS = (  # in the order of `--help`; each is a module of this package
    "plan",
    "train",
    "info",
    "plot",
    "translate",
    "generate",
    "classify",
    "align",
    "score",
    "verify",
    "export",
    "bench",
    "list",
    "show",
    "count",
    "prepare",
    "check",
)
# Verbs that use a trained model. Importing torch makes very many calls, and CPython 3.11 maps and unmaps a page of its
# stack for each call that crosses the end of the page: imported deep inside a verb, torch took 0.1 s longer.
_ASKING = ("translate", "generate", "classify", "align", "score")
_NEAR = 0.8  # least similarity of a typo and the verb that was meant; `explore` and `export` have 0.77


class Verbs(TyperGroup):
    """A group whose error for an unknown verb names those that exist."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=lambda verb: VERBS.index(verb) if verb in VERBS else 0)

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
_LONGEST = 2000  # characters of an error message
_MEMORY = re.compile(r"allocate memory|out of memory|calculation overflowed|Invalid buffer size", re.IGNORECASE)


def load_verbs(typed: str | None = None) -> None:
    """Register the verb that was typed, or all verbs if it is missing or unknown."""
    for verb in (typed,) if typed in VERBS else VERBS:
        importlib.import_module(f"sixfold.cli.{verb}")


def main() -> None:
    """Run the command line; a user's mistake ends in one line on stderr and exit code 2."""
    take_closed()
    limit_spinning()
    try:
        typed = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
        load_verbs(typed)
        if typed in _ASKING and any(map(os.path.isdir, sys.argv[2:])) and "--help" not in sys.argv:
            import torch  # noqa: F401  (here, where the stack is shallow: see _ASKING)
        _run()
    except ValueError as error:
        _complain(str(error))
        sys.exit(2)
    except ImportError as error:
        if not (advice := where_now(error)):
            raise
        _complain(f"{error}{advice}")  # raised by a user's part when it is built
        sys.exit(2)
    except OSError as error:
        abandon_output()
        if isinstance(error, BrokenPipeError):  # the reader of our output has closed it
            sys.exit(0)
        message = f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error)
        _complain("\n".join([message, *getattr(error, "__notes__", [])]))
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not _is_memory(error):
            raise
        _complain_of_memory(error)
        sys.exit(1)


def _run() -> None:
    try:
        app()
    except SystemExit as left:
        if not left.code:
            sys.stdout.flush()  # now, so that a write error still changes the exit code
        raise


def _is_memory(error: Exception) -> bool:
    """Whether memory ran out. torch, which is not imported here, raises a RuntimeError for it."""
    return isinstance(error, MemoryError) or _MEMORY.search(str(error)) is not None


def _complain_of_memory(error: Exception) -> None:
    asked = re.search(r"(?:allocate|of) ([\d.,]+ ?(?:bytes|[KMGT]i?B))", str(error))
    _complain(
        f"out of memory{f' (a single allocation of {asked[1]} failed)' if asked else ''}: use a smaller model or "
        "vocabulary; in training a smaller training.batch_tokens or a larger training.accumulate; in decoding a "
        "smaller decoding.batch_tokens, beam_size, max_source or max_length"
    )


def _complain(message: str) -> None:
    short = message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
    with suppress(OSError):  # if standard error can't be written to either, the exit code has to do
        typer.echo(f"sixfold: {printable(short)}", err=True)


def version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sixfold {sixfold.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
