"""Scores of files and lists of texts, as the rows that `sixfold score` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sixfold.core.names import unknown
from sixfold.scoring.error_rates import Hypotheses, References
from sixfold.scoring.metric import Metric
from sixfold.scoring.metrics import METRICS
from sixfold.scoring.significance import Comparison, Estimate, compare
from sixfold.text.sources import read_lines, read_parallel

DEFAULT = "bleu,chrf,ter"
FAMILIES = {"rouge": ("rouge1", "rouge2", "rougeL")}  # names of several metrics together


@dataclass(frozen=True)
class Result:
    """One score, and the settings it was computed with."""

    name: str
    value: float
    signature: str
    higher_is_better: bool

    def row(self) -> tuple[str, str, str]:
        return self.name, f"{self.value:.2f}", self.signature

    def json(self) -> dict[str, Any]:
        return asdict(self)


def find_metrics(names: str | Iterable[str] = DEFAULT) -> list[Metric]:
    """ "bleu,rouge" → the metrics, each once."""
    wanted = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    found: dict[str, Metric] = {}
    for name in wanted:
        for member in FAMILIES.get(name, (name,)):
            if member not in METRICS:
                raise ValueError(unknown("metric", name, [*METRICS, *FAMILIES]))
            found[member] = METRICS[member]
    return list(found.values())


def read_texts(path: Path) -> list[str]:
    """The lines of a file; errors name the file and the line."""
    return list(stream_texts(path))


def stream_texts(path: Path) -> Iterator[str]:
    """The lines of a file, read as they are needed."""
    if not path.exists() or path.is_dir():
        raise ValueError(f"there is no file {str(path)!r}")
    return (line.removesuffix("\n") for line in read_lines(path))


def stream_pairs(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """The lines of two files side by side, as they are needed.

    The lines are counted first, so that files of different length are refused before any work. A pipe, which can't be
    read twice, is refused where the shorter one ends.
    """
    if source.is_file() and target.is_file():
        check_counts({path: sum(1 for _ in stream_texts(path)) for path in (source, target)})
    return read_parallel(source, target)


def read_references(paths: Sequence[Path], like: Path | None = None, lines: int | None = None) -> list[tuple[str, ...]]:
    """For each line, its references in all files; these must have as many lines as the file `like`, if given."""
    if not paths:
        raise ValueError("there are no references to score against: give at least one file (--ref FILE)")
    files = [read_texts(path) for path in paths]
    counted = {} if like is None or lines is None else {like: lines}
    check_counts({**counted, **{path: len(file) for path, file in zip(paths, files, strict=True)}})
    return list(zip(*files, strict=True))


def check_counts(lines: dict[Path, int]) -> None:
    """Raise a ValueError unless these files have the same number of lines."""
    (first, number), *others = lines.items()
    for path, other in others:
        if other != number:
            raise ValueError(
                f"{first} has {number:,} lines, but {path} has {other:,}: "
                f"line n of one must belong to line n of the other"
            )


def score_texts(hypotheses: Hypotheses, references: References, metrics: Iterable[Metric]) -> list[Result]:
    """All numbers of all metrics."""
    return [
        Result(name, value, signature, metric.higher_is_better)
        for metric in metrics
        for signature in [metric.signature(references)]
        for name, value in metric.score(hypotheses, references).items()
    ]


def compare_texts(
    first: Hypotheses, second: Hypotheses, references: References, metrics: Iterable[Metric], **options: int
) -> list[Comparison]:
    """Two systems by each metric; options are those of `compare`."""
    labels = sorted({*first, *second, *chain.from_iterable(references)})
    alike = [metric if metric.with_labels is None else metric.with_labels(labels) for metric in metrics]
    return [compare(first, second, references, metric, **options) for metric in alike]


def comparison_rows(comparison: Comparison, first: str = "first", second: str = "second") -> list[tuple[str, str, str]]:
    """Rows of a name, a value, and its 95 % interval or a remark."""
    randomisation = "all exchanges" if comparison.exact else f"{comparison.trials:,} trials"
    rows = [
        (f"{comparison.metric} of {first}", *_shown(comparison.first)),
        (f"{comparison.metric} of {second}", *_shown(comparison.second)),
        (f"{second} − {first}", *_shown(comparison.difference, "+")),
        ("p, paired bootstrap", f"{comparison.p_bootstrap:.4f}", f"{comparison.resamples:,} draws"),
        ("p, approximate randomisation", f"{comparison.p_randomisation:.4f}", randomisation),
    ]
    return [*rows, ("signature", "", comparison.signature)] if comparison.signature else rows


def _shown(estimate: Estimate, sign: str = "") -> tuple[str, str]:
    value, low, high = (format(number, f"{sign}.2f") for number in (estimate.value, estimate.low, estimate.high))
    return value, f"{low} to {high}"
