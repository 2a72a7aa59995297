"""The description of a run: its architecture, data, progress and scores."""

from __future__ import annotations

import fcntl
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from sixfold.config.schema import Config, Files
from sixfold.disk.reading import regular_file
from sixfold.doctor.course import Finding
from sixfold.doctor.run_doctor import examine
from sixfold.runs.run import Run
from sixfold.scoring.outputs import PREFIX
from sixfold.tasks.task import task_of
from sixfold.terminal import facts
from sixfold.training.observers.display import NO_BEST, clock, number, numbers

_NOT_LISTED = ("kind", "step", "best", "metric", "value")  # keys of the best validation that its row does not list
_NOT_METRICS = ("kind", "step", "best", "loss", "perplexity")  # keys of a validation's record that are no metrics


def describe_run(run: Run) -> dict[str, Any]:
    """The description of a run, or of a directory that holds only a model."""
    directory = run.directory
    if not directory.is_dir():
        raise ValueError(f"there is no directory {directory}")
    writer, has_model = who_writes(run), (directory / "model.json").exists()
    if not run.exists() and not has_model and writer is None:
        raise ValueError(f"{directory} is neither a run nor a model: it has no {run.config.name} and no model.json")
    described: dict[str, Any] = {"directory": str(directory), "writer": writer}
    config = run.read_config() if run.exists() else None
    if config is not None or has_model:
        described["model"] = _model(run, config)
    if config is not None:
        described["task"] = _task(config)
        about = _about(run)
        records = list(run.records())
        with _damage_reported(directory):
            described["data"] = _data(config, about)
            described["progress"] = _progress(run, config, records)
            described["best"] = _best(config, records)
            described["weights"] = _weights(config, described)
            described["findings"] = [finding._asdict() for finding in examine(run)]
        described["versions"], described["machine"] = about.get("versions"), about.get("machine")
        described["problem"] = about.get("problem")
    return described


def _about(run: Run) -> dict[str, Any]:
    """The content of run.json; {} if the file is missing, and only the error, as "problem", if it is damaged."""
    try:
        return run.read_about() if run.about.exists() else {}
    except ValueError as error:
        return {"problem": str(error)}


def _task(config: Config) -> dict[str, Any]:
    """The name and the options of the task, and the unit of the log's token counts."""
    try:
        task = task_of(config)
    except ValueError as error:  # a task of the user's own that was not imported
        return {"name": None, "counts": "targets", "problem": str(error)}
    return {**task.entry(), "counts": "target tokens" if task.main == "words" else task.main}


def who_writes(run: Run) -> str | None:
    """The process that holds the lock of a run, if there is one."""
    try:
        with open(run.directory / "lock", encoding="utf-8", opener=regular_file) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().strip() or "another process"
    except FileNotFoundError:
        pass
    return None


def _model(run: Run, config: Config | None) -> dict[str, Any]:
    """The architecture, read from model.json; if there is none yet, from the configuration."""
    from sixfold.models.build import build
    from sixfold.runs import model_files
    from sixfold.text.tokenizer import Tokenizers

    try:
        if (run.directory / model_files.DESCRIPTION).exists():
            model = model_files.skeleton(run.directory)
        else:
            assert config is not None
            sizes = config.sizes_with(Tokenizers.load(run.directory))
            model = build(sizes, config.model.modifications, config.model.kind, device="meta")
    except (OSError, ValueError) as error:
        if config is None:
            raise
        return {"kind": config.model.kind, "sizes": None, "problem": str(error)}
    return {
        "kind": model.kind,
        "stacks": list(model.stacks),
        "sizes": asdict(model.sizes),
        "modifications": [{chosen.name: dict(chosen.options)} for chosen in model.assembly.modifications],
        "maps": dict(Counter(model.maps.values())),  # kind of map, such as softmax → number of attentions
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights": (run.directory / model_files.WEIGHTS).exists(),
    }


def _data(config: Config, about: Mapping[str, Any]) -> dict[str, Any]:
    data = config.data
    return {
        **{split: _names_of(getattr(data, split)) for split in ("train", "valid", "test")},
        "tokenizer": data.tokenizer if isinstance(data.tokenizer, str) else data.tokenizer.model_dump(),
        "report": about.get("report"),
        "hashes": about.get("hashes"),
        "from": about.get("from"),
    }


def _names_of(entry: str | Files | list[str | Files] | None) -> list[str]:
    """The names of the corpora in one entry of the configuration's `data`."""
    corpora = entry if isinstance(entry, list) else [] if entry is None else [entry]
    return [_name_of(corpus) for corpus in corpora]


def _name_of(corpus: str | Files) -> str:
    if isinstance(corpus, str):
        return corpus
    path = corpus.path or f"{corpus.source} → {corpus.target}"
    return path if corpus.weight == 1 else f"{path} × {corpus.weight:g}"


def _progress(run: Run, config: Config, records: list[dict[str, Any]]) -> dict[str, Any]:
    from sixfold.training.checkpoint import checkpoints_in

    trained = [record for record in records if record["kind"] == "train"]
    last = trained[-1] if trained else {}
    checkpoints = sorted(int(path.name.removeprefix("step-")) for path in checkpoints_in(run.training))
    ended = bool(records) and records[-1]["kind"] == "stopped"
    return {
        "step": max([0, *checkpoints, *(record["step"] for record in records[-1:])]),
        "steps": config.training.steps or next((r["steps"] for r in reversed(records) if r["kind"] == "plan"), None),
        "epoch": last.get("epoch"),
        "tokens": last.get("tokens"),
        "seconds": seconds_spent(trained),
        "last": last or None,
        "stopped": records[-1].get("reason") if ended else None,
        "checkpoints": checkpoints,
        "resume": f"sixfold train --resume {shlex.quote(str(run.directory))}",
    }


def seconds_spent(trained: Iterable[Mapping[str, Any]]) -> float:
    """The time of training, in seconds. The log's clock restarts at 0 whenever a run is resumed."""
    total = before = 0.0
    for record in trained:
        now = float(record.get("seconds", 0.0))
        total, before = total + (now - before if now >= before else now), now
    return total


def _best(config: Config, records: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The best validation: the last one that was better than all earlier ones."""
    better = [record for record in records if record["kind"] == "valid" and record.get("best") is True]
    if not better:
        return None
    record = better[-1]
    metric = config.training.metric if config.training.metric in record else metric_in(record) or "loss"
    return {**record, "metric": metric, "value": record[metric]}


def metric_in(record: Mapping[str, Any]) -> str | None:
    """The name of the metric in a validation's record; None if the record has only losses."""
    others = (key for key in record if key not in _NOT_METRICS and not key.startswith(PREFIX))
    return next((key for key in others if not key.endswith("_loss")), None)


def _weights(config: Config, described: Mapping[str, Any]) -> dict[str, Any] | None:
    """The step whose weights are in the run's model, and why that step; None if no weights were saved yet."""
    best, saved = described["best"], described["progress"]["checkpoints"]
    if best is not None:
        return {"step": best["step"], "why": "the best so far"}
    report = (described["data"] or {}).get("report") or {}
    validated = config.data.valid is not None or "valid" in report.get("parts", {})
    why = NO_BEST if validated else "there is no validation data"
    return {"step": saved[-1], "why": why} if saved else None


def table_of(described: Mapping[str, Any]) -> Table:
    """The description as a table."""
    with _damage_reported(described["directory"]):
        return facts(*_rows(described))


@contextmanager
def _damage_reported(directory: str | Path) -> Iterator[None]:
    """Turn errors about missing or wrong values into a ValueError that names the files."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"log.jsonl or run.json in {directory} is damaged: a value is missing or wrong ({error!r})"
        ) from None


def _rows(described: Mapping[str, Any]) -> list[tuple[str, Any]]:
    model, data = described.get("model"), described.get("data")
    rows: list[tuple[str, Any]] = [("directory", described["directory"]), ("state", state(described))]
    if "task" in described:
        rows.append(("task", _with_options(*_name_and_options(described["task"]))))
    if model is not None:
        rows += _architecture(model)
    if data is not None:
        counts = described["task"]["counts"]
        rows += [*_data_rows(data), *_progress_rows(described["progress"], described["best"], counts)]
        if described["best"] is None and described["weights"] is not None:
            rows.append(("weights", f"of step {described['weights']['step']:,}: {described['weights']['why']}"))
        rows.append(("problem", described["problem"]))
        rows += [
            ("" if number else "how it went", Finding(**found).text())
            for number, found in enumerate(described["findings"])
        ]
    return rows


def state(described: Mapping[str, Any]) -> str:
    """The state of a run: being prepared or trained, stopped, or interrupted."""
    writer, progress = described["writer"], described.get("progress")
    if writer is not None:
        return f"being {'prepared' if progress is None else 'trained'} by {writer}"
    if progress is None:
        return "a model without its run"
    if progress["stopped"] is not None:
        return f"stopped: {progress['stopped']}"
    step = f"step {progress['checkpoints'][-1]:,}" if progress["checkpoints"] else "the beginning"
    return f"interrupted; {progress['resume']} continues from {step}"


def _architecture(model: Mapping[str, Any]) -> list[tuple[str, Any]]:
    sizes = model["sizes"]
    if sizes is None:
        return [("architecture", model["kind"]), ("problem", model["problem"])]
    stacks = model["stacks"]
    layers = " + ".join(str(sizes[f"{stack}_layers"]) for stack in stacks)
    widths = f"d_model {sizes['d_model']}, d_ff {sizes['d_ff']}, {sizes['heads']} heads of {sizes['d_head']}"
    chosen = [_with_options(name, options) for each in model["modifications"] for name, options in each.items()]
    vocabularies = {key: sizes[key] for key in ("vocab", "source_vocab", "target_vocab") if sizes.get(key)}
    return [
        ("architecture", f"{model['kind']}, {layers} layers, {widths}, dropout {sizes['dropout']:g}"),
        ("modifications", ", ".join(chosen) or "none"),
        ("attentions", ", ".join(f"{number} {kind}" for kind, number in model["maps"].items()) or "none"),
        ("vocabulary", ", ".join(f"{key} {value:,}" for key, value in vocabularies.items())),
        ("parameters", f"{model['parameters']:,}{'' if model['weights'] else ', no weights yet'}"),
    ]


def _name_and_options(task: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {key: value for key, value in task.items() if key not in ("name", "counts", "problem")}
    return task["name"] or task["problem"], options


def _with_options(name: str, options: Mapping[str, Any]) -> str:
    """A modification or a task as on the command line: "name:key=value,key=value"."""
    return name + "".join(f"{',' if i else ':'}{key}={value}" for i, (key, value) in enumerate(options.items()))


def _data_rows(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    tokenizer = data["tokenizer"]
    kinds = tokenizer if isinstance(tokenizer, str) else f"{tokenizer['source']} → {tokenizer['target']}"
    files = [(f"{split} data", "; ".join(data[split]) or None) for split in ("train", "valid", "test")]
    return [*files, ("examples", _examples(data["report"])), ("tokenizer", kinds), ("weights from", data["from"])]


def _examples(report: Mapping[str, Any] | None) -> str | None:
    """The number of examples in each split."""
    splits = (report or {}).get("parts", {})
    counts = {name: split["lines"] if split["rows"] is None else split["rows"] for name, split in splits.items()}
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or None


def _progress_rows(progress: Mapping[str, Any], best: Mapping[str, Any] | None, counts: str) -> list[tuple[str, Any]]:
    steps, last = progress["steps"], progress["last"]
    reached = f"{progress['step']:,}" + (f" of {steps:,} steps ({progress['step'] / steps:.1%})" if steps else " steps")
    if last is not None:
        reached += f", epoch {last['epoch']}, {last['tokens']:,} {counts} in {clock(progress['seconds'])}"
    rows: list[tuple[str, Any]] = [("progress", reached)]
    if last is not None:
        speed = last["tokens"] / progress["seconds"] if progress["seconds"] else 0.0
        values = numbers(last["loss"], last["learning_rate"], speed, last["padding"], counts.split()[-1])
        rows.append((f"at step {last['step']:,}", values))
    if best is not None:
        others = (k for k in best if k not in (*_NOT_LISTED, best["metric"]) and not k.startswith(PREFIX))
        listed = ", ".join(f"{key} {number(best[key])}" for key in others)
        rows.append(("best", f"{best['metric']} {number(best['value'])} at step {best['step']:,} ({listed})"))
    checkpoints = ", ".join(f"{step:,}" for step in progress["checkpoints"])
    return [*rows, ("checkpoints", checkpoints or "none yet")]
