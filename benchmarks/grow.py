"""A run whose model has twice the width and more layers than a trained one, and says nearly the same: for `--from`.

    python benchmarks/grow.py runs/small runs/grown --layers 6
    sixfold train recipe.yaml --from runs/grown --model.d_model 512 …

To train a wide model from the beginning takes days on a small machine; to go on with one that was grown, minutes. How
fast it is depends on its sizes alone, and how long its outputs are on what it has learned.

    width     each number of a state has a copy. Whoever reads it takes a random share from one, and the rest from the
              other: so the sum is the same, and the two learn different things
    waves     pair j of the small model's sinusoid is pair 2j of the large one's; so copies lie two further on. Theirs
              are of other frequencies, which is where the grown model differs
    layers    between those that were trained lie others, whose outputs are zeros as yet

Letters: I inputs, O outputs, V words, D the small model's width.
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from sixfold.config.files import write_config
from sixfold.models.build import build
from sixfold.models.model import Model
from sixfold.runs import model_files
from sixfold.runs.run import TOKENIZERS, Run


def twice(numbers: Tensor, dim: int, waves: bool) -> Tensor:
    """Everything twice: numbers of a state where their copies belong, others behind."""
    if not waves:
        return torch.cat([numbers, numbers], dim)
    pairs = numbers.unflatten(dim, (-1, 1, 2))
    return torch.cat([pairs, pairs], dim + 1).flatten(dim, dim + 2)


def shared_out(weight_OI: Tensor, waves: bool) -> Tensor:
    """(O, I) → (O, 2I): a random share for each of two copies."""
    share = torch.rand_like(weight_OI)
    both = torch.stack([weight_OI * share, weight_OI * (1 - share)])
    if not waves:
        return torch.cat([*both], 1)
    return torch.cat([each.unflatten(1, (-1, 1, 2)) for each in both], 2).flatten(1, 3)


def widened(name: str, weight: Tensor) -> Tensor:
    """A parameter of the large model, made of the small one's."""
    if weight.dim() == 1:  # a norm, or a bias
        return twice(weight, 0, waves="inner" not in name)
    if name.startswith("tables."):
        return twice(weight, 1, waves=True) / 2**0.5
    writes_states = name.endswith(("output.weight", "outer.weight"))
    if name.endswith(("qkv.weight", "kv.weight")):  # queries, keys and values each have twice as many heads
        parts = weight.chunk(3 if "qkv" in name else 2)
        return shared_out(torch.cat([twice(part, 0, False) for part in parts]), waves=True)
    return shared_out(twice(weight, 0, waves=writes_states), waves=not writes_states)


def silent(model: Model, layer: str) -> None:
    """Let a layer add nothing."""
    for name, parameter in model.named_parameters():
        if name.startswith(layer) and ("output." in name or "outer." in name):
            torch.nn.init.zeros_(parameter)


@torch.no_grad()
def grown(small: Model, layers: int) -> Model:
    torch.manual_seed(1)
    sizes, had = small.sizes, small.sizes.encoder_layers
    if small.assembly.modifications or small.kind != "encoder_decoder" or had != sizes.decoder_layers:
        raise SystemExit("only a plain encoder-decoder with as many layers on both sides can be grown")
    wider = replace(sizes, d_model=2 * sizes.d_model, d_ff=2 * sizes.d_ff, heads=2 * sizes.heads)
    large = build(replace(wider, encoder_layers=layers, decoder_layers=layers))
    place = {number: number * layers // had for number in range(had)}
    for stack in ("encoder", "decoder"):
        for number in set(range(layers)) - set(place.values()):
            silent(large, f"{stack}.layers.{number}.")
    state = large.state_dict()
    for name, weight in small.state_dict().items():
        parts = name.split(".")
        if "layers" in parts:
            at = parts.index("layers") + 1
            parts[at] = str(place[int(parts[at])])
        state[".".join(parts)].copy_(widened(name, weight))
    large.decoder.final.weight.div_(2**0.5)  # a sum over twice as many products of a table that is smaller by √2
    large.decoder.final.bias.div_(2**0.5)
    return large


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a trained run, of the plain Transformer")
    parser.add_argument("out", type=Path, help="a directory that is not there yet")
    parser.add_argument("--layers", type=int, default=6, help="of the encoder and of the decoder")
    options = parser.parse_args()
    config = Run(options.run).read_config()
    large = grown(model_files.load(options.run), options.layers)
    model_files.save(large, options.out)
    for name in TOKENIZERS:
        if (options.run / name).exists():
            shutil.copy(options.run / name, options.out / name)
    sizes = {key: getattr(large.sizes, key) for key in ("d_model", "d_ff", "heads")} | {"layers": options.layers}
    write_config(
        config.model_copy(update={"model": config.model.model_copy(update=sizes)}), options.out / "config.yaml"
    )


if __name__ == "__main__":
    main()
