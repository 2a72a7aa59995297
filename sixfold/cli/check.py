"""The verb `check`: looks for what is wrong with a text before training."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.options import AsJson, Import, Sectioned, TaskOption, configured, import_parts, print_json
from sixfold.config.files import read_config, recipes
from sixfold.terminal import printable
from sixfold.text.file_kinds import file_ending
from sixfold.text.forms import LABELLED_TEXT, PLAIN_TEXT, TextForm

if TYPE_CHECKING:
    from sixfold.config.schema import Config

_RECORDS = (".tsv", ".csv", ".jsonl")  # files that hold more than plain lines


@app.command(cls=Sectioned)
@configured("data")
def check(
    data: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DATA",
            help="Training text: a prefix, a table, a text; two texts are source and target. Or a recipe.",
        ),
    ] = None,
    task: TaskOption = None,
    imports: Import = None,
    cleaned: Annotated[
        Path | None, typer.Option("--clean", metavar="DIR", help="Write a copy without suspicious rows to a new DIR.")
    ] = None,
    as_json: AsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Look for what is wrong with a text, before training on it.

    It finds pairs that are probably not translations of each other, duplicates, test text that is also in training,
    broken encodings, and shows examples with file and line:

    sixfold check corpus/train --data.test corpus/test --data.source en --data.target de
    """
    from sixfold.doctor.cleaning import clean, need_empty
    from sixfold.doctor.text_doctor import check_text
    from sixfold.doctor.text_report import as_json as tree
    from sixfold.doctor.text_report import lines
    from sixfold.training.observers.display import Display

    import_parts(imports)
    if cleaned is not None:
        need_empty(cleaned)
    config = _config(data or [], task, settings)
    with Display() as display:
        found = check_text(config.data, _form(config), display.progress)
        written = {} if cleaned is None else clean(found, cleaned, display.progress)
    if as_json:
        print_json(tree(found, written))
        return
    typer.echo(printable("\n".join(lines(found, written))))


def _config(data: list[str], task: str | None, settings: Mapping[str, Any]) -> Config:
    """The configuration of a recipe, or of training text as it was typed."""
    settings = settings if task is None else {**settings, "task": task}
    recipe = data[0] if len(data) == 1 and (data[0] in recipes() or data[0].endswith((".yaml", ".yml"))) else None
    if not data or recipe is not None:
        return read_config(recipe, settings)
    if "data.train" in settings:
        raise ValueError(f"training text is given twice: {data[0]} and --data.train; leave one out")
    both = len(data) == 2 and all(_is_plain(name) for name in data) and task is None
    train = {"source": data[0], "target": data[1]} if both else [{"path": name} for name in data]
    return read_config(None, {**settings, "data.train": train})


def _form(config: Config) -> TextForm:
    """The form of the text: that of the task; without a task, by the kind of the files."""
    from sixfold.tasks.task import task_of

    parts = (config.data.train, config.data.valid, config.data.test)
    corpora = chain.from_iterable(corpus if isinstance(corpus, list) else [corpus] for corpus in parts if corpus)
    names = [corpus if isinstance(corpus, str) else corpus.path or "" for corpus in corpora]
    if config.task is not None or not names:
        return task_of(config).form
    if any(file_ending(name) == ".csv" for name in names):
        return LABELLED_TEXT
    return PLAIN_TEXT if all(map(_is_plain, names)) else task_of(config).form


def _is_plain(name: str) -> bool:
    """Whether this is a file of plain lines, and not a table or the prefix of two files."""
    return file_ending(name) not in _RECORDS and Path(name).expanduser().is_file()
