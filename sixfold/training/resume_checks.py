"""What may have changed since a run was last at work, and what may not: configuration, tokenizers, surroundings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from sixfold.config.schema import SECTIONS, Config, keys
from sixfold.runs import old_formats
from sixfold.runs.run import Run, versions
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.checkpoint import Checkpoint
from sixfold.training.observers.display import Display
from sixfold.training.processes import Processes

MAY_CHANGE = ("training.steps", "training.patience", "training.log_every", "training.keep")
# Where and how it is computed, not what: a run may go on elsewhere, as with another number of processes.
_HOW = ("training.device", "training.parallel", "training.accumulate", "training.compile", "training.recompute")
_DATA = ("data.train", "data.valid", "data.test")
_NAMED = 3  # of the keys that differ


def need_steps(config: Config, saved: Checkpoint) -> None:
    """Raise a ValueError if a run that has come so far can't go on to as many steps."""
    steps = config.training.steps
    if steps is None:
        raise ValueError("training.steps is null, but to go on with a run it must be a number")
    if steps < saved.step:
        raise ValueError(
            f"training.steps is {steps:,}, but this run has done {saved.step:,} already; to go on, give as many or more"
        )


def need_same_config(config: Config, saved: Checkpoint, run: Run, hashes: Mapping[str, str] | None) -> None:
    """Raise a ValueError if the configuration is not the checkpoint's, but for what may change.

    Where text lies may change with the text, and whoever changes that has said so; `hashes` are those of now.
    """
    then = saved.state.get("config")  # early checkpoints don't say
    if then is None:
        return
    model = then.get("model", {})
    wishes = [old_formats.modification(wish) for wish in model.get("modifications", [])]  # an older run's checkpoint
    then = {**then, "model": {**model, "modifications": wishes}}
    other_text = hashes is not None and hashes != saved.state["data"]["hashes"]
    found = list(_differences(then, config, (*MAY_CHANGE, *_HOW, *(_DATA if other_text else ()))))
    if found:
        more = f" (and {len(found) - _NAMED} keys more)" if len(found) > _NAMED else ""
        raise ValueError(
            f"{run.config} was changed: {'; '.join(found[:_NAMED])}{more}; a run goes on as it began, and only "
            f"{', '.join((*MAY_CHANGE, *_HOW))} can change"
        )


def _differences(then: Mapping[str, Any], config: Config, but_for: Collection[str]) -> Iterator[str]:
    """What each key that differs was and is. A key that a checkpoint does not know had its default."""
    default, now = Config().model_dump(mode="json"), config.model_dump(mode="json")
    if (was := then.get("task")) not in (None, now["task"]) and "task" not in but_for:
        yield f"task was {_short(was)} and is {_short(now['task'])}"
    for section in SECTIONS:
        for key, value in now[section].items():
            was = then.get(section, {}).get(key, default[section][key])
            if was != value and f"{section}.{key}" not in but_for:
                yield f"{section}.{key} was {_short(was)} and is {_short(value)}"


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def need_same_tokenizers(tokenizers: Tokenizers, saved: Checkpoint, run: Run) -> None:
    """Raise a ValueError if the tokenizers are not those that the weights were trained with."""
    data = saved.state.get("data")  # early checkpoints don't say
    if data is not None and data["tokenizers"] != [tokenizer.fingerprint for tokenizer in tokenizers]:
        raise ValueError(f"{saved.path} was made with other tokenizers than are in {run.directory} now")


def read_notes(run: Run, saved: Checkpoint, display: Display) -> dict[str, Any]:
    """What run.json says; where nothing can be made of it, what the checkpoint knows, which is no more than hashes."""
    try:
        about = run.read_about()
        hashes = about.get("hashes")
        if not isinstance(hashes, dict):
            raise ValueError(f"{run.about} does not say which text it was")
    except ValueError as error:
        if "data" not in saved.state:
            raise
        display.say(f"{error}; it is written anew from what {saved.path.name} knows")
        return {"hashes": saved.state["data"]["hashes"]}
    return about


def surroundings(config: Config, saved: Checkpoint, about: Mapping[str, Any], processes: Processes) -> str | None:
    """What is not as it was when the checkpoint was made, so that numbers will differ in their last bits."""
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
        other += _differences(state["config"], config, every.difference(_HOW))
    if not other:
        return None
    return f"since {saved.path.name} was made: {'; '.join(other)}. What follows may differ from an unbroken run's"
