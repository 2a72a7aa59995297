"""Writes a model as a directory that CTranslate2 (a C++ engine) loads: CTranslate2's specification with our weights.

recognise.py refuses models that CTranslate2 can't express. Four steps make it the same model:

- Sinusoids are written as a table, since the engine's own have other frequencies. Beyond its rows the engine throws.
- The T5 bias is written with a bucket for each distance up to `max_distance`, so that the engine's logarithms, which
  round differently, have no effect. A model without positions gets a T5 bias of zeros, which has no length limit.
- The head width is always written: without it the engine divides the model's width by the heads, loads, and computes
  silently wrong results.
- ReZero's α is multiplied into the last matrix of its branch; a table of two factors is written as their product.

Letters: V words, D model width, H heads, K head width, R distances.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sixfold.core import forms
from sixfold.core.call import Call
from sixfold.core.ids import BOS, CONTROLS, EOS, UNK
from sixfold.core.masks import LazySight, Sight
from sixfold.core.names import to_install
from sixfold.core.parts import form_of
from sixfold.foreign.recognise import Layer, Recognised, branch_scale, recognise, table_of
from sixfold.models.model import Model
from sixfold.modifications.t5_bias import bucket
from sixfold.text.tokenizer import Tokenizers
from sixfold.transformer import Position

ROWS = 4096  # positions in the table of sinusoids
QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")


def engine() -> Any:
    """The package ctranslate2, if it is installed."""
    try:
        return importlib.import_module("ctranslate2")
    except ImportError:
        raise ValueError(f"this needs the package ctranslate2: {to_install('export')}") from None


def write(model: Model, tokenizers: Tokenizers, folder: Path, quantization: str = "float32", rows: int = ROWS) -> None:
    """Fill `folder` with model.bin, config.json and the vocabularies."""
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"there is no quantization {quantization!r}; there are {', '.join(QUANTIZATIONS)}")
    spec = specification(model, tokenizers, rows)
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def limits(model: Model, rows: int = ROWS) -> dict[str, int]:
    """The most tokens, BOS or EOS among them, that each stack can read."""
    bounded = {name: rows for name, found in recognise(model).items() if isinstance(found.position, forms.SinusoidForm)}
    return {**bounded, **model.limits}


def vocabularies(tokenizers: Tokenizers) -> tuple[list[str], list[str]]:
    """The names of the source's and the target's ids, as in the tokenizer files, but with the target's control tokens.

    In the files, the names of control tokens contain the kind of the tokenizer, but the engine has one name for the end
    of source and target.
    """
    source, target = tokenizers.source.names(), tokenizers.target.names()
    return [*target[: len(CONTROLS)], *source[len(CONTROLS) :]], target


@torch.no_grad()
def specification(model: Model, tokenizers: Tokenizers, rows: int = ROWS) -> Any:
    """The filled specification."""
    stacks, specs = recognise(model), engine().specs
    tables = model.roles
    source, target = vocabularies(tokenizers)
    only = not model.reads_source
    decoder = _decoder(specs, stacks["only" if only else "decoder"], cross=not only, rows=rows)
    decoder.embeddings.weight = _array(table_of(tables["target"]))
    decoder.projection.weight = _array(table_of(tables["output"]))
    if only:
        spec = specs.TransformerDecoderModelSpec(decoder)
        spec.register_vocabulary(target)
    else:
        encoder = _encoder(specs, stacks["encoder"], rows)
        encoder.embeddings[0].weight = _array(table_of(tables["source"]))
        spec = specs.TransformerSpec(encoder, decoder)
        spec.register_source_vocabulary(source)
        spec.register_target_vocabulary(target)
        spec.config.decoder_start_token, spec.config.add_source_eos = target[BOS], True
    config = spec.config
    config.bos_token, config.eos_token, config.unk_token = target[BOS], target[EOS], target[UNK]
    config.layer_norm_epsilon = next(iter(stacks.values())).kind.epsilon
    return spec


def _encoder(specs: Any, stack: Recognised, rows: int) -> Any:
    encoder = specs.TransformerEncoderSpec(len(stack.layers), stack.kind.heads, **_arguments(stack))
    _fill(encoder, stack, rows)
    return encoder


def _decoder(specs: Any, stack: Recognised, cross: bool, rows: int) -> Any:
    arguments = _arguments(stack)
    if cross:  # the coverage penalty uses all heads of the layer that sixfold reads alignments from
        arguments |= {"alignment_layer": max(len(stack.layers) - 2, 0), "alignment_heads": stack.kind.heads}
    decoder = specs.TransformerDecoderSpec(
        len(stack.layers), stack.kind.heads, with_encoder_attention=cross, **arguments
    )
    _fill(decoder, stack, rows)
    return decoder


def _arguments(stack: Recognised) -> dict[str, Any]:
    """The arguments for the constructor of a stack's specification."""
    kind, position = stack.kind, stack.position
    arguments: dict[str, Any] = {
        "pre_norm": kind.pre_norm,
        "no_final_norm": stack.final is None,
        "activation": engine().specs.Activation[kind.activation],
        "ffn_glu": kind.gated,
        "rms_norm": kind.rms_norm,
        "head_dim": kind.d_head,
    }
    if isinstance(position, forms.RotaryForm):
        arguments |= {"rotary_dim": kind.d_head, "rotary_interleave": True, "rotary_base": position.base}
    elif isinstance(position, forms.ShawForm):
        arguments |= {"relative_position": True}
    elif not isinstance(position, forms.SinusoidForm | forms.LearnedPositionsForm):  # a T5 bias, or none: one of zeros
        arguments |= {"relative_attention_bias": True}
    return arguments


def _fill(spec: Any, stack: Recognised, rows: int) -> None:
    """Fill in the weights of a stack, except its word tables."""
    if isinstance(stack.position, forms.SinusoidForm):
        spec.position_encodings.encodings = _array(waves(stack.entrance, rows, stack.width))
    elif isinstance(stack.position, forms.LearnedPositionsForm):
        assert stack.position.table is not None
        spec.position_encodings.encodings = _array(stack.position.table)
    if stack.final is not None:
        _fill_norm(spec.layer_norm, stack.final)
    for place, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_layer(place, layer)
        _fill_position(place.self_attention, form_of(layer.attention.position), stack)


def _fill_layer(spec: Any, layer: Layer) -> None:
    attention, cross = layer.attention, layer.cross
    parts: list[tuple[Any, list[Any]]] = [(spec.self_attention, [attention.qkv, attention.output])]
    if cross is not None:
        parts.append((spec.attention, [cross.q, cross.kv, cross.output]))
        spec.attention.head_dim = np.dtype("int32").type(cross.output.weight.shape[1] // cross.heads)
    for (place, maps), residual in zip(parts, layer.residuals, strict=False):
        _fill_norm(place.layer_norm, residual.norm)
        weights = [linear.weight for linear in maps]
        for linear, weight in zip(place.linear, [*weights[:-1], branch_scale(residual) * weights[-1]], strict=True):
            linear.weight = _array(weight)
    _fill_feed_forward(spec.ffn, layer.feed_forward, layer.residuals[-1])


def _fill_feed_forward(spec: Any, feed_forward: Any, residual: Any) -> None:
    _fill_norm(spec.layer_norm, residual.norm)
    inner, outer = feed_forward.inner, feed_forward.outer
    first = [spec.linear_0, spec.linear_0_noact] if feed_forward.gated else [spec.linear_0]
    for place, weight, bias in zip(first, inner.weight.chunk(len(first)), inner.bias.chunk(len(first)), strict=True):
        place.weight, place.bias = _array(weight), _array(bias)
    scale = branch_scale(residual)
    spec.linear_1.weight, spec.linear_1.bias = _array(scale * outer.weight), _array(scale * outer.bias)


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma = _array(norm.weight)
    if norm.bias is not None:
        spec.beta = _array(norm.bias)


def _fill_position(spec: Any, position: Any, stack: Recognised) -> None:
    """Fill in the position weights of a layer's self-attention."""
    if isinstance(position, forms.ShawForm):
        assert position.keys is not None
        assert position.to_values is not None
        spec.relative_position_keys = _array(position.keys[0])  # (R, K), from −distance to distance, as here
        spec.relative_position_values = _array(position.to_values[0])
    elif "relative_attention_bias" in vars(spec):
        bias, distance = _biases(position, stack)
        spec.relative_attention_bias = _array(bias)
        spec.relative_attention_max_distance = np.dtype("int32").type(distance)


def _biases(position: Any, stack: Recognised) -> tuple[Tensor, int]:
    """A T5 bias with a row for each distance, (buckets, H), and the distance from which the engine uses one bucket.

    The first half of the engine's buckets (in an encoder: of the buckets of each direction) are for distances 0, 1, 2,
    …; the other half divides larger distances by their logarithm, and gets the row of the largest distance throughout.
    """
    if not isinstance(position, forms.T5BiasForm):
        return torch.zeros(4, stack.kind.heads), 4  # the engine divides by log(4 / 2)
    near = position.max_distance
    reached = torch.arange(2 * near).clamp(max=near)  # the distance of each bucket of one direction
    distances = -reached if position.causal else torch.cat([-reached, reached])
    owner: Any = position if position.per_layer else stack.position
    buckets = bucket(distances, position.buckets, position.max_distance, position.causal)
    return owner.table[buckets], 2 * near


def waves(position: Position, rows: int, width: int) -> Tensor:
    """The vectors (rows, D) that the model itself adds at each position."""
    places = torch.arange(rows)[None]
    call = Call(positions=places, key_positions=places, lazy_sight=LazySight.of(Sight()), causal=False)
    return position.embed(torch.zeros(1, rows, width), call)[0]


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A copy, since ctranslate2 quantises arrays in place, and the model must not change."""
    return np.array(tensor.detach().cpu().float().numpy(), copy=True)


class CTranslate2Model:
    """Runs an exported directory with CTranslate2."""

    def __init__(self, folder: Path, reads_source: bool, tokenizers: Tokenizers, never: Sequence[int]):
        package, threads = engine(), torch.get_num_threads()
        loaded = package.Generator if not reads_source else package.Translator
        self.model = loaded(str(folder), device="cpu", intra_threads=threads)
        self.reads_source = reads_source
        self.source, self.target = vocabularies(tokenizers)
        self.ids: Mapping[str, int] = {name: id_ for id_, name in enumerate(self.target)}
        self.never = [[self.target[id_]] for id_ in never]

    def greedy(self, rows: list[list[int]], limit: int) -> list[list[int]]:
        """The greedy output for each row, without EOS. A row is a source without EOS, or a prompt without BOS."""
        arguments: dict[str, Any] = {"beam_size": 1, "suppress_sequences": self.never, "max_batch_size": 32}
        if not self.reads_source:
            prompts = [[self.target[id_] for id_ in (BOS, *row)] for row in rows]
            found = self.model.generate_batch(
                prompts, max_length=limit, min_length=0, sampling_topk=1, include_prompt_in_result=False, **arguments
            )
            return [list(each.sequences_ids[0]) for each in found]
        found = self.model.translate_batch(
            self._sources(rows), max_decoding_length=limit, min_decoding_length=0, max_input_length=0, **arguments
        )
        return [[self.ids[token] for token in each.hypotheses[0]] for each in found]

    def log_probs(self, rows: list[list[int]], outputs: list[list[int]]) -> list[list[float]]:
        """The log-probability of each token of each output, and of EOS after it."""
        if not self.reads_source:
            texts = [[BOS, *row, *output, EOS] for row, output in zip(rows, outputs, strict=True)]
            named = [[self.target[id_] for id_ in text] for text in texts]
            scored = self.model.score_batch(named, max_input_length=0, max_batch_size=32)
            return [list(each.log_probs[len(row) :]) for row, each in zip(rows, scored, strict=True)]
        targets = [[self.target[id_] for id_ in output] for output in outputs]
        scored = self.model.score_batch(self._sources(rows), targets, max_input_length=0, max_batch_size=32)
        return [list(each.log_probs) for each in scored]

    def _sources(self, rows: list[list[int]]) -> list[list[str]]:
        return [[self.source[id_] for id_ in row] for row in rows]
