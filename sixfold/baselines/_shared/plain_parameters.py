"""Parameters of the plain Transformer's stacks, which a baseline replaces."""

from __future__ import annotations

from sixfold.core.place import Sizes


def plain_stacks(sizes: Sizes) -> int:
    """Parameters of the plain encoder and decoder, without their tables."""
    return plain_encoder(sizes) + plain_decoder(sizes)


def plain_encoder(sizes: Sizes) -> int:
    """Parameters of the plain encoder, without its table."""
    return sizes.encoder_layers * (_attention(sizes) + _feed_forward(sizes) + 2 * _norm(sizes)) + _norm(sizes)


def plain_decoder(sizes: Sizes) -> int:
    """Parameters of the plain decoder, without its table."""
    return sizes.decoder_layers * (2 * _attention(sizes) + _feed_forward(sizes) + 3 * _norm(sizes)) + _norm(sizes)


def _attention(sizes: Sizes) -> int:
    return 4 * sizes.d_model * sizes.heads * sizes.d_head


def _feed_forward(sizes: Sizes) -> int:
    return 2 * sizes.d_model * sizes.d_ff + sizes.d_ff + sizes.d_model


def _norm(sizes: Sizes) -> int:
    return 2 * sizes.d_model
