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

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sixfold.call import BOS, EOS, PAD
    from sixfold.decoding.cache import Cache
    from sixfold.loading import load
    from sixfold.models import Batch, DecoderOnly, EncoderDecoder, EncoderOnly, Losses, build
    from sixfold.registry import all_modifications, import_file, modification
    from sixfold.spec import Place, Sizes, Spec
    from sixfold.store import load as load_model
    from sixfold.store import save
    from sixfold.tap import Tap

# Where each public name lives. They are imported on first use, so that `sixfold --help` need not wait for torch.
_HOME = {
    "call": ("BOS", "EOS", "PAD"),
    "decoding.cache": ("Cache",),
    "loading": ("load",),
    "models": ("Batch", "DecoderOnly", "EncoderDecoder", "EncoderOnly", "Losses", "build"),
    "registry": ("all_modifications", "import_file", "modification"),
    "spec": ("Place", "Sizes", "Spec"),
    "store": ("load_model", "save"),
    "tap": ("Tap",),
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
    "Place",
    "Sizes",
    "Spec",
    "Tap",
    "all_modifications",
    "build",
    "import_file",
    "load",
    "load_model",
    "modification",
    "save",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"sixfold.{_MODULE_OF[name]}"), _NAME_THERE.get(name, name))
    raise AttributeError(f"sixfold has no {name!r}")
