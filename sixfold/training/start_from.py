"""`train --from RUN`: a new run begins with the tokenizer of a trained run, and with all of its model that fits.

    inherited    values that the new configuration does not give: task, model (kind, sizes, dropout, modifications),
                 form of the text, label smoothing and metric, decoding; and always the tokenizer
    taken        tensors that have the same name and shape in both models; tables have numbers as names, so they are
                 matched by role (source, target, output)
    fresh        the other tensors of the new model: drawn as in any new model
    left         the other tensors of RUN's model

The body of a model is its layers: the parameters of its stacks and of the bridge between them, without tables, inputs
(positions that are added to the embeddings) and heads. At least half of the new model's body must be found in RUN,
counted in parameters: with less, little of the trained model would be of use.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, TypeVar

from torch import nn

from sixfold.config.schema import (
    SECTIONS,
    Config,
    Data,
    ModelConfig,
    Section,
    TokenizerKinds,
    Vocabularies,
    change_decoding,
)
from sixfold.config.settings import same_kind
from sixfold.models.build import MODELS, build
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import Run, as_text
from sixfold.spec.registry import choose
from sixfold.tasks.task import settled, task_of
from sixfold.text.labels import read_labels
from sixfold.text.tokenizer import Tokenizers
from sixfold.training import checkpoint
from sixfold.training.observers.display import Display

_MODEL = ("kind", "d_model", "d_ff", "heads", "d_head", "dropout", "modifications")
_DEPTH = ("encoder_layers", "decoder_layers")
_TEXT = ("max_length", "context")
_COLUMNS = ("source", "target")
_BODY = ("encoder", "decoder", "stack", "bridge")  # the attributes of a model (models/*.py) that hold its layers
_CLASSIFIER = ("classifier",)  # the attribute of EncoderOnly whose rows are the labels
_LEAST = 0.5  # smallest share of the body that must be found
_SHOWN = 8  # most patterns in a line; run.json has all
_LAYER = re.compile(r"\blayers\.(\d+)")

S = TypeVar("S", bound=Section)


# Inherited values ------------------------------------------------------------------------------------


def inherit(config: Config, run: Run) -> Config:
    """Fill in the values that a configuration does not give from a trained run.

    A value counts as given wherever it was set (recipe, settings, command line), unless it is null. A tokenizer other
    than the run's is an error.
    """
    then, was = run.read_config(), _described(model_files.skeleton(run.directory))
    keys = _MODEL if _gives(config.model, "layers") else (*_MODEL, *_DEPTH)
    model = _filled(config.model, was, keys if config.task is None else [key for key in keys if key != "kind"])
    task = then.task if config.task is None and not _gives(config.model, "kind") else config.task
    # The metric is inherited only if there is validation text and the task is the same.
    same = task_of(settled(config.model_copy(update={"task": task, "model": model}))).name == task_of(then).name
    measured = config.data.validates and same
    trained_for = ("label_smoothing", "metric") if measured else ("label_smoothing",)
    decoding = {key: value for key, value in config.decoding if _gives(config.decoding, key)}
    return config.model_copy(
        update={
            "task": task,
            "data": _with_tokenizers(_filled(config.data, then.data, _text_keys(config, then)), then.data, run),
            "model": model,
            "training": _filled(config.training, then.training, trained_for),
            "decoding": change_decoding(then.decoding, decoding),
        }
    )


def add_modifications(config: Config, more: Collection[str], run: Run) -> Config:
    """The configuration with further modifications, added to its own or, if it gives none, to those of the run.

    A modification that the run already has is replaced, options included.
    """
    if not more:
        return config  # so that it still counts as giving none
    if _gives(config.model, "modifications"):
        return config.with_modifications(more)
    had = _described(model_files.skeleton(run.need().directory)).modifications
    return config.with_only(list({choose(entry).name: entry for entry in (*had, *more)}.values()))


def tell_inherited(given: Config, config: Config, run: Run, display: Display) -> None:
    """Display the values that `inherit` filled in and that differ from the defaults."""
    task = task_of(config)
    found = [] if task == task_of(given) else [f"task {task.name}"]
    for section in SECTIONS:
        had, values = getattr(given, section), getattr(config, section)
        new = {key: value for key, value in values if not _gives(had, key) and value != getattr(had, key)}
        found += [f"{section}.{key} {_words(value)}" for key, value in new.items()]
    if found:
        display.say(f"from {run.directory}: {'; '.join(found)}")


def _gives(section: Section, key: str) -> bool:
    return key in section.model_fields_set and getattr(section, key) is not None


def _filled(section: S, then: S, keys: Iterable[str]) -> S:
    """A section whose missing keys, of those listed, are taken from another section."""
    return section.model_copy(update={key: getattr(then, key) for key in keys if not _gives(section, key)})


def _text_keys(config: Config, then: Config) -> tuple[str, ...]:
    """The keys of `data` to inherit: suffixes and columns only if they can fit the new text."""
    return (*_TEXT, *(_COLUMNS if same_kind(then.data.train, config.data.train) else ()))


def _described(model: Model) -> ModelConfig:
    """A trained model as the section `model` of a configuration, without its classes, which belong to the data.

    A single stack gives its depth to both keys, so that a model of another kind can inherit it.
    """
    sizes, chosen = model.sizes, model.assembly.modifications
    depths = (f"{model.stacks[0]}_layers", f"{model.stacks[-1]}_layers")
    return ModelConfig.model_validate(
        {
            "kind": model.kind,
            **{key: getattr(sizes, key) for key in ("d_model", "d_ff", "heads", "dropout")},
            "d_head": None if sizes.heads * sizes.d_head == sizes.d_model else sizes.d_head,
            **{key: getattr(sizes, of) for key, of in zip(_DEPTH, depths, strict=True)},
            "modifications": [{each.name: dict(each.options)} if each.options else each.name for each in chosen],
        }
    )


def _with_tokenizers(data: Data, then: Data, run: Run) -> Data:
    """The section `data` with the run's tokenizers; ValueError if it gives others."""
    tokenizers = Tokenizers.load(run.directory)
    if tokenizers.joint:
        kind: Any = tokenizers.source.kind
        words: Any = len(tokenizers.source)
    else:
        kind = TokenizerKinds.model_validate({side: each.kind for side, each in tokenizers._asdict().items()})
        words = Vocabularies(source=len(tokenizers.source), target=len(tokenizers.target))
    for key, has in {"tokenizer": kind, "vocabulary": words}.items():
        given = getattr(data, key)
        # Both the size in the run's configuration and the size that its tokenizer has are accepted.
        if _gives(data, key) and given not in (has, getattr(then, key)):
            raise ValueError(
                f"data.{key} is {_words(given)}, but the tokenizer of --from {run.directory} has {_words(has)}; "
                f"give the same, or leave it out"
            )
    return data.model_copy(update={"tokenizer": kind, "vocabulary": words})


def _words(value: Any) -> str:
    """A value of the configuration, as text for a message."""
    if isinstance(value, Section):
        return ", ".join(f"{side} {of}" for side, of in value)
    if isinstance(value, list):
        return ", ".join(str(choose(each)) if isinstance(each, dict) else str(each) for each in value) or "none"
    return str(value)


# Tensors of RUN ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """The tensors that a new model takes from an old one, and their shares of the new model's parameters."""

    taken: Mapping[str, str]  # name → name in the old model, which differs for some tables
    fresh: tuple[str, ...]
    left: tuple[str, ...]
    share: float  # of all parameters
    body: float  # of the parameters of its body

    def patterns(self) -> dict[str, list[str]]:
        """The same names, shortened to one pattern for a complete part where possible."""
        new, old = (*self.taken, *self.fresh), (*self.taken.values(), *self.left)
        groups = {"taken": (self.taken, new), "fresh": (self.fresh, new), "left": (self.left, old)}
        return {name: patterns(*group) for name, group in groups.items()}


def compare(new: Model, old: Model, without: Collection[str] = ()) -> Fit:
    """Tensors of the same name and shape fit, and tables of the same roles and shape; those in `without` never fit."""
    here, there = ({name: tensor.shape for name, tensor in model.state_dict().items()} for model in (new, old))
    named = _names_there(here, new, old)
    fits = {name: its for name, its in named.items() if name.partition(".")[0] not in without}
    taken = {name: its for name, its in fits.items() if there.get(its) == here[name]}
    fresh = tuple(name for name in here if name not in taken)
    left = tuple(name for name in there if name not in taken.values())
    counts = {name: parameter.numel() for name, parameter in new.named_parameters()}
    body = {name: count for name, count in counts.items() if name.partition(".")[0] in _BODY}
    return Fit(taken, fresh, left, _share(counts, taken), _share(body, taken))


def _names_there(names: Iterable[str], new: Model, old: Model) -> dict[str, str]:
    """The name of each tensor in the old model.

    Tables have numbers as names, so they are matched by role: the roles of a new table that the old model has, too,
    must all belong to one old table. A table without such a match is left out.
    """
    index_of = {role: index for index, table in enumerate(old.tables) for role in _roles(old, table)}
    found = {}
    for name in names:
        its = name
        if name.startswith("tables."):
            _, number, rest = name.split(".", 2)
            serve = {index_of[role] for role in _roles(new, new.tables[int(number)]) if role in index_of}
            if len(serve) != 1:
                continue
            its = f"tables.{serve.pop()}.{rest}"
        found[name] = its
    return found


def _roles(model: Model, table: nn.Module) -> list[str]:
    return [role for role, each in model.roles.items() if each is table]


def _share(counts: Mapping[str, int], of: Collection[str]) -> float:
    total = sum(counts.values())
    return sum(count for name, count in counts.items() if name in of) / total if total else 1.0


def outline(config: Config, run: Run) -> Model:
    """The model of an inherited configuration, without memory for its weights.

    If it can't be built, or too little of the run's model fits, a ValueError lists the differences.
    """
    old = model_files.skeleton(run.directory)
    different = differences(config.model, _described(old))
    try:
        model = build(config.sizes(), config.model.modifications, config.model.kind, device="meta")
    except ValueError as error:
        raise ValueError("; ".join([f"--from {run.directory}: {error}", *different])) from None
    found = compare(model, old).body
    if found < _LEAST:
        raise ValueError(
            f"--from {run.directory}: only {int(100 * found)} % of the parameters in this model's layers fit, and at "
            f"least half must: {'; '.join(different)}; leave out the settings that differ, or train without --from"
        )
    return model


def take(model: Model, config: Config, run: Run, display: Display, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Copy all tensors that fit from a trained run's model, and display which. → the entries for run.json

    A classifier of other labels does not fit, though it may have the same shape.
    """
    old = model_files.load(run.directory)
    other = old.sizes.classes > 0 and tuple(read_labels(run.directory)) != tuple(labels)
    fit, weights = compare(model, old, without=_CLASSIFIER if other else ()), old.state_dict()
    checkpoint.load_weights(model, {**model.state_dict(), **{name: weights[its] for name, its in fit.taken.items()}})
    for line in (*lines(fit, run, differences(config.model, _described(old))), *_warnings(model, old)):
        display.say(line)
    return {"from": as_text(os.path.realpath(run.directory)), "start": fit.patterns()}


# Messages --------------------------------------------------------------------------------------------


def differences(here: ModelConfig, there: ModelConfig) -> list[str]:
    """The differences between two models in all settings that names and shapes of tensors depend on."""
    found = [] if here.kind == there.kind else [f"its model.kind is {there.kind}, here {here.kind}"]
    for key in ("d_model", "d_ff", "heads", "d_head", *(f"{stack}_layers" for stack in MODELS[here.kind].stacks)):
        mine, its = _size(here, key), _size(there, key)
        found += [] if mine == its else [f"its {key} is {its}, here {mine}"]
    had, has = (", ".join(str(choose(entry)) for entry in model.modifications) or "none" for model in (there, here))
    return found if had == has else [*found, f"its modifications are {had}, here {has}"]


def _size(model: ModelConfig, key: str) -> Any:
    """A size; for null, the value that it stands for."""
    instead = {"d_head": "d_model / heads", **dict.fromkeys(_DEPTH, model.layers)}
    return getattr(model, key) or instead[key]


def lines(fit: Fit, run: Run, different: Collection[str]) -> Iterator[str]:
    """The lines that are displayed about a fit."""
    tensors = f"{len(fit.taken)} of {len(fit.taken) + len(fit.fresh)} tensors"
    yield f"{int(100 * fit.share)} % of this model's parameters ({tensors}) are taken from {run.directory}"
    if different:
        yield f"  differs: {'; '.join(different)}"
    named = fit.patterns()
    for title, found in {"starts fresh": named["fresh"], "not taken": named["left"]}.items():
        if found:
            more = f" and {len(found) - _SHOWN} more, see run.json" if len(found) > _SHOWN else ""
            yield f"  {title}: {', '.join(found[:_SHOWN])}{more}"


def _warnings(new: Model, old: Model) -> Iterator[str]:
    """A warning if heads have another width: their matrices have the same shape, but other columns belong to a head."""
    other = {name: (old.attentions[name], heads) for name, heads in new.attentions.items() if name in old.attentions}
    if different := {name: counts for name, counts in other.items() if counts[0] != counts[1]}:
        name, (had, has) = next(iter(different.items()))
        yield (
            f"  warning: {name} has {had} heads there, and {has} here: its matrices are taken, but each head now has "
            "other columns of them than in training"
        )


def patterns(names: Collection[str], among: Iterable[str]) -> list[str]:
    """As few patterns as possible that match these tensors and no others `among` all of a model's.

    A part whose tensors are all named is one pattern, and so are equal parts of several layers:

        decoder.layers.4.attention.qkv.weight, …                        → decoder.4.*
        encoder.layers.0.feed_forward.inner.weight, … of layers 0 to 5  → encoder.0-5.feed_forward.*
    """
    of_all, of_these = (Counter(prefix for name in each for prefix in _prefixes(name)) for each in (among, names))
    layers: dict[str, list[int]] = {}
    for name in names:
        prefix = next(prefix for prefix in _prefixes(name) if of_these[prefix] == of_all[prefix])
        pattern = name if prefix == name else f"{prefix}.*"
        found = layers.setdefault(_LAYER.sub("{}", pattern, count=1), [])
        found += {int(number) for number in _LAYER.findall(pattern)[:1]}.difference(found)
    return [pattern.format(_ranges(numbers)) for pattern, numbers in layers.items()]


def _prefixes(name: str) -> Iterator[str]:
    """a.b.c → a, a.b, a.b.c"""
    return accumulate(name.split("."), lambda before, word: f"{before}.{word}")


def _ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 → 0-2,5"""
    rows = (list(row) for _, row in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]))
    return ",".join(str(row[0][1]) if len(row) == 1 else f"{row[0][1]}-{row[-1][1]}" for row in rows)
