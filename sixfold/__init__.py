"""sixfold: the Transformer as a complete piece of software.

>>> import sixfold
>>> sixfold.load("runs/mine").translate(["a line of text"], beam_size=4)
>>> model = sixfold.build(sixfold.Sizes(vocab=8000), modifications=["rotary"])
>>> memory = model.encode(source_ids)
>>> model.log_probs(model.decode(target_ids, memory))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from sixfold.api.load import load
    from sixfold.config.files import read_config
    from sixfold.core.batch import Batch, Losses, Term
    from sixfold.core.ids import BOS, EOS, PAD
    from sixfold.core.parts import ModelPart
    from sixfold.core.place import Place, Sizes
    from sixfold.core.state import Cache
    from sixfold.core.tap import Tap
    from sixfold.models.build import build
    from sixfold.models.decoder_only import DecoderOnly
    from sixfold.models.encoder_decoder import EncoderDecoder
    from sixfold.models.encoder_only import EncoderOnly
    from sixfold.runs.model_files import load as load_model
    from sixfold.runs.model_files import save
    from sixfold.spec.registry import all_modifications, import_file, modification
    from sixfold.spec.spec import Spec
    from sixfold.tasks.task import Task
    from sixfold.training.observers.observer import Observer
    from sixfold.training.runner import prepare, train
    from sixfold.verify.contract.part import check_part

# Where each public name lives. They are imported on first use, so that `sixfold --help` need not wait for torch.
_HOME = {
    "api.load": ("load",),
    "config.files": ("read_config",),
    "core.batch": ("Batch", "Losses", "Term"),
    "core.ids": ("BOS", "EOS", "PAD"),
    "core.parts": ("ModelPart",),
    "core.place": ("Place", "Sizes"),
    "core.state": ("Cache",),
    "core.tap": ("Tap",),
    "models.build": ("build",),
    "models.decoder_only": ("DecoderOnly",),
    "models.encoder_decoder": ("EncoderDecoder",),
    "models.encoder_only": ("EncoderOnly",),
    "runs.model_files": ("load_model", "save"),
    "spec.registry": ("all_modifications", "import_file", "modification"),
    "spec.spec": ("Spec",),
    "tasks.task": ("Task",),
    "training.observers.observer": ("Observer",),
    "training.runner": ("prepare", "train"),
    "verify.contract.part": ("check_part",),
}
_NAME_THERE = {"load_model": "load"}  # where it differs
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "BOS",
    "EOS",
    "PAD",
    "Batch",
    "Cache",
    "DecoderOnly",
    "EncoderDecoder",
    "EncoderOnly",
    "Losses",
    "ModelPart",
    "Observer",
    "Place",
    "Sizes",
    "Spec",
    "Tap",
    "Task",
    "Term",
    "all_modifications",
    "build",
    "check_part",
    "import_file",
    "load",
    "load_model",
    "modification",
    "prepare",
    "read_config",
    "save",
    "train",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"sixfold.{_MODULE_OF[name]}"), _NAME_THERE.get(name, name))
    raise AttributeError(f"sixfold has no {name!r}")
