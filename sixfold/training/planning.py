"""Completes the configuration of a run by a plan (config/plan.py), and shows it."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sixfold.config.cost import Facts
from sixfold.config.plan import Choice, Planned, make_plan
from sixfold.config.schema import Config
from sixfold.core.device import choose_device
from sixfold.models.build import build
from sixfold.runs.run import Run
from sixfold.spec.assemble import slots_filled
from sixfold.tasks.task import Task, task_of
from sixfold.text.corpus import Prepared, prepare
from sixfold.text.preparation import ProgressCallback
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.preflight import check
from sixfold.training.processes import Processes
from sixfold.training.speed import measure_speed

_PIECES = ("bpe", "unigram")  # kinds of tokenizers whose vocabulary has a chosen size
_PREPARING = 0.5  # largest share of training.minutes that preparing the text should take


def plan(
    config: Config, progress: ProgressCallback | None = None, before: Run | None = None
) -> tuple[Planned, Prepared, int]:
    """The plan of a run that is not started. → the plan, the prepared text (its files are gone), the parameters

    `before` is the trained run that it would start from.
    """
    config, _ = check(config, before)
    tokenizers = None if before is None else Tokenizers.load(before.directory)
    with tempfile.TemporaryDirectory(prefix="sixfold-plan-") as folder:
        prepared = prepare(config.data, task_of(config).form, Path(folder, "data"), tokenizers, progress)
        config = config.with_classes(len(prepared.labels))
        processes = Processes(device=choose_device(config.training.device))
        planned = complete(config, prepared, processes, trained=before is not None)
    model = planned.config.model
    sizes = planned.config.sizes_with(prepared.tokenizers)
    built = build(sizes, model.modifications, model.kind, device="meta")
    return planned, prepared, sum(parameter.numel() for parameter in built.parameters())


def warning_of_slow_preparation(
    progress: ProgressCallback, say: Callable[[str], Any], minutes: float | None, started: float
) -> ProgressCallback:
    """The callback `progress`, which also says once, and at once, if preparing takes too much of the run's minutes."""
    limit = math.inf if minutes is None else _PREPARING * 60 * minutes

    def told(what: str, done: int, total: int | None) -> None:
        nonlocal limit
        progress(what, done, total)
        if time.monotonic() - started > limit:
            limit = math.inf
            say(
                f"warning: preparing the text has already taken {_PREPARING:.0%} of the {minutes:g} minutes: raise "
                f"training.minutes, or prepare the text once (sixfold.prepare) and train on the prepared text"
            )

    return told


def complete(config: Config, prepared: Prepared, processes: Processes, *, trained: bool = False) -> Planned:
    """The plan of the first process, which all processes follow. `trained`: the model begins with trained weights."""
    facts = facts_of(prepared, task_of(config))._replace(trained=trained, rotates=_rotates(config, prepared))
    planned = make_plan(config, facts, partial(_speed_of_all, processes)) if processes.first else None
    choices = processes.agree(None if planned is None else [list(choice) for choice in planned.choices])
    if planned is None:
        planned = Planned(with_choices(config, choices), [Choice(*choice) for choice in choices], facts, None)
    return _with_vocabulary(planned, prepared)


def _speed_of_all(processes: Processes, width: int) -> float:
    """The speed of all processes together, each as fast as the first."""
    return processes.size * measure_speed(width, processes.device)


def facts_of(prepared: Prepared, task: Task) -> Facts:
    """The properties of a prepared text that the plan depends on."""
    rows = prepared.train
    times = sum(group.rows * group.weight for group in rows.groups) / max(len(rows), 1)  # weighted rows per row
    source = 0 if rows.source is None else int(rows.source.lengths.sum() * times)
    return Facts(
        rows=max(round(len(rows) * times), 1),
        source_tokens=source,
        target_tokens=int(rows.target.lengths.sum() * times),
        vocabulary=len(prepared.tokenizers.target),
        pairs=rows.source is not None,
        labels=task.form.has_labels,
        valid_rows=0 if prepared.valid is None else len(prepared.valid),
        repeated=_repeated(prepared),
        work=task.work(task.options),
    )


def _rotates(config: Config, prepared: Prepared) -> bool:
    """Whether rotary positions go with the given modifications: none fills a slot that positions depend on."""
    filled = slots_filled(config.sizes_with(prepared.tokenizers), config.model.modifications)
    return not filled & {"input", "position", "attention", "encoder_layer", "decoder_layer", "stack", "decoder_stack"}


def _repeated(prepared: Prepared) -> float:
    """The share of the training text's lines that occurred before."""
    train = prepared.report.splits.get("train")
    return 0.0 if train is None else train.duplicates / max(train.lines, 1)


def with_choices(config: Config, choices: Iterable[Sequence[Any]]) -> Config:
    """The configuration with the values of these choices."""
    for key, value, _ in choices:
        section, _, name = key.partition(".")
        changed = getattr(config, section).model_copy(update={name: value})
        config = config.model_copy(update={section: changed})
    return config


def _with_vocabulary(planned: Planned, prepared: Prepared) -> Planned:
    """The plan with the size of the vocabulary, which was chosen when the tokenizer was trained."""
    data = planned.config.data
    if data.vocabulary is not None or data.tokenizer not in _PIECES:
        return planned
    choice = Choice("data.vocabulary", len(prepared.tokenizers.target), "for a text of this size")
    return planned._replace(config=with_choices(planned.config, [choice]), choices=[choice, *planned.choices])


def lines(planned: Planned, parameters: int) -> Iterator[str]:
    """The plan as text: a line for each choice with its reason, and the run that results."""
    if planned.choices:
        yield "plan, for all that was not given:"
        shown = [(key, _value(key, value), reason) for key, value, reason in planned.choices]
        widths = [max(len(row[column]) for row in shown) for column in (0, 1)]
        for key, value, reason in shown:
            yield f"  {key:<{widths[0]}}  {value:>{widths[1]}}  {reason}"
        key, value, _ = planned.choices[0]
        yield f"  to change a value, give its key, such as --{key} {_value(key, value).replace(',', '')}"
    yield f"{parameters:,} parameters; {planned.length()}"


def _value(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, float) and key.endswith(("warmup", "_every")):
        return f"{100 * value:g} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
