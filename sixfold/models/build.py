"""Make a model of any kind with fresh weights."""

from __future__ import annotations

from typing import Any

import torch

from sixfold.core.init import SkipInitOnMeta
from sixfold.core.machine_memory import need_memory
from sixfold.core.names import unknown
from sixfold.core.place import Sizes
from sixfold.models.decoder_only import DecoderOnly
from sixfold.models.encoder_decoder import EncoderDecoder
from sixfold.models.encoder_only import EncoderOnly
from sixfold.models.model import Model
from sixfold.spec.assemble import assemble

MODELS: dict[str, type[Model]] = {model.kind: model for model in (EncoderDecoder, DecoderOnly, EncoderOnly)}


def build(
    sizes: Sizes,
    modifications: Any = (),
    model: str = "encoder_decoder",
    *,
    device: torch.device | str | None = None,
    seed: int | None = None,
) -> Any:
    """Make a model with fresh weights: an EncoderDecoder, a DecoderOnly or an EncoderOnly, as `model` says.

    >>> build(Sizes(vocab=8000), ["rotary", "t5_bias:buckets=16"], model="decoder_only", seed=1)

    On `device="meta"` it takes no memory, whatever its size. A `seed` fixes the weights and leaves
    torch's own random state as it was.
    """
    if not isinstance(model, str) or model not in MODELS:
        raise ValueError(unknown("model", str(model), MODELS))
    assembly = assemble(sizes, modifications, MODELS[model])
    device = torch.device(device or torch.get_default_device())
    if device.type == "cpu":
        need_memory(assembly.bytes)
    with (
        torch.random.fork_rng(range(torch.cuda.device_count()), enabled=seed is not None),
        device,
        SkipInitOnMeta(),
    ):
        if seed is not None:
            torch.manual_seed(seed)
        built = MODELS[model](assembly.spec)
    built.assembly = assembly
    return built
