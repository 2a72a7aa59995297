"""Options that several verbs share, and options generated from the keys of the configuration."""

from __future__ import annotations

import functools
import inspect
import json
import shlex
import typing
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from sixfold.config.plan import PLANNED
from sixfold.config.schema import keys
from sixfold.terminal import printable

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run.")]
RunOrModel = Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run, or of a model.")]
Import = Annotated[
    list[Path] | None,
    typer.Option("--import", metavar="FILE.py", help="Run a Python file that registers modifications or tasks."),
]
Modify = Annotated[
    list[str] | None,
    typer.Option("--modify", metavar="NAME[:key=value,…]", help="Add a modification; may be given several times."),
]
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME[:key=value,…]",
        help="What the model is trained for: translation, language_model, masked_words or classification; "
        "`sixfold list --tasks` shows their options [default: chosen by model.kind]",
    ),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="auto, cpu, cuda, cuda:1, mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


_NO_BRACES = str.maketrans("", "", "{}")  # typer sets braces around required arguments
_SECTION = "Configuration: "  # before the name of a section, above its options
_FOR_MORE = {  # hints for an argument too many
    "train": "give training text as --data.train {0}",
    "generate": "give a prompt as --prompt TEXT, in quotes if it has spaces",
    "translate": "give one FILE at a time (cat joins several)",
    "classify": "give a text as: echo {0} | sixfold classify RUN",
}


class Sectioned(TyperCommand):
    """A verb whose help shows the keys of the configuration by section."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True  # refused below, with a hint
        more = super().parse_args(ctx, self._as_declared(ctx, args))
        if more:
            takes = " ".join(self.collect_usage_pieces(ctx)[1:]).translate(_NO_BRACES) or "no argument"
            hint = _FOR_MORE.get(ctx.info_name, "").format(shlex.quote(more[0]))
            raise ValueError(
                f"`sixfold {ctx.info_name}` takes {takes}, but {more[0]!r} was given, too{hint and '; '}{hint}"
            )
        return more

    def _as_declared(self, ctx: Any, args: list[str]) -> list[str]:
        """The words with options as --help shows them: --beam-size and --decoding.beam_size are --beam_size."""
        declared = {}
        for parameter in self.get_params(ctx):
            section = str(getattr(parameter, "rich_help_panel", "")).removeprefix(_SECTION)
            for option in parameter.opts:
                declared[option.replace("-", "_")] = declared[f"__{section}.{option.lstrip('-')}"] = option
        only_arguments = args.index("--") if "--" in args else len(args)
        words = [word.partition("=") for word in args[:only_arguments]]
        found = [declared.get(name.replace("-", "_"), name) + equals + value for name, equals, value in words]
        return [*found, *args[only_arguments:]]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def configured(*wanted: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb an option for every key of these sections, or for these keys; without any, for all keys.

    The verb receives the options that were set as `settings`. If all keys are of one section, their options are short:
    --beam_size for --decoding.beam_size (`Sectioned` accepts both).
    """
    short = len({each.partition(".")[0] for each in wanted}) == 1
    fields = {key: field for key, field in keys() if not wanted or {key, key.partition(".")[0]} & set(wanted)}

    def give(verb: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(verb)
        def run(**arguments: Any) -> None:
            settings = {key: arguments.pop(_parameter(key)) for key in fields}
            verb(
                **arguments,
                settings={key: _setting(given) for key, given in settings.items() if given not in (None, [])},
            )

        signature = inspect.signature(verb, eval_str=True)
        own = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for p in signature.parameters.values()
            if p.name != "settings"
        ]
        generated = [_option(key, field, short, planned=not wanted) for key, field in fields.items()]
        run.__signature__ = signature.replace(parameters=[*own, *generated])  # type: ignore[attr-defined]
        return run

    return give


def _option(key: str, field: FieldInfo, short: bool, planned: bool) -> inspect.Parameter:
    default = f" [default: {field.default}]" if field.default not in (None, []) else ""
    default = " [default: planned]" if planned and key in PLANNED else default
    section, _, name = key.partition(".")
    option = typer.Option(
        f"--{name if short else key}",
        metavar="VALUE",
        help=f"{field.description}{default}",
        rich_help_panel=f"{_SECTION}{section}",
    )
    kind = list[str] if typing.get_origin(field.annotation) is list else str
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(_parameter(key), inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _setting(given: str | list[str]) -> str | list[str]:
    """An option given several times is a list; given once, its text is parsed, and may be a list as well."""
    return given[0] if isinstance(given, list) and len(given) == 1 else given


def _parameter(key: str) -> str:
    return key.replace(".", "__")


def import_parts(files: list[Path] | None) -> None:
    if not files:  # avoids importing the registry, which needs torch
        return
    from sixfold.spec.registry import import_file

    for file in files:
        import_file(file)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def say_first(text: str) -> None:
    """Print a message on standard error; of several training processes, only the first does."""
    from sixfold.training.processes import is_first

    if is_first():
        typer.echo(printable(text), err=True)


def not_with(what: str, given: set[str]) -> None:
    if given:
        raise ValueError(f"{', '.join(sorted(given))} can't be given with {what}")
