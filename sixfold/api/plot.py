"""Draws the training curves of runs: the loss, and the metric that selects the best weights."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sixfold.api.describe import metric_in
from sixfold.core.names import to_install
from sixfold.disk.atomic import StagedFiles
from sixfold.runs.run import Run
from sixfold.terminal import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
_SETTINGS = {"svg.hashsalt": "sixfold", "svg.fonttype": "none"}  # the same curves give the same file


class Curve(NamedTuple):
    """One key of the log: its values in the records of one kind ("train" or "valid"), with the steps of the records."""

    steps: list[int]
    values: list[float]


class Curves(NamedTuple):
    """The curves of one run."""

    name: str
    train: Curve  # the training loss
    valid: Curve  # the validation loss
    metric: str | None  # the first metric that a validation recorded
    scores: Curve  # the values of that metric


def plot(runs: Sequence[Run], out: Path) -> None:
    """Draw the curves of all runs into the file `out`, as PNG or SVG according to its suffix."""
    if out.suffix.lower() not in FORMATS:
        raise ValueError(f"a picture is written as {' or '.join(FORMATS)}, got {out.name!r}")
    named = zip(names(runs), runs, strict=True)
    curves = [read_curves(name, run) for name, run in named]
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_SETTINGS):
        figure = draw(curves)
        out.parent.mkdir(parents=True, exist_ok=True)
        kind = out.suffix.lower().removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else None
        with StagedFiles(out.parent) as staging:
            staging.write(out.name, lambda path: figure.savefig(path, format=kind, metadata=metadata, dpi=150))


def names(runs: Sequence[Run]) -> list[str]:
    """The names of the directories; their paths if two names are equal."""
    short = [printable(os.path.basename(os.path.realpath(run.directory))) for run in runs]
    return short if len(set(short)) == len(short) else [printable(str(run.directory)) for run in runs]


def read_curves(name: str, run: Run) -> Curves:
    records = list(run.need().records())
    train, valid = ([r for r in records if r["kind"] == kind] for kind in ("train", "valid"))
    if not train and not valid:
        raise ValueError(f"{run.directory} has nothing to plot yet: its log has no record of training or validation")
    metric = next(filter(None, map(metric_in, valid)), None)
    return Curves(name, _curve(train, "loss"), _curve(valid, "loss"), metric, _curve(valid, metric))


def _curve(records: Iterable[dict[str, Any]], key: str | None) -> Curve:
    found = [(record["step"], _finite(record[key])) for record in records if key in record]
    return Curve([step for step, _ in found], [value for _, value in found])


def _finite(value: float | str | None) -> float:
    """A value that is not a finite number, such as "Infinity", becomes NaN, which is drawn as a gap."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def draw(curves: Sequence[Curves]) -> Figure:
    """A panel for the losses, and below it one for each metric."""
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(c.metric for c in curves if c.metric is not None))
    figure = Figure(figsize=(8, 4 + 2.5 * len(metrics)), layout="constrained")
    panels = figure.subplots(1 + len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    for number, run in enumerate(curves):
        colour = f"C{number % 10}"
        _line(panels[0], run.train, f"training: {run.name}", color=colour, marked=False, alpha=0.5, linewidth=1)
        _line(panels[0], run.valid, f"validation: {run.name}", color=colour)
        for metric, panel in zip(metrics, panels[1:], strict=True):
            if run.metric == metric:
                _line(panel, run.scores, f"validation: {run.name}", color=colour)
    for panel, title in zip(panels, ["loss", *(metric.replace("_", " ") for metric in metrics)], strict=True):
        _add_labels(panel, title)
    panels[-1].set_xlabel("step")
    return figure


def _line(panel: Axes, curve: Curve, label: str, *, marked: bool = True, **style: Any) -> None:
    """Draw a curve, unless it is empty. `marked`: each point gets a marker if there are few; a single point always."""
    if curve.steps:
        marker = "o" if (len(curve.steps) <= 50 and marked) or len(curve.steps) == 1 else ""
        panel.plot(curve.steps, curve.values, label=label, marker=marker, markersize=3, **style)


def _add_labels(panel: Axes, title: str) -> None:
    panel.set_ylabel(title)
    panel.grid(alpha=0.3)
    for text in panel.legend(fontsize="small").get_texts():
        text.set_parse_math(False)  # the name of a run may contain $, which matplotlib would read as a formula


def _matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise ValueError(f"plotting needs matplotlib: {to_install('plot')}") from None
    return matplotlib
