"""The verb `score`: scores texts, or a run, by metrics or likelihood."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from rich.text import Text

from sixfold.cli.app import app
from sixfold.cli.lines import Output, ProgressLine, check_files, ending_well, one_line
from sixfold.cli.options import AsJson, Device, Import, Sectioned, configured, not_with, print_json
from sixfold.terminal import console, printable, table

if TYPE_CHECKING:
    from sixfold.scoring.likelihood import Likelihood
    from sixfold.scoring.metric import Metric

USUAL = ("bleu", "chrf", "ter")
_MOST_WORDS = 2000  # words of the longest line for which TER is among the usual metrics
File = Path | None


class Asked(NamedTuple):
    """Texts that a run has to decode, with their references."""

    sources: list[str]
    references: Sequence[Sequence[str]]


class ScoreInput(NamedTuple):
    """Texts to score, with their references; `name` is the file or run they come from."""

    name: str
    hypotheses: list[str]
    references: Sequence[Sequence[str]]


Inputs = Annotated[list[Path] | None, typer.Argument(metavar="[RUN] [FILE]...", help="A run; further reference files.")]
Hypotheses = Annotated[File, typer.Option("--hyp", metavar="FILE", help="Texts to score, one per line.")]
References = Annotated[
    list[Path] | None,
    typer.Option("--ref", metavar="FILE", help="Reference texts, one per line; several files may be given."),
]
SourceFile = Annotated[File, typer.Option("--source-file", metavar="FILE", help="Texts that the run decodes.")]
TargetFile = Annotated[
    File, typer.Option("--target-file", metavar="FILE", help="Texts for --likelihood, one per line.")
]
AskLikelihood = Annotated[
    bool, typer.Option("--likelihood", help="Print log-probability and perplexity of each line of --target-file.")
]
OwnPart = Annotated[
    Literal["test", "valid"], typer.Option("--part", help="Without files: the part of the run's own text to score.")
]
Metrics = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="NAMES",
        help="Metrics, separated by commas [default: bleu,chrf,ter; for a run its training.metric]",
    ),
]
Rival = Annotated[
    File,
    typer.Option("--compare", metavar="FILE or RUN", help="Other texts, or another run; tests which is better."),
]
Kept = Annotated[File, typer.Option("--out", metavar="FILE", help="Write the run's outputs to this file.")]


@app.command(cls=Sectioned)
@configured("decoding")
def score(
    files: Inputs = None,
    hyp: Hypotheses = None,
    ref: References = None,
    source_file: SourceFile = None,
    target_file: TargetFile = None,
    likelihood: AskLikelihood = False,
    part: OwnPart = "test",
    metric: Metrics = None,
    compare: Rival = None,
    out: Kept = None,
    device: Device = "auto",
    imports: Import = None,
    as_json: AsJson = False,
    *,
    settings: dict[str, Any],
) -> None:
    """Score texts, or a run.

    \b
    sixfold score --hyp FILE --ref FILE [FILE...]                          texts against references
    sixfold score RUN --source-file FILE --ref FILE [FILE...]              the run's outputs for a file
    sixfold score RUN --source-file FILE --target-file FILE --likelihood   the probability of given outputs
    sixfold score RUN [--part valid]                                       the run on its own test or validation text
    sixfold score RUN --compare RUN2                                       two runs on that text: which is better?
    """
    run = None if hyp is not None or not files else files[0]
    refs = [*(ref or []), *((files or []) if run is None else (files or [])[1:])]
    named = {"--source-file": source_file, "--target-file": target_file, "--likelihood": likelihood, "--out": out}
    with ending_well():
        rival = compare if compare is not None and compare.is_dir() else None
        check_files(out, hyp, source_file, target_file, None if rival else compare, *refs)
        if run is None:
            _refuse("--hyp", {**named, **settings})
            _refuse("--hyp; give a file of texts", {f"--compare {rival}, a run,": rival})
            texts = _read_texts(hyp, refs)
            _report(texts, _bearable(_find(metric, ()), texts, metric), _read_other(compare, texts), as_json)
            return
        scored = _Scored(run, device, imports, settings)
        texts_only = {"--ref": refs, "--compare": compare, "--metric": metric}
        if likelihood:
            _refuse("--likelihood", {**texts_only, "--out": out})
            _report_likelihood(scored, source_file, target_file, as_json)
        elif not scored.task.metrics:
            _refuse("a language model, which has no metric; its texts are for --likelihood", {**named, **texts_only})
            _report_facts(scored.own_loss(part), as_json)
        else:
            if target_file is not None:
                raise ValueError("--target-file is for --likelihood; for metrics give the reference texts as --ref")
            metrics = scored.need_known(_find(metric, scored.own_metrics()))
            other = None if rival is None else _Scored(rival, device, None, settings)
            texts, others = _decoded(scored, other, scored.asked(source_file, refs, part), out)
            _report(texts, _bearable(metrics, texts, metric), others or _read_other(compare, texts), as_json)


def _refuse(what: str, given: Mapping[str, Any]) -> None:
    """Raise a ValueError if any of these options was given."""
    not_with(what, {name for name, value in given.items() if value})


def _find(names: str | None, own: Sequence[str]) -> list[Metric]:
    from sixfold.scoring.report import find_metrics

    return find_metrics(names or own or USUAL)


def _bearable(metrics: list[Metric], texts: ScoreInput, asked: str | None) -> list[Metric]:
    """The metrics without TER, if --metric was not given and a line is so long that TER's search would take hours."""
    longest = max((len(text.split()) for text in texts.hypotheses), default=0)
    if asked is not None or longest <= _MOST_WORDS or not any(metric.name == "ter" for metric in metrics):
        return metrics
    typer.echo(
        f"ter is left out, because it takes very long for a line of {longest:,} words; --metric ter computes it",
        err=True,
    )
    return [metric for metric in metrics if metric.name != "ter"]


def _read_texts(hyp: File, refs: Sequence[Path]) -> ScoreInput:
    from sixfold.scoring.report import read_references, read_texts

    if hyp is None:
        raise ValueError("nothing to score: give --hyp and --ref, or a RUN")
    hypotheses = read_texts(hyp)
    return ScoreInput(str(hyp), hypotheses, read_references(refs, hyp, len(hypotheses)))


class _Scored:
    """A run that is scored."""

    def __init__(self, run: Path, device: str, imports: list[Path] | None, settings: dict[str, Any]):
        from sixfold.api.load import open_run
        from sixfold.spec.registry import import_file

        for file in imports or []:
            import_file(file)
        self.run = run
        self.model, self.tokenizers, self.config, self.task = open_run(run, device, settings)

    def own_metrics(self) -> list[str]:
        """The metric it was validated by; if that is one of the usual metrics, these as well."""
        own = self.config.training.metric
        own = self.task.usual_metric if own in ("auto", "loss", "perplexity") else own
        return [own, *(name for name in USUAL if own in USUAL and name != own)]

    def need_known(self, metrics: list[Metric]) -> list[Metric]:
        """These metrics; ValueError if one can't measure what this run's task writes."""
        known = [name for name in self.task.known_metrics if name not in ("loss", "perplexity")]
        for metric in metrics:
            if metric.name not in known:
                raise ValueError(
                    f"{self.run} was trained for {self.task.name}, which {metric.name} does not measure; there are "
                    f"{', '.join(known)}"
                )
        return metrics

    def own_loss(self, part: Any) -> dict[str, Any]:
        from sixfold.runs.run import Run
        from sixfold.scoring.held_out import own_loss

        return own_loss(Run(self.run), self.config, self.task, self.tokenizers, self.model, part).json()

    def asked(self, source: File, refs: Sequence[Path], part: Any) -> Asked:
        """The texts it has to decode: a file, or its own held-out text."""
        from sixfold.runs.run import Run
        from sixfold.scoring.held_out import own_references
        from sixfold.scoring.report import read_references, read_texts

        if source is None and refs:
            raise ValueError(
                "--ref needs --source-file, the texts that the run decodes; without both it takes its own text"
            )
        if source is None:
            own = own_references(Run(self.run), self.config, self.task, self.tokenizers, part)
            return Asked([each.source for each in own], [each.targets for each in own])
        sources = read_texts(source)
        return Asked(sources, read_references(refs, source, len(sources)))

    def decode(self, asked: Asked, out: File) -> ScoreInput:
        """Its outputs, with the references."""
        return ScoreInput(str(self.run), list(self._translated(asked.sources, out)), asked.references)

    def _translated(self, sources: Sequence[str], out: File) -> Iterator[str]:
        from sixfold.text.labels import read_labels

        assert self.task.user is not None, "a task with metrics can be asked"
        labels = read_labels(self.run) if self.task.form.has_labels else ()
        user = self.task.user(self.model, self.tokenizers, self.config.decoding, labels=labels, data=self.config.data)
        progress = ProgressLine()
        output = None if out is None else Output(out)
        for number, found in enumerate(user.stream(sources), 1):
            progress.count(len(found.tokens))
            if found.note:
                progress.say(f"line {number:,}: {found.note}")
            if output is not None:
                output.write(one_line(found.text))
            yield found.text
        if output is not None:
            output.close()
        progress.close()


def _decoded(scored: _Scored, other: _Scored | None, asked: Asked, out: File) -> tuple[ScoreInput, ScoreInput | None]:
    """The outputs of a run, and of another one if there is one, for the same texts."""
    if other is not None and other.task.verb != scored.task.verb:
        raise ValueError(
            f"{scored.run} was trained for {scored.task.name} and {other.run} for {other.task.name}: "
            f"runs of different tasks can't be compared"
        )
    return scored.decode(asked, out), None if other is None else other.decode(asked, None)


def _read_other(path: File, texts: ScoreInput) -> ScoreInput | None:
    """The texts of another system, if a file of them is given."""
    from sixfold.scoring.report import check_counts, read_texts

    if path is None:
        return None
    others = read_texts(path)
    check_counts({Path(texts.name): len(texts.hypotheses), path: len(others)})
    return ScoreInput(str(path), others, texts.references)


def _report(texts: ScoreInput, metrics: Sequence[Metric], other: ScoreInput | None, as_json: bool) -> None:
    """Print the scores, or how two systems compare."""
    from sixfold.scoring.report import compare_texts, comparison_rows, score_texts

    if other is None:
        results = score_texts(texts.hypotheses, texts.references, metrics)
        rows = [result.row() for result in results]
        scores: list[dict[str, Any]] = [result.json() for result in results]
    else:
        compared = compare_texts(texts.hypotheses, other.hypotheses, texts.references, metrics)
        rows = [row for each in compared for row in comparison_rows(each, texts.name, other.name)]
        scores = [each.json() for each in compared]
    if as_json:
        print_json({"texts": len(texts.hypotheses), "scores": scores})
        return
    shown = table(f"{len(texts.hypotheses):,} texts", "", "", right=(1,))
    for row in rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    console().print(shown)


def _report_likelihood(scored: _Scored, source: File, target: File, as_json: bool) -> None:
    """Print a line for each text on standard output, the total on standard error; with --json both in one object.

    Texts are read as they are needed and not kept in memory.
    """
    from sixfold.scoring.likelihood import likelihood, perplexity

    pairs, progress = _pairs(scored, source, target), ProgressLine("texts", show=not sys.stdout.isatty())
    found = likelihood(scored.model, scored.tokenizers, pairs, scored.config.decoding.batch_tokens)
    total = perplexity(_told(found, progress, as_json)).json()
    if as_json:
        typer.echo("\n  ],\n" + json.dumps(total, indent=2).removeprefix("{\n"))
        return
    sys.stdout.flush()
    for name, value in total.items():
        progress.say(f"{name} {_shown(value)}")


def _told(found: Iterable[Likelihood], progress: ProgressLine, as_json: bool) -> Iterator[Likelihood]:
    """Print each likelihood and yield it. With `as_json`, the caller must close the JSON list "each"."""
    for number, each in enumerate(found, 1):
        if as_json:
            begin = '{\n  "each": [\n' if number == 1 else ",\n"
            typer.echo(begin + indent(json.dumps(each.json(), indent=2), "    "), nl=False)
        else:
            typer.echo(f"{each.log_prob:.6f}\t{each.tokens}\t{each.perplexity:.6f}")
        progress.count(each.tokens)
        if each.note:
            progress.say(f"line {number:,}: {each.note}")
        yield each


def _pairs(scored: _Scored, source: File, target: File) -> Iterator[tuple[str | None, str]]:
    from sixfold.scoring.report import stream_pairs, stream_texts

    if target is None:
        raise ValueError("--likelihood needs --target-file, the texts whose likelihood is computed")
    if not scored.model.reads_source:
        not_with("a language model, which reads no source", {"--source-file"} if source else set())
        return ((None, text) for text in stream_texts(target))
    if source is None:
        raise ValueError("--likelihood needs --source-file, the source of each line of --target-file")
    return stream_pairs(source, target)


def _report_facts(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        typer.echo(f"{name} {_shown(value)}")


def _shown(value: Any) -> str:
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
