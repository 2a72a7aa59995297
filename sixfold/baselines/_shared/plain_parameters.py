"""Parameters of the plain Transformer's stacks, which a baseline replaces."""

from __future__ import annotations

from sixfold.core.place import Sizes


def plain_stacks(sizes: Sizes) -> int:
    """Parameters of the plain encoder and decoder, without their tables."""
    d, attention = sizes.d_model, 4 * sizes.d_model * sizes.heads * sizes.d_head
    feed_forward, norm = 2 * d * sizes.d_ff + sizes.d_ff + d, 2 * d
    encoder = sizes.encoder_layers * (attention + feed_forward + 2 * norm) + norm
    decoder = sizes.decoder_layers * (2 * attention + feed_forward + 3 * norm) + norm
    return encoder + decoder
