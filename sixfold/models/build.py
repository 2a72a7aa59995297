"""Build a model of any kind with fresh weights."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from sixfold.core.drawing import drawing
from sixfold.core.init import SkipInitOnMeta
from sixfold.core.machine_memory import bytes_of, need_memory
from sixfold.core.names import unknown
from sixfold.core.place import Sizes
from sixfold.models.decoder_only import DecoderOnly
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.encoder_only import EncoderOnly
from sixfold.models.model import Model
from sixfold.spec.assemble import Assembly, outline, resized

MODELS: dict[str, type[Model]] = {model.kind: model for model in (EncoderDecoder, DecoderOnly, EncoderOnly)}
_SHOWN = 3  # names in a warning


def build(
    sizes: Sizes,
    modifications: Any = (),
    model: str = "encoder_decoder",
    *,
    device: torch.device | str | None = None,
    seed: int | None = None,
    like: Model | None = None,
) -> Any:
    """Build a model with fresh weights. `model` selects EncoderDecoder, DecoderOnly or EncoderOnly.

    >>> build(Sizes(vocab=8000), ["rotary", "t5_bias:buckets=16"], model="decoder_only", seed=1)

    On `device="meta"` it takes no memory, whatever its size. A `seed` fixes the weights: two models with the same seed
    are equal wherever they have a parameter of the same name, shape and distribution. Without a seed, torch's own
    generator draws one; with a seed, torch's random state is left unchanged. `like` is the same model with another
    vocabulary or number of classes: its checks are not repeated.
    """
    if not isinstance(model, str) or model not in MODELS:
        raise ValueError(unknown("model", str(model), MODELS))
    device = torch.device(device or torch.get_default_device())
    if like is None:
        assembly, built = outline(sizes, modifications, MODELS[model])
    else:
        assembly = resized(like.assembly, sizes, _bytes(like, sizes))
    if device.type == "cpu":
        need_memory(assembly.bytes)
    if like is not None or device.type != "meta":
        with device, SkipInitOnMeta():
            built = _drawn(MODELS[model], assembly, seed)
    built.assembly = assembly
    return built


def _bytes(like: Model, sizes: Sizes) -> int:
    """Bytes of the model `like` with another vocabulary: its tables grow in proportion."""
    tables = bytes_of(like.tables)
    words = (sizes.vocabulary("encoder") + sizes.vocabulary("decoder")) / (
        like.sizes.vocabulary("encoder") + like.sizes.vocabulary("decoder")
    )
    return bytes_of(like) - tables + int(tables * words)


def _drawn(kind: type[Model], assembly: Assembly, seed: int | None) -> Model:
    """A model whose weights are drawn by parameter name."""
    with drawing(seed, provisional=not assembly.own) as by_name:
        built = kind(assembly.spec)
    names = by_name.not_by_name
    if assembly.own:
        assert not names, f"no distribution is declared for {', '.join(names)}"
    elif names or by_name.drawn_by_init:
        warnings.warn(_advice(names), stacklevel=3)
    return built


def _advice(names: list[str]) -> str:
    """The warning about parameters that were not drawn by name; without names, the slot `init` drew."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    what = f"{', '.join(names[:_SHOWN])}{more}" if names else "weights in the slot 'init'"
    where = "in a constructor " if names else ""
    return (
        f"{what} were drawn {where}without a declared distribution: they are seeded, but depend on every earlier draw, "
        "so that another variant of this model starts with other values there; declare their distribution, as in "
        "sixfold.core.init.declare(self.output.weight, Normal(0.02)) (see docs/writing-a-modification.md)"
    )
