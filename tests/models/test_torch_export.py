"""Exported programs equal the model at other batch sizes and lengths."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import sixfold
from sixfold.core.memory import Memory

BATCH, SOURCE, TARGET = Dim("batch", min=1, max=64), Dim("source", min=1, max=64), Dim("target", min=1, max=64)


class Encoder(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, source: Tensor) -> Tensor:
        return self.model.encode(source).states[-1]


class Decoder(Encoder):
    def forward(self, ids: Tensor, states: Tensor, real: Tensor) -> Tensor:
        memory = Memory((states,) * self.model.sizes.decoder_layers, real)
        return self.model.log_probs(self.model.decode(ids, memory))


class LanguageModel(Encoder):
    def forward(self, ids: Tensor) -> Tensor:
        return self.model.log_probs(self.model.decode(ids))


class Words(Encoder):
    def forward(self, ids: Tensor) -> Tensor:
        return self.model.log_probs(self.model.encode(ids))


class Classes(Encoder):
    def forward(self, ids: Tensor) -> Tensor:
        return self.model.classify(ids)


def ids(lengths: list[int], width: int) -> Tensor:
    """Rows of so many words, padded to one width."""
    made = torch.randint(3, 17, (len(lengths), width), generator=torch.Generator().manual_seed(width))
    return made.masked_fill(torch.arange(width) >= torch.tensor(lengths)[:, None], 0)


def model_of(modifications: list[str], kind: str = "encoder_decoder", classes: int = 0) -> nn.Module:
    sizes = sixfold.Sizes(d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=1, vocab=17, classes=classes)
    return sixfold.build(sizes, modifications, kind, seed=1).eval()


OTHERS = [
    ids([6, 6, 6], 6),
    ids([7, 2, 5, 1], 7),
    ids([1, 2], 11),
    ids([3], 3),
    ids([1, 1, 1, 1], 1),
]  # none of the traced size
POSITIONS = pytest.mark.parametrize("position", ["vanilla", "rotary", "t5_bias", "shaw", "learned_positions"])


def modifications(position: str) -> list[str]:
    return [] if position == "vanilla" else [position]


def close(a: Tensor, b: Tensor, real: Tensor) -> None:
    torch.testing.assert_close(a[real], b[real], rtol=1e-5, atol=1e-5)


@POSITIONS
@torch.no_grad()
def test_an_exported_encoder_equals_the_model(position):
    encoder = Encoder(model_of(modifications(position)))
    program = torch.export.export(encoder, (ids([4, 3], 4),), dynamic_shapes=({0: BATCH, 1: SOURCE},)).module()
    for source in OTHERS:
        close(program(source), encoder(source), source != 0)


@POSITIONS
@torch.no_grad()
def test_an_exported_decoder_equals_the_model(position):
    model = model_of(modifications(position))
    decoder = Decoder(model)
    source = ids([4, 3], 4)
    program = torch.export.export(
        decoder,
        (ids([5, 2], 5), model.encode(source).states[-1], source != 0),
        dynamic_shapes=({0: BATCH, 1: TARGET}, {0: BATCH, 1: SOURCE}, {0: BATCH, 1: SOURCE}),
    ).module()
    for source in OTHERS:
        target = ids([3, 1, 8, 2][: len(source)], 8 if len(source) > 1 else 1)
        memory = model.encode(source)
        close(
            program(target, memory.states[-1], source != 0), model.log_probs(model.decode(target, memory)), target != 0
        )


@torch.no_grad()
@pytest.mark.parametrize(("kind", "wrapper"), [("decoder_only", LanguageModel), ("encoder_only", Words)])
def test_an_exported_model_of_one_stack_equals_the_model(kind, wrapper):
    whole = wrapper(model_of([], kind))
    program = torch.export.export(whole, (ids([4, 3], 4),), dynamic_shapes=({0: BATCH, 1: TARGET},)).module()
    for text in [*OTHERS, ids([5, 2], 5).flip(1)]:  # padding may stand before the text, too
        close(program(text), whole(text), text != 0)


@torch.no_grad()
def test_an_exported_classifier_equals_the_model():
    whole = Classes(model_of([], "encoder_only", classes=3))
    program = torch.export.export(whole, (ids([4, 3], 4),), dynamic_shapes=({0: BATCH, 1: TARGET},)).module()
    for text in OTHERS:
        torch.testing.assert_close(program(text), whole(text), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_exported_learned_positions_refuse_what_the_model_refuses():
    encoder = Encoder(model_of(["learned_positions:length=6"]))
    length = Dim("length", min=1, max=6)
    program = torch.export.export(encoder, (ids([4, 3], 4),), dynamic_shapes=({0: BATCH, 1: length},)).module()
    close(program(ids([6, 2, 1], 6)), encoder(ids([6, 2, 1], 6)), ids([6, 2, 1], 6) != 0)
    with pytest.raises(ValueError, match="7 positions"):
        encoder(ids([7], 7))
    with pytest.raises(AssertionError):
        program(ids([7, 7], 7))
