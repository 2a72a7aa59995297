"""Transformers of other libraries, with the same weights if they have the same parts, otherwise with the same sizes."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sixfold.core import forms
from sixfold.core.ids import BOS, EOS, PAD
from sixfold.core.names import to_install
from sixfold.core.place import Sizes
from sixfold.foreign.ctranslate2 import waves
from sixfold.foreign.recognise import Inexpressible, Layer, Recognised, branch_scale, recognise
from sixfold.models.model import Model

_ACTIVATIONS = {"RELU": "relu", "GELU": "gelu", "GELUTanh": "gelu_new", "SWISH": "silu", "Sigmoid": "sigmoid"}
_EXTRA = {"ctranslate2": "export", "transformers": "bench", "x-transformers": "bench"}


def absence(name: str) -> str | None:
    """The reason why a peer can't take part; None if it is installed."""
    try:
        _library(name)
    except ImportError:
        return f"it is not installed ({to_install(_EXTRA[name])})"
    return None


def _library(name: str) -> Any:
    """Import an optional package, and silence its progress bars and advice."""
    library = importlib.import_module(name.replace("-", "_"))
    if name == "transformers":
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    return library


def marian(sizes: Sizes, length: int, activation: str = "relu") -> Any:
    """Hugging Face's MarianMTModel for at most `length` tokens, with random weights.

    Differs: norms after the residual sum, hence none at the end of a stack; biases in attention;
    q, k and v as three products; a constant bias added to the logits.
    """
    library = _library("transformers")
    return library.MarianMTModel(
        library.MarianConfig(
            decoder_vocab_size=sizes.vocabulary("decoder"),
            share_encoder_decoder_embeddings=sizes.joint,
            **_settings(sizes, length, activation),
        )
    )


def _settings(sizes: Sizes, length: int, activation: str) -> dict[str, Any]:
    """The configuration of Hugging Face's encoder-decoders."""
    both = {
        f"{stack}_{key}": value
        for stack in ("encoder", "decoder")
        for key, value in (("ffn_dim", sizes.d_ff), ("attention_heads", sizes.heads))
    }
    return {
        **both,
        "vocab_size": sizes.vocabulary("encoder"),
        "d_model": sizes.d_model,
        "encoder_layers": sizes.encoder_layers,
        "decoder_layers": sizes.decoder_layers,
        "activation_function": activation,
        "dropout": sizes.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "scale_embedding": True,
        "max_position_embeddings": length,
        "pad_token_id": PAD,
        "decoder_start_token_id": BOS,
        "eos_token_id": EOS,
        "forced_eos_token_id": EOS,
        "attn_implementation": "sdpa",
    }


def hugging_face(model: Model, length: int) -> Any:
    """The same model with the same weights from Hugging Face: Pegasus (pre-norm) or Marian (post-norm).

    Raises `Inexpressible` if Hugging Face lacks a part. Biases that sixfold lacks are zeros there.
    """
    stacks = recognise(model)
    _check(model, stacks)
    library, kind, sizes = _library("transformers"), stacks["encoder"].kind, model.sizes
    activation = _ACTIVATIONS[kind.activation]
    if kind.pre_norm:
        peer = library.PegasusForConditionalGeneration(library.PegasusConfig(**_settings(sizes, length, activation)))
    else:
        peer = marian(sizes, length, activation)
    with torch.no_grad():
        _fill(peer, model, stacks)
    return peer.eval()


def _check(model: Model, stacks: dict[str, Recognised]) -> None:
    sizes, tables = model.sizes, model.roles
    kinds = {stack.kind for stack in stacks.values()}
    (kind, *others) = kinds
    wrong = {
        f"a model of kind {model.kind}": not model.reads_source,
        "stacks that differ": bool(others),
        "RMS norms": kind.rms_norm,
        "gated feed-forward layers": kind.gated,
        "layers that are shared": any(len(set(map(id, s.layers))) < len(s.layers) for s in stacks.values()),
        f"heads of width {kind.d_head}": kind.d_head * kind.heads != sizes.d_model,
        "no norm at the end": kind.pre_norm and any(stack.final is None for stack in stacks.values()),
        "several tables": len({id(table) for table in tables.values()}) > 1,
    }
    other = [each for each in stacks.values() if not isinstance(each.position, forms.SinusoidForm)]
    wrong[", ".join(f"{type(each.entrance).__name__} for positions" for each in other[:1])] = bool(other)
    for what, is_so in wrong.items():
        if is_so:
            raise Inexpressible(f"neither its Pegasus nor its Marian has {what}")


def _fill(peer: Any, model: Model, stacks: dict[str, Recognised]) -> None:
    """Copy all weights."""
    body = peer.model
    shared = body.shared if hasattr(body, "shared") else body.encoder.embed_tokens
    shared.weight.copy_(model.roles["target"].weight)
    for name, stack in stacks.items():
        theirs = getattr(body, name)
        positions = theirs.embed_positions.weight
        positions.copy_(waves(stack.entrance, *positions.shape))
        if stack.final is not None:
            _fill_norm(theirs.layer_norm, stack.final)
        for mine, layer in zip(stack.layers, theirs.layers, strict=True):
            _fill_layer(layer, mine)


def _fill_layer(layer: Any, mine: Layer) -> None:
    attention, cross, inside = mine.attention, mine.cross, mine.feed_forward
    scales = [branch_scale(each) for each in mine.residuals]
    _fill_attention(layer.self_attn, attention.qkv.weight.chunk(3), scales[0] * attention.output.weight)
    places = [layer.self_attn_layer_norm, layer.final_layer_norm]
    if cross is not None:
        q_k_v = [cross.q.weight, *cross.kv.weight.chunk(2)]
        _fill_attention(layer.encoder_attn, q_k_v, scales[1] * cross.output.weight)
        places.insert(1, layer.encoder_attn_layer_norm)
    for place, residual in zip(places, mine.residuals, strict=True):
        _fill_norm(place, residual.norm)
    layer.fc1.weight.copy_(inside.inner.weight)
    layer.fc1.bias.copy_(inside.inner.bias)
    layer.fc2.weight.copy_(scales[-1] * inside.outer.weight)
    layer.fc2.bias.copy_(scales[-1] * inside.outer.bias)


def _fill_norm(place: Any, norm: Any) -> None:
    place.weight.copy_(norm.weight)
    place.bias.copy_(norm.bias)
    place.eps = norm.epsilon


def _fill_attention(attention: Any, q_k_v: Iterable[Tensor], output: Tensor) -> None:
    names = ("q_proj", "k_proj", "v_proj", "out_proj")
    for name, weight in zip(names, [*q_k_v, output], strict=True):
        getattr(attention, name).weight.copy_(weight)
        getattr(attention, name).bias.zero_()


def x_stack(sizes: Sizes, stack: str, length: int, **rest: Any) -> Any:
    """One stack of x-transformers with its table and positions: "encoder", "decoder", "only" (causal), "reader".

    Differs: norms without a bias, with the gain as a second operation; q, k and v as three products; q
    multiplied by 1 before the kernel; embeddings not multiplied by √D; positions computed at each step,
    with a learned factor. `layer_dropout` is stochastic depth: off.
    """
    library, reads = _library("x-transformers"), stack in ("encoder", "reader")
    layers = (library.Encoder if reads else library.Decoder)(
        dim=sizes.d_model,
        depth=sizes.encoder_layers if reads else sizes.decoder_layers,
        heads=sizes.heads,
        attn_dim_head=sizes.d_head,
        attn_flash=True,
        attn_dropout=0.0,
        attn_sublayer_dropout=sizes.dropout,
        ff_mult=sizes.d_ff / sizes.d_model,
        ff_custom_activation=nn.ReLU(),
        ff_dropout=0.0,
        ff_sublayer_dropout=sizes.dropout,
        layer_dropout=0.0,
        **({"cross_attend": True} if stack == "decoder" else {}),
    )
    return library.TransformerWrapper(
        num_tokens=sizes.vocabulary(stack),
        max_seq_len=length,
        attn_layers=layers,
        scaled_sinu_pos_emb=True,
        emb_dropout=sizes.dropout,
        **rest,
    )


def x_pair(sizes: Sizes, length: int) -> tuple[Any, Any]:
    """x-transformers' Encoder and Decoder, put together as its XTransformer puts them, with one table.

    XTransformer itself takes the softmax over a transposed axis, decodes one token that it then drops,
    and does not tie the output; its `tie_embedding` scales all logits in an extra pass. All of this would
    only cost it time, so the tied output is given as `to_logits`, and the loss is the usual one.
    """
    encoder = x_stack(sizes, "encoder", length, return_only_embed=True)
    output = nn.Linear(sizes.d_model, sizes.vocabulary("decoder"), bias=False)
    rest = {"to_logits": output}
    if sizes.joint:
        output.weight = encoder.token_emb.emb.weight
        rest["token_emb"] = encoder.token_emb
    return encoder, x_stack(sizes, "decoder", length, **rest)
