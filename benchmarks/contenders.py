"""The contenders of training_step.py: sixfold, and four others that train the same Transformer.

Same for all: layers, widths, heads, vocabulary, one table for source, target and output, relu,
sinusoidal positions, fused attention without a mask tensor (`is_causal` in the decoder), dropout on the
embeddings and on the output of each sub-layer and nowhere else, the mean cross-entropy of all target
tokens, AdamW. What a library cannot be told to do the same way stands in the docstring of its builder, here or in
sixfold/bench/peers.py.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from yardstick import Yardstick, sinusoid

from sixfold.bench.peer_models import marian, x_pair
from sixfold.bench.race import SEED, Contender
from sixfold.core.batch import Batch
from sixfold.core.place import Sizes
from sixfold.models.build import build

WORDS, ROWS, LENGTH = 8000, 64, 32
FIRST_WORD, BOS = 3, 1
RATE = 1e-5  # so low that the loss, and with it the arithmetic, stays as it is at the start


class Case(NamedTuple):
    """How large the models are, and how much they drop."""

    width: int
    layers: int  # of the encoder, and of the decoder
    heads: int
    dropout: float = 0.0

    @property
    def d_head(self) -> int:
        return self.width // self.heads


CASES = {"d128": Case(128, 4, 4), "d256": Case(256, 3, 4), "d512": Case(512, 6, 8)}


class Data(NamedTuple):
    """Ids without padding."""

    source: Tensor  # (ROWS, LENGTH)
    inputs: Tensor  # (ROWS, LENGTH): BOS, then all targets but the last
    targets: Tensor  # (ROWS, LENGTH)


def random_data() -> Data:
    generator = torch.Generator().manual_seed(SEED)
    source, targets = torch.randint(FIRST_WORD, WORDS, (2, ROWS, LENGTH), generator=generator)
    return Data(source, torch.cat([torch.full((ROWS, 1), BOS), targets[:, :-1]], dim=1), targets)


def contender(name: str, model: nn.Module, loss: Callable[[], Tensor]) -> Contender:
    """What is timed: forward, backward, optimiser step, and dropping the gradients."""
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=RATE, fused=True)

    def step() -> float:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.item()

    return Contender(name, step, sum(p.numel() for p in parameters))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens; logits are (rows, length, words)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def sizes_of(case: Case) -> Sizes:
    return Sizes(
        vocab=WORDS,
        d_model=case.width,
        d_ff=4 * case.width,
        heads=case.heads,
        encoder_layers=case.layers,
        decoder_layers=case.layers,
        dropout=case.dropout,
    )


def build_sixfold(case: Case, data: Data) -> Contender:
    """sixfold's vanilla encoder-decoder, called as a trainer calls it; it checks the ids at each step."""
    model = build(sizes_of(case), seed=SEED)
    batch = Batch(data.source, data.inputs, data.targets)

    def loss() -> Tensor:
        losses = model(batch)
        return losses.sum / losses.tokens + losses.auxiliary

    return contender("sixfold", model, loss)


def build_yardstick(case: Case, data: Data) -> Contender:
    """yardstick.py: the same operations as sixfold's, with PyTorch's own dropout and the logits held whole."""
    model = Yardstick(WORDS, case.width, case.heads, case.layers, case.dropout, LENGTH)
    return contender("yardstick", model, lambda: model(*data))


def build_marian(case: Case, data: Data) -> Contender:
    """See `marian` for in what it differs."""
    model = marian(sizes_of(case), LENGTH)

    def loss() -> Tensor:
        return model(input_ids=data.source, decoder_input_ids=data.inputs, labels=data.targets).loss

    return contender("marian", model, loss)


def build_x_transformers(case: Case, data: Data) -> Contender:
    """See `x_pair` and `x_stack` for in what it differs."""
    encoder, decoder = x_pair(sizes_of(case), LENGTH)

    def loss() -> Tensor:
        return cross_entropy(decoder(data.inputs, context=encoder(data.source)), data.targets)

    return contender("x-transformers", nn.ModuleList([encoder, decoder]), loss)


class AroundTransformer(nn.Module):
    """What torch.nn.Transformer lacks: a table, positions, the output, the loss."""

    def __init__(self, case: Case):
        super().__init__()
        self.table = nn.Embedding(WORDS, case.width)
        nn.init.normal_(self.table.weight, std=case.width**-0.5)
        self.dropout = nn.Dropout(case.dropout)
        self.transformer = nn.Transformer(
            d_model=case.width,
            nhead=case.heads,
            num_encoder_layers=case.layers,
            num_decoder_layers=case.layers,
            dim_feedforward=4 * case.width,
            dropout=case.dropout,
            activation="relu",
            batch_first=True,
            norm_first=True,
        )
        self.register_buffer("positions", sinusoid(LENGTH, case.width), persistent=False)
        self.register_buffer("future", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * math.sqrt(self.table.embedding_dim) + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        # With the hint, the mask is demanded but not used: the kernel is called with is_causal.
        x = self.transformer(self.embed(source), self.embed(inputs), tgt_mask=self.future, tgt_is_causal=True)
        return cross_entropy(F.linear(x, self.table.weight), targets)


def build_nn_transformer(case: Case, data: Data) -> Contender:
    """torch.nn.Transformer with a table and an output around it.

    It has one `dropout` for everything; that on attention weights and inside the feed-forward layer,
    which the others do not have, is switched off afterwards. (With dropout on its weights, PyTorch's
    attention on a CPU would not be fused.)

    Differs: biases in attention; rows and time transposed for attention and back, with copies of q, k and v.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor")  # of no concern in training
        model = AroundTransformer(case)
    for layer in model.modules():
        if isinstance(layer, nn.MultiheadAttention):
            layer.dropout = 0.0
        elif isinstance(layer, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            layer.dropout.p = 0.0  # between the two products of the feed-forward layer
    return contender("nn.Transformer", model, lambda: model(*data))


BUILDERS: dict[str, Callable[[Case, Data], Contender]] = {
    "sixfold": build_sixfold,
    "yardstick": build_yardstick,
    "marian": build_marian,
    "x-transformers": build_x_transformers,
    "nn.Transformer": build_nn_transformer,
}


def build_all(names: list[str], case: Case) -> list[Contender]:
    """The contenders that are installed, each from the same seed."""
    data, built = random_data(), []
    for name in names:
        torch.manual_seed(SEED)
        try:
            built.append(BUILDERS[name](case, data))
        except ModuleNotFoundError as error:
            print(f"{name}: left out, {error.name} is not installed (pip install -c constraints.txt -e .[bench])")
    return built
