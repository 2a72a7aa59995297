"""The verb `align`: draws where a model looks in the source while it translates, or makes a dictionary of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sixfold.cli.app import app
from sixfold.cli.decoding_verbs import load_for
from sixfold.cli.lines import ending_well, tell
from sixfold.cli.options import Device, Import, not_with


@app.command()
def align(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a run that translates.")],
    source: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="The text to translate.")] = None,
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
    dictionary: Annotated[
        Path | None,
        typer.Option(
            "--dictionary",
            metavar="FILE",
            help="Instead of drawing, write the words that the run's training text aligns, for --decoding.dictionary.",
        ),
    ] = None,
    device: Device = "auto",
    imports: Import = None,
) -> None:
    """Draw where a model looks in the source while it translates."""
    if dictionary is not None:
        given = {"TEXT": source, "--target": target, "--layer": layer, "--head": head}
        not_with("--dictionary", {name for name, value in given.items() if value is not None})
        with ending_well():
            _write_dictionary(run, load_for([run], "translate", device, imports, {}), dictionary)
        return
    if source is None:
        raise ValueError("give the text to translate, or --dictionary FILE")
    from sixfold.decoding.attention_picture import drawn

    translator = load_for([run], "translate", device, imports, {})
    if target is None:
        target = next(iter(translator.translate([source]))).text
        typer.echo(target)
    seen = translator.cross_attention(source, target)
    typer.echo(drawn(seen, layer=layer, head=head, width=width))


def _write_dictionary(run: Path, translator: Any, path: Path) -> None:
    """Align the pairs that the run was trained on."""
    from sixfold.decoding.dictionary import learn_dictionary, write_dictionary
    from sixfold.runs.run import Run
    from sixfold.text.preparation import ParallelText

    def show(what: str, done: int, _: int | None) -> None:
        tell(f"{what}: {done:,} pairs")

    if path.is_dir():  # said before the long work
        raise ValueError(f"--dictionary: {path} is a directory; give a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"--dictionary: there is no directory {path.parent} for {path.name}; create it first")
    data, tokenizers = Run(run).read_config().data.model_copy(update={"test": None}), translator.tokenizers
    if data.train is None:
        raise ValueError(f"{run} does not say which text it was trained on")
    text = ParallelText(data, show)
    text.check(tokenizers)
    found = learn_dictionary(translator.model, tokenizers, text.training_pairs(), data.max_length)
    write_dictionary(path, found)
    tell(f"{len(found):,} words are in {path}", done=True)
