"""The largest value of each size of a model. A mistyped size is refused before any module is built."""

LARGEST = {
    "d_model": 65_536,
    "d_ff": 1_000_000,
    "heads": 4_096,
    "d_head": 65_536,
    "encoder_layers": 1_000,
    "decoder_layers": 1_000,
    "vocab": 10_000_000,
    "source_vocab": 10_000_000,
    "target_vocab": 10_000_000,
    "classes": 10_000_000,
}
