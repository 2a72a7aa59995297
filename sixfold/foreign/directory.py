"""What goes into the directory of an export: the form itself, tokenizers, a description, and how to use it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from sixfold.api.load import OpenedRun
from sixfold.core.ids import BOS, EOS
from sixfold.decoding.session import never_written
from sixfold.foreign import ctranslate2 as to_ctranslate2
from sixfold.foreign import safetensors as to_safetensors
from sixfold.foreign import torch_program
from sixfold.foreign.agreement import CLOSE, Agreement, Engine, compare, fitting, sample
from sixfold.foreign.length_limits import WRITTEN, LengthLimits
from sixfold.foreign.readme import readme
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.text.tokenizer import CONTROLS, Tokenizers

Form = Literal["ctranslate2", "safetensors", "torch"]
FORMAT, ABOUT, README = "sixfold-export-1", "export.json", "README.md"


def write(
    opened: OpenedRun,
    run: Run,
    to: Form,
    folder: Path,
    quantization: str | None = None,
    lines: int = 100,
    texts: Iterable[str] | None = None,
) -> Agreement | None:
    """Fill `folder`, and compare. Without quantization, a difference beyond rounding is an error."""
    model, tokenizers, config = opened
    about: dict[str, Any] = {**model_files.describe(model), "format": FORMAT, "to": to, **_vocabulary(tokenizers)}
    engine: Engine | None = None
    if to == "safetensors":
        to_safetensors.write(model, folder)
        about |= {"tables": to_safetensors.roles(model), "tokenizers": _contents(tokenizers)}
    else:
        engine = _write_engine(opened, to, folder, quantization, about)
        tokenizers.save(folder)
    agreement = None
    if engine is not None and lines > 0:
        if texts is None:
            chosen = sample(run, model, tokenizers, config, lines)
        else:
            chosen = fitting(texts, model, tokenizers, lines)
        agreement = _compared(opened, chosen, engine, strict=quantization in (None, "float32"))
        about["compared"] = agreement.json()
    (folder / ABOUT).write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / README).write_text(readme(to, model.kind), encoding="utf-8")
    return agreement


def _write_engine(
    opened: OpenedRun, to: Form, folder: Path, quantization: str | None, about: dict[str, Any]
) -> to_ctranslate2.CTranslate2Engine | torch_program.TorchEngine:
    tokenizers, said = opened.tokenizers, never_written(opened.tokenizers.target)
    model = opened.model.float().eval()
    about["tokenizers"] = _files(tokenizers)
    if to == "torch":
        layout = torch_program.write(model, folder)
        engine = torch_program.TorchEngine(folder, model, layout, said)
        about |= {"never": list(said), "past": torch_program.shapes(engine.empty)}
        about["room"] = LengthLimits.of(model.limits)._asdict()
        return engine
    about["quantization"] = "float32" if quantization is None else quantization
    to_ctranslate2.write(model, tokenizers, folder, about["quantization"])
    about["limits"] = to_ctranslate2.limits(model)
    about["room"] = LengthLimits.of(about["limits"])._asdict()
    about["options"] = to_ctranslate2.options(model, tokenizers, said, WRITTEN)
    about["versions"]["ctranslate2"] = version("ctranslate2")
    return to_ctranslate2.CTranslate2Engine(folder, model.kind, tokenizers, said)


def _compared(opened: OpenedRun, texts: list[str], engine: Engine, strict: bool) -> Agreement:
    if not texts:
        raise ValueError(
            "there is no text to compare both engines on: the file has no line that is neither empty nor long"
        )
    model, tokenizers, config = opened
    longest = LengthLimits.of(model.limits, min(WRITTEN, config.decoding.max_length)).written
    agreement = compare(model, tokenizers, texts, longest, engine)
    if strict and not agreement.close:
        raise ValueError(
            f"the exported model does not do what the original does, and was not written: {agreement.same} of "
            f"{agreement.texts} texts are the same, log-probabilities differ by {agreement.log_prob:.2g}, and "
            f"other words are {agreement.gap:.2g} less likely (rounding explains {CLOSE:g}); please report this"
        )
    return agreement


def _vocabulary(tokenizers: Tokenizers) -> dict[str, Any]:
    """The ids that control a model, and what the target's file calls them."""
    names = tokenizers.target.names()
    return {"controls": {CONTROLS[id_]: {"id": id_, "name": names[id_]} for id_ in CONTROLS}, "bos": BOS, "eos": EOS}


def _files(tokenizers: Tokenizers) -> dict[str, str]:
    if tokenizers.joint:
        return dict.fromkeys(("source", "target"), "tokenizer.json")
    return {side: f"{side}.tokenizer.json" for side in ("source", "target")}


def _contents(tokenizers: Tokenizers) -> dict[str, Any]:
    """Where both are one, there is no source."""
    target = {"target": json.loads(tokenizers.target.text)}
    return target if tokenizers.joint else {"source": json.loads(tokenizers.source.text), **target}
