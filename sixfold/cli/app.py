"""The command itself, and how it ends when something is wrong."""

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
from sixfold.spec.moved import where_now
from sixfold.terminal import printable

VERBS = (  # in the order of the help; each is a file of this package
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
)
# Verbs that ask a trained model. torch makes very many calls while it is imported, and CPython 3.11 maps and unmaps a
# page of its stack for each call that crosses the page's end: deep inside a verb that cost a tenth of a second.
_ASKING = ("translate", "generate", "classify", "align", "score")
_NEAR = 0.8  # how alike a typo is to what was meant: `explore` and `export` are 0.77 alike


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
_LONGEST = 2000  # characters of a complaint
_MEMORY = re.compile(r"allocate memory|out of memory|calculation overflowed|Invalid buffer size", re.IGNORECASE)


def load_verbs(typed: str | None = None) -> None:
    """Register the verb that was typed; if none was, or one that does not exist, all of them."""
    for verb in (typed,) if typed in VERBS else VERBS:
        importlib.import_module(f"sixfold.cli.{verb}")


def main() -> None:
    """Run the command line; a user's mistake ends in one line on stderr and exit code 2."""
    take_closed()
    try:
        typed = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
        load_verbs(typed)
        if typed in _ASKING and any(map(os.path.isdir, sys.argv[2:])) and "--help" not in sys.argv:
            import torch  # noqa: F401  (here, where the stack is flat: see _ASKING)
        _run()
    except ValueError as error:
        _complain(str(error))
        sys.exit(2)
    except ImportError as error:
        if not (advice := where_now(error)):
            raise
        _complain(f"{error}{advice}")  # by a user's part, when it is built
        sys.exit(2)
    except OSError as error:
        abandon_output()
        if isinstance(error, BrokenPipeError):  # whoever read our output has enough
            sys.exit(0)
        said = f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error)
        _complain("\n".join([said, *getattr(error, "__notes__", [])]))
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
            sys.stdout.flush()  # or the exit code would say that all is well before the output is out
        raise


def _is_memory(error: Exception) -> bool:
    """Whether memory ran out: torch, which is not imported here, says so by a RuntimeError."""
    return isinstance(error, MemoryError) or _MEMORY.search(str(error)) is not None


def _complain_of_memory(error: Exception) -> None:
    asked = re.search(r"(?:allocate|of) ([\d.,]+ ?(?:bytes|[KMGT]i?B))", str(error))
    _complain(
        f"there is not enough memory{f' ({asked[1]} were asked for at once)' if asked else ''}; use a smaller model or "
        "vocabulary; to train, a smaller training.batch_tokens or a larger training.accumulate; to decode, a smaller "
        "decoding.batch_tokens, beam_size, max_source or max_length"
    )


def _complain(message: str) -> None:
    short = message if len(message) <= _LONGEST else f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 2 :]}"
    with suppress(OSError):  # of a standard error on a full disk; the exit code is all that is left
        typer.echo(f"sixfold: {printable(short)}", err=True)


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
