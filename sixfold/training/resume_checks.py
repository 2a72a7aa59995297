"""Checks when a run is resumed: which settings, tokenizers and versions may have changed since its last checkpoint."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from sixfold.config.schema import SECTIONS, Config, keys
from sixfold.runs import old_formats
from sixfold.runs.run import Run, versions
from sixfold.tasks.task import find_task, usual_task
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.checkpoint import Checkpoint
from sixfold.training.observers.display import Display
from sixfold.training.processes import Processes

MAY_CHANGE = ("training.steps", "training.minutes", "training.patience", "training.log_every", "training.keep")
# Settings of the machine: a run may be resumed on another one, or with another number of processes.
_HOW = ("training.device", "training.parallel", "training.accumulate", "training.compile", "training.recompute")
_DATA = ("data.train", "data.valid", "data.test")
_NAMED = 3  # most differing keys that a message names


def need_steps(config: Config, saved: Checkpoint) -> None:
    """Raise a ValueError if the run can't have this length: it is past its end, or was begun by another kind."""
    steps = config.training.steps
    if steps is None and config.training.minutes is not None:
        _need_plan_by_minutes(config.training.minutes, saved)
        return
    if steps is None and "plan" in saved.state:
        return
    if steps is None:
        raise ValueError("training.steps is null, but this run was begun with a number of steps: give one")
    if steps < saved.step:
        raise ValueError(
            f"training.steps is {steps:,}, but this run has already done {saved.step:,}; give at least {saved.step:,}"
        )


def _need_plan_by_minutes(minutes: float, saved: Checkpoint) -> None:
    """Raise a ValueError if the run was not begun by minutes, or if they are changed after its schedule has ended."""
    then = saved.state.get("config", {}).get("training", {}).get("minutes")
    again = "--from RUN --training.minutes N begins a new run with its weights"
    if then is None:
        raise ValueError(
            f"training.minutes is {minutes:g}, but this run was not begun by minutes, so its learning rate is planned "
            f"otherwise; {again}"
        )
    if then != minutes and saved.step >= saved.state["plan"]["events"][-1][1]:
        raise ValueError(
            f"this run has used its {then:g} minutes, and its learning rate has fallen to the end; {again}"
        )


def need_same_config(config: Config, saved: Checkpoint, run: Run, hashes: Mapping[str, str] | None) -> None:
    """Raise a ValueError if the configuration differs from the checkpoint's in a key that may not change.

    The paths of the data may change if the data did (--allow-changed-data); `hashes` are those of the current files.
    """
    then = saved.state.get("config")  # early checkpoints lack it
    if then is None:
        return
    then = old_formats.renamed(then)
    model = then.get("model", {})
    entries = [old_formats.modification(entry) for entry in model.get("modifications", [])]  # of an older format
    then = {**then, "model": {**model, "modifications": entries}}
    other_text = hashes is not None and hashes != saved.state["data"]["hashes"]
    found = list(_differences(then, config, (*MAY_CHANGE, *_HOW, *(_DATA if other_text else ()))))
    if found:
        more = f" (and {len(found) - _NAMED} more keys)" if len(found) > _NAMED else ""
        raise ValueError(
            f"{run.config} was changed: {'; '.join(found[:_NAMED])}{more}; in a resumed run only "
            f"{', '.join((*MAY_CHANGE, *_HOW))} can change"
        )


def _differences(then: Mapping[str, Any], config: Config, but_for: Collection[str]) -> Iterator[str]:
    """The old and new value of each key that differs. A key that the checkpoint lacks had its default."""
    default, now = Config().model_dump(mode="json"), config.model_dump(mode="json")
    if "task" not in but_for and (was := _task_of(then)) != now["task"]:
        yield f"task was {_short(was)} and is {_short(now['task'])}"
    for section in SECTIONS:
        for key, value in now[section].items():
            was = then.get(section, {}).get(key, default[section][key])
            if was != value and f"{section}.{key}" not in but_for:
                yield f"{section}.{key} was {_short(was)} and is {_short(value)}"


def _task_of(then: Mapping[str, Any]) -> Mapping[str, Any]:
    """The task of a checkpoint's configuration, with every option.

    Older versions of sixfold recorded no task: then it is the usual one for the kind of model. A missing option had its
    default.
    """
    kind = then.get("model", {}).get("kind", Config().model.kind)
    was = then.get("task") or {"name": usual_task(kind).name}
    try:
        return {**find_task(was["name"]).entry(), **was}
    except ValueError:  # a user's task that is not imported now; the current task is another one
        return was


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def need_same_tokenizers(tokenizers: Tokenizers, saved: Checkpoint, run: Run) -> None:
    """Raise a ValueError if the tokenizers are not those that the weights were trained with."""
    data = saved.state.get("data")  # early checkpoints lack it
    if data is not None and data["tokenizers"] != [tokenizer.fingerprint for tokenizer in tokenizers]:
        raise ValueError(f"{saved.path} was written with other tokenizers than those in {run.directory}; restore them")


def read_notes(run: Run, saved: Checkpoint, display: Display) -> dict[str, Any]:
    """The content of run.json; if it is missing or damaged, the hashes of the data from the checkpoint."""
    try:
        about = run.read_about()
        hashes = about.get("hashes")
        if not isinstance(hashes, dict):
            raise ValueError(f"{run.about} has no hashes of the text")
    except ValueError as error:
        if "data" not in saved.state:
            raise
        display.say(f"{error}; it is rewritten from {saved.path.name}")
        return {"hashes": saved.state["data"]["hashes"]}
    return about


def surroundings(config: Config, saved: Checkpoint, about: Mapping[str, Any], processes: Processes) -> str | None:
    """A message about versions, threads, processes or settings that changed: last bits will differ. None if none."""
    state = saved.state
    noted = state.get("versions", about.get("versions"))
    then = {
        "threads": state.get("threads"),
        "processes": state["processes"],
        **(noted if isinstance(noted, dict) else {}),
    }
    now = {"threads": torch.get_num_threads(), "processes": processes.size, **versions()}
    other = [f"{key} was {then[key]} and is {now[key]}" for key in now if then.get(key) not in (None, now[key])]
    if "config" in state:
        every = {"task", *(key for key, _ in keys())}
        other += _differences(old_formats.renamed(state["config"]), config, every.difference(_HOW))
    if not other:
        return None
    return f"changed since {saved.path.name}: {'; '.join(other)}. Numbers may differ from those of an uninterrupted run"
