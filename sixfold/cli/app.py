"""The command `sixfold`: it finds the verb, runs it, and turns errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import sixfold
from sixfold.cli.streams import abandon_output, take_closed
from sixfold.core.names import unknown
from sixfold.core.threads import sleep_soon_if_busy
from sixfold.spec.moved import where_now
from sixfold.terminal import printable

VERBS = {  # in the order of `--help`: each is a module of this package, with the first line of its help
    "plan": "Show how `train` would train a model, and why.",
    "train": "Train a model.",
    "info": "Describe a run: sizes, data, progress, best score.",
    "plot": "Draw loss and metric of one or several runs as curves.",
    "translate": "Translate lines of text.",
    "generate": "Continue a text with a language model.",
    "classify": "Predict the label of each line of text.",
    "align": "Draw where a model looks in the source while it translates.",
    "score": "Score texts, or a run.",
    "verify": "Check that sixfold's promises hold for a run.",
    "export": "Write a run in a format of another program.",
    "bench": "Measure speed and memory, compared with other libraries.",
    "list": "List modifications and baselines, or show one.",
    "show": "Print a recipe, to read or to copy.",
    "count": "Count a model's parameters and multiply-accumulates.",
    "prepare": "Make a corpus from freely available text.",
    "check": "Look for what is wrong with a text, before training on it.",
}
# Verbs that use a trained model. Importing torch makes very many calls, and CPython 3.11 maps and unmaps a page of its
# stack for each call that crosses the end of the page: imported deep inside a verb, torch took 0.1 s longer.
_ASKING = ("translate", "generate", "classify", "align", "score")
_NEAR = 0.8  # least similarity of a typo and the verb that was meant; `explore` and `export` have 0.77


class Verbs(TyperGroup):
    """A group whose error for an unknown verb names those that exist."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = list(VERBS)
        return sorted(super().list_commands(ctx), key=lambda verb: order.index(verb) if verb in VERBS else 0)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        typed, verbs = args[0], self.list_commands(ctx)
        if typed in verbs or typed.startswith("-"):
            return super().resolve_command(ctx, args)
        raise ValueError(unknown("verb", typed, verbs, cutoff=_NEAR))


BUSY = "other processes are busy, so waiting threads sleep soon (GOMP_SPINCOUNT=1000): training is faster that way"
_LONGEST = 2000  # characters of an error message
_MEMORY = re.compile(r"allocate memory|out of memory|calculation overflowed|Invalid buffer size", re.IGNORECASE)


def _new_app() -> typer.Typer:
    """The command without verbs."""
    made = typer.Typer(
        cls=Verbs,
        help="Train, understand, compare and ship Transformers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    made.callback()(_options)
    return made


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sixfold {sixfold.__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app = _new_app()


def load_verbs(*verbs: str) -> None:
    """Import these verbs, or all."""
    for verb in verbs or VERBS:
        importlib.import_module(f"sixfold.cli.{verb}")


def _listing() -> typer.Typer:
    """The names and first lines of all verbs: enough for `sixfold --help`, and much faster than importing them."""
    made = _new_app()
    for verb, summary in VERBS.items():
        made.command(verb, help=summary)(lambda: None)
    return made


def main() -> None:
    """Run the command line."""
    take_closed()
    with errors_in_a_line():
        typed = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
        only_help = "--help" in sys.argv
        if typed == "train" and not only_help and sleep_soon_if_busy():
            _complain(BUSY)
        if typed in VERBS:
            load_verbs(typed)
        if typed in _ASKING and any(map(os.path.isdir, sys.argv[2:])) and not only_help:
            import torch  # noqa: F401  (here, where the stack is shallow: see _ASKING)
        _run(app if typed in VERBS else _listing())


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """A user's mistake ends in one line on stderr and exit code 2; a failure of the machine in one line and 1."""
    try:
        yield
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


def _run(command: typer.Typer) -> None:
    try:
        command()
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
    with suppress(OSError):  # if standard error can't be written to, only the exit code reports the error
        typer.echo(f"sixfold: {printable(short)}", err=True)
