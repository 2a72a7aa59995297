"""The rows of "Do Transformer Modifications Transfer Across Implementations and Applications?" (arXiv 2102.11972).

Each row has its published name, the sizes in which it differs from the baseline, its modifications as the study ran
them, and the published numbers. The baseline has T5's relative bias; rows whose self-attention has no scores leave it
out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sixfold.core.place import Sizes

BASELINE = Sizes(
    vocab=32128, d_model=768, d_ff=3072, heads=12, d_head=64, encoder_layers=12, decoder_layers=12, dropout=0.0
)
SOURCE_LENGTH, TARGET_LENGTH, BATCH = 512, 114, 128  # one batch of span corruption


@dataclass(frozen=True)
class StudyRow:
    """One line of the study's table."""

    name: str
    parameters: float  # as published, in millions
    operations: float  # as published, in 10¹² multiply-accumulates for a batch
    modifications: tuple[str, ...] = ()
    changes: Mapping[str, int] = field(default_factory=dict)
    positions: bool = True  # whether it keeps the relative bias

    @property
    def sizes(self) -> Sizes:
        return replace(BASELINE, **self.changes)

    @property
    def all_modifications(self) -> tuple[str, ...]:
        return (*(("t5_bias",) if self.positions else ("no_positions",)), *self.modifications)


def _gated(name: str, options: str = "") -> StudyRow:
    """Three matrices instead of two: with two thirds of the width, the number of weights stays the same."""
    return StudyRow(name, 223, 11.1, (name.lower() + options,), {"d_ff": 2048})


def _shape(layers: int, d_ff: int, heads: int, parameters: float) -> StudyRow:
    changes = {"encoder_layers": layers, "decoder_layers": layers, "d_ff": d_ff, "heads": heads}
    return StudyRow(f"{layers} layers, d_ff = {d_ff}, H = {heads}", parameters, 11.1, changes=changes)


def _synthesizer(name: str, modification: str, parameters: float, operations: float) -> StudyRow:
    """The study's text has 12 heads of 64, but its counts fit only 8 heads of 128 in self-attention."""
    modifications = (modification, "cross_heads:heads=12,d_head=64")
    return StudyRow(f"Synthesizer ({name})", parameters, operations, modifications, {"heads": 8, "d_head": 128})


ROWS = (
    StudyRow("Vanilla Transformer", 223, 11.1),
    StudyRow("GeLU", 223, 11.1, ("gelu:form=tanh",)),
    StudyRow("Swish", 223, 11.1, ("swish",)),
    StudyRow("ELU", 223, 11.1, ("elu",)),
    _gated("GLU"),
    _gated("GeGLU", ":form=tanh"),
    _gated("ReGLU"),
    StudyRow("SeLU", 223, 11.1, ("selu",)),
    _gated("SwiGLU"),
    _gated("LiGLU"),
    StudyRow("Sigmoid", 223, 11.1, ("sigmoid",)),
    StudyRow("Softplus", 223, 11.1, ("softplus",)),
    StudyRow("RMS Norm", 223, 11.1, ("rms_norm:fraction=0.0675",)),
    StudyRow("Rezero", 223, 11.1, ("rezero",)),
    StudyRow("Rezero + LayerNorm", 223, 11.1, ("rezero_layer_norm",)),
    StudyRow("Rezero + RMS Norm", 223, 11.1, ("rezero_rms_norm",)),
    StudyRow("Fixup", 223, 11.1, ("fixup_study",)),
    _shape(24, 1536, 6, 224),
    _shape(18, 2048, 8, 223),
    _shape(8, 4608, 18, 223),
    _shape(6, 6144, 24, 223),
    StudyRow("Block sharing", 65, 11.1, ("block_sharing", "tied_inputs")),
    StudyRow("Block sharing + Factorized embeddings", 45, 9.4, ("block_sharing", "factorized_embedding")),
    StudyRow(
        "Block sharing + Factorized & shared embeddings", 20, 9.1, ("block_sharing", "factorized_shared_embedding")
    ),
    StudyRow("Encoder only block sharing", 170, 11.1, ("block_sharing:stacks=encoder", "tied_inputs")),
    StudyRow("Decoder only block sharing", 144, 11.1, ("block_sharing:stacks=decoder", "tied_inputs")),
    StudyRow("Factorized Embedding", 227, 9.4, ("factorized_embedding",)),
    StudyRow("Factorized & shared embeddings", 202, 9.1, ("factorized_shared_embedding",)),
    StudyRow("Tied encoder/decoder input embeddings", 248, 11.1, ("tied_inputs",)),
    StudyRow("Tied decoder input and output embeddings", 248, 11.1, ("tied_decoder",)),
    StudyRow("Untied embeddings", 273, 11.1, ("untied",)),
    StudyRow("Adaptive input embeddings", 204, 9.2, ("adaptive_input",)),
    StudyRow("Adaptive softmax", 204, 9.2, ("adaptive_softmax:sentinels=128",)),
    StudyRow("Adaptive softmax without projection", 223, 10.8, ("adaptive_softmax:projection=false,sentinels=128",)),
    StudyRow("Mixture of softmaxes", 232, 16.3, ("mixture_of_softmaxes",)),
    StudyRow("Transparent attention", 223, 11.1, ("transparent_attention",)),
    StudyRow("Dynamic convolution", 257, 11.8, ("dynamic_convolution_study",), {"d_ff": 512}, positions=False),
    StudyRow("Lightweight convolution", 224, 10.4, ("lightweight_convolution_study",), positions=False),
    StudyRow("Evolved Transformer", 217, 9.9, ("evolved_study",), {"encoder_layers": 6, "decoder_layers": 6}),
    _synthesizer("dense", "synthesizer_dense_study", 224, 11.4),
    _synthesizer("dense plus", "synthesizer_dense_plus_study", 243, 12.6),
    _synthesizer("dense plus alpha", "synthesizer_dense_plus_alpha_study", 243, 12.6),
    _synthesizer("factorized", "synthesizer_factorized_study", 207, 10.1),
    _synthesizer("random", "synthesizer_random", 254, 10.1),
    _synthesizer("random plus", "synthesizer_random_plus", 292, 12.0),
    _synthesizer("random plus alpha", "synthesizer_random_plus_alpha", 292, 12.0),
    StudyRow("Universal Transformer", 84, 40.0, ("universal_study", "tied_inputs")),
    StudyRow("Mixture of experts", 648, 11.7, ("mixture_of_experts:decoder_capacity=1.25",)),
    StudyRow("Switch Transformer", 1100, 11.7, ("switch:decoder_capacity=1.25",)),
    StudyRow("Funnel Transformer", 223, 1.9, ("funnel_study", "rms_norm:fraction=0.0675")),
    StudyRow("Weighted Transformer", 280, 71.0, ("weighted_study",)),
    StudyRow("Product key memory", 421, 386.6, ("product_keys",)),
)
