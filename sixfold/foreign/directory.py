"""Fills the directory of an export: the model, tokenizers, a description (export.json), and a README."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from sixfold.api.load import OpenedRun
from sixfold.core.ids import BOS, CONTROLS, EOS
from sixfold.decoding.session import never_written
from sixfold.foreign import ctranslate2 as to_ctranslate2
from sixfold.foreign import safetensors as to_safetensors
from sixfold.foreign import torch_program
from sixfold.foreign.agreement import CLOSE, Agreement, ExportedModel, compare, first_usable, sample
from sixfold.foreign.as_used import POOL, choose_lines, compare_as_used
from sixfold.foreign.decoding_settings import ctranslate2_options, not_carried
from sixfold.foreign.length_limits import WRITTEN, LengthLimits
from sixfold.foreign.readme import readme
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.text.tokenizer import Tokenizers

ExportFormat = Literal["ctranslate2", "safetensors", "torch"]
FORMAT, ABOUT, README = "sixfold-export-1", "export.json", "README.md"


def write(
    opened: OpenedRun,
    run: Run,
    to: ExportFormat,
    folder: Path,
    quantization: str | None = None,
    lines: int = 100,
    texts: Iterable[str] | None = None,
) -> tuple[Agreement | None, tuple[str, ...]]:
    """Fill `folder`, and compare with the original. Without quantization, a difference beyond rounding is an error.

    → the agreement, and the settings of the run that are not carried over
    """
    model, tokenizers, config, _ = opened
    about: dict[str, Any] = {**model_files.describe(model), "format": FORMAT, "to": to, **_vocabulary(tokenizers)}
    exported: ExportedModel | None = None
    if to == "safetensors":
        to_safetensors.write(model, folder)
        about |= {"tables": to_safetensors.roles(model), "tokenizers": _contents(tokenizers)}
    else:
        exported = _write_exported(opened, to, folder, quantization, about)
        tokenizers.save(folder)
    _describe(folder, about)  # the README's program reads it during the comparison
    (folder / README).write_text(readme(to, model.reads_source, about), encoding="utf-8")
    missing = tuple(about.get("not_carried", ()))
    if exported is None or lines == 0:
        return None, missing
    if texts is None:
        pool = sample(run, model, tokenizers, config, POOL * lines)
    else:
        pool = first_usable(texts, model, tokenizers, POOL * lines)
    agreement = _compared(opened, pool, lines, exported, to, folder, strict=quantization in (None, "float32"))
    _describe(folder, {**about, "compared": agreement.json()})
    return agreement, missing


def _describe(folder: Path, about: Mapping[str, Any]) -> None:
    (folder / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_exported(
    opened: OpenedRun, to: ExportFormat, folder: Path, quantization: str | None, about: dict[str, Any]
) -> to_ctranslate2.CTranslate2Model | torch_program.TorchProgram:
    tokenizers, decoding = opened.tokenizers, opened.config.decoding
    never = never_written(tokenizers.target)
    model = opened.model.float().eval()
    about["tokenizers"] = _files(tokenizers)
    about["decoding"] = decoding.model_dump(mode="json")
    about["not_carried"] = not_carried(to, decoding, tokenizers.target.spells, quantization)
    if to == "torch":
        layout = torch_program.write(model, folder)
        exported = torch_program.TorchProgram(folder, model, layout, never)
        about |= {"never": list(never), "past": torch_program.shapes(exported.empty), "limits": dict(model.limits)}
        about["room"] = LengthLimits.of(model.limits, decoding.max_length, decoding.max_source)._asdict()
        return exported
    about["quantization"] = "float32" if quantization is None else quantization
    to_ctranslate2.write(model, tokenizers, folder, about["quantization"])
    about["limits"] = to_ctranslate2.limits(model)
    room = LengthLimits.of(about["limits"], decoding.max_length, decoding.max_source)
    about["room"], names = room._asdict(), tokenizers.target.names()
    about["options"] = ctranslate2_options(decoding, model.reads_source, [names[id_] for id_ in never], room)
    about["versions"]["ctranslate2"] = version("ctranslate2")
    return to_ctranslate2.CTranslate2Model(folder, model.reads_source, tokenizers, never)


def _compared(
    opened: OpenedRun,
    pool: list[str],
    number: int,
    exported: ExportedModel,
    to: ExportFormat,
    folder: Path,
    *,
    strict: bool,
) -> Agreement:
    """On `number` lines of the pool, compare the exported model with the original, then the README's program with the
    run."""
    model, tokenizers, *_ = opened
    lines = choose_lines(opened, pool, number)
    if not lines:
        raise ValueError("there is no text to compare on: every line of the file is empty or too long")
    longest = LengthLimits.of(model.limits, min(WRITTEN, max(1, *(line.tokens for line in lines)))).written
    agreement = compare(model, tokenizers, [line.text for line in lines], longest, exported)
    if strict and not agreement.close:
        raise ValueError(
            f"the exported model does not agree with the original, so it was not written: {agreement.same} of "
            f"{agreement.texts} texts are the same, log-probabilities differ by up to {agreement.log_prob:.2g}, and "
            f"different words lose up to {agreement.gap:.2g} in log p (rounding explains {CLOSE:g}); please report this"
        )
    return replace(agreement, as_used=compare_as_used(opened, lines, to, folder))


def _vocabulary(tokenizers: Tokenizers) -> dict[str, Any]:
    """The ids of control tokens, with their names in the target tokenizer's file."""
    names = tokenizers.target.names()
    return {"controls": {CONTROLS[id_]: {"id": id_, "name": names[id_]} for id_ in CONTROLS}, "bos": BOS, "eos": EOS}


def _files(tokenizers: Tokenizers) -> dict[str, str]:
    if tokenizers.joint:
        return dict.fromkeys(("source", "target"), "tokenizer.json")
    return {side: f"{side}.tokenizer.json" for side in ("source", "target")}


def _contents(tokenizers: Tokenizers) -> dict[str, Any]:
    """The content of the tokenizer files. A joint tokenizer is stored once, as the target's."""
    target = {"target": json.loads(tokenizers.target.text)}
    return target if tokenizers.joint else {"source": json.loads(tokenizers.source.text), **target}
