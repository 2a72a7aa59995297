"""The yardsticks of recurrent.py: two LSTM encoder-decoders in plain PyTorch, written by hand for this one purpose.

What a good engineer would write who needs these models and no others. They have the equations of sixfold's `bahdanau`
and `lstm`, and `copied` gives them the weights of one. Sources are packed if they have padding; without padding torch's
kernels read them as they are, which is faster. Texts end in padding (PAD).

Letters: B rows, L target length, n source length, D model width, V words, w hypotheses of a sentence.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from sixfold.core.ids import BOS, EOS, MASK, PAD

NEVER = torch.finfo(torch.float32).min


class Memory(NamedTuple):
    """What the decoder reads of the sources; the plain one reads none of it."""

    states: Tensor  # (B, n, 2D)
    keys: Tensor  # (B, n, D)
    padding: Tensor | None  # (B, n)


class State(NamedTuple):
    """The state of each decoder layer, (layers, B, D)."""

    h: Tensor
    c: Tensor


class Seq2Seq(nn.Module):
    """One table for source, target and output, and a bidirectional encoder of `units` in each direction."""

    def __init__(self, words: int, width: int, layers: int, dropout: float, units: int):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.dropout = nn.Dropout(dropout)
        between = dropout if layers > 1 else 0.0
        self.encoder = nn.LSTM(width, units, layers, batch_first=True, dropout=between, bidirectional=True)

    def embed(self, ids: Tensor) -> Tensor:
        return self.dropout(self.table(ids) * math.sqrt(self.table.embedding_dim))

    def read(self, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """→ the states of all tokens (B, n, 2·units), and h and c at the end, (2·layers, B, units)"""
        x, lengths = self.embed(source), (source != PAD).sum(1)
        if int(lengths.min()) == source.shape[1]:
            y, (h, c) = self.encoder(x)
        else:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            y, (h, c) = self.encoder(packed)
            y, _ = pad_packed_sequence(y, batch_first=True, total_length=source.shape[1])
        return self.dropout(y), h, c

    def encode(self, source: Tensor) -> tuple[Memory | None, State]:
        raise NotImplementedError

    def decode(self, ids: Tensor, memory: Memory | None, state: State) -> tuple[Tensor, State]:
        """Ids (B, L) → states (B, L, D), from which the next words are predicted, and the state after the last."""
        raise NotImplementedError

    def forward(self, source: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the target tokens."""
        x, _ = self.decode(inputs, *self.encode(source))
        logits = F.linear(x, self.table.weight)  # (B, L, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=PAD)


class PlainYardstick(Seq2Seq):
    """The decoder's layers start with the encoder's last states, and nothing else connects the two."""

    def __init__(self, words: int, width: int, layers: int, dropout: float):
        super().__init__(words, width, layers, dropout, width // 2)
        between = dropout if layers > 1 else 0.0
        self.decoder = nn.LSTM(width, width, layers, batch_first=True, dropout=between)

    def encode(self, source: Tensor) -> tuple[Memory | None, State]:
        _, *ends = self.read(source)
        h, c = (torch.cat([end[0::2], end[1::2]], -1) for end in ends)  # forwards and backwards, side by side
        return None, State(h, c)

    def decode(self, ids: Tensor, memory: Memory | None, state: State) -> tuple[Tensor, State]:
        y, (h, c) = self.decoder(self.embed(ids), state)
        return self.dropout(y), State(h, c)


class AttentiveYardstick(Seq2Seq):
    """The first decoder layer attends to the source before each word, with keys that are computed once."""

    def __init__(self, words: int, width: int, layers: int, dropout: float):
        super().__init__(words, width, layers, dropout, width)
        self.start = nn.Linear(width, layers * width, bias=False)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.cell = nn.LSTMCell(3 * width, width)
        between = dropout if layers > 2 else 0.0
        self.above = nn.LSTM(width, width, layers - 1, batch_first=True, dropout=between) if layers > 1 else None
        self.readout = nn.Linear(4 * width, width)

    def encode(self, source: Tensor) -> tuple[Memory | None, State]:
        states, h, _ = self.read(source)
        padding = source == PAD
        first = self.start(h[-1]).tanh().unflatten(-1, (-1, h.shape[-1])).transpose(0, 1).contiguous()
        memory = Memory(states, self.key(states), padding if bool(padding.any()) else None)
        return memory, State(first, torch.zeros_like(first))

    def attend(self, h: Tensor, memory: Memory) -> Tensor:
        """(B, D) → the context (B, 2D)"""
        scores = self.score(torch.tanh(self.query(h)[:, None] + memory.keys))[..., 0]  # (B, n)
        if memory.padding is not None:
            scores = scores.masked_fill(memory.padding, NEVER)
        return torch.bmm(scores.softmax(-1)[:, None], memory.states)[:, 0]

    def decode(self, ids: Tensor, memory: Memory | None, state: State) -> tuple[Tensor, State]:
        assert memory is not None
        x, outputs, contexts = self.embed(ids), [], []
        h, c = state.h[0], state.c[0]
        for word in x.unbind(1):
            context = self.attend(h, memory)
            h, c = self.cell(torch.cat([word, context], -1), (h, c))
            outputs.append(h)
            contexts.append(context)
        y, context = self.dropout(torch.stack(outputs, 1)), self.dropout(torch.stack(contexts, 1))
        hs, cs = h[None], c[None]
        if self.above is not None:
            y, (h_above, c_above) = self.above(y, (state.h[1:], state.c[1:]))
            y, hs, cs = self.dropout(y), torch.cat([hs, h_above]), torch.cat([cs, c_above])
        return self.readout(torch.cat([y, x, context], -1)).tanh(), State(hs, cs)


# The weights of sixfold's model -----------------------------------------------------------------------------


def copied(model: nn.Module, attentive: bool) -> Seq2Seq:
    """A yardstick with the weights of sixfold's `bahdanau` or `lstm`; torch's second bias is 0."""
    theirs, sizes = model.state_dict(), model.sizes
    kind = AttentiveYardstick if attentive else PlainYardstick
    yardstick = kind(sizes.vocab, sizes.d_model, sizes.encoder_layers, sizes.dropout)
    with torch.no_grad():
        for name, parameter in yardstick.named_parameters():
            parameter.copy_(_weight(name, theirs, sizes.encoder_layers))
    return yardstick


def _weight(name: str, theirs: dict[str, Tensor], layers: int) -> Tensor:
    """sixfold's weight for a parameter of this name."""
    own = {
        "table.weight": "tables.0.weight",
        "query.weight": "decoder.layers.0.cross.query.weight",
        "key.weight": "decoder.layers.0.cross.key.weight",
        "readout.weight": "decoder.readout.weight",
        "readout.bias": "decoder.readout.bias",
    }
    if name in own:
        return theirs[own[name]]
    if name == "score.weight":
        return theirs["decoder.layers.0.cross.score"][None]
    if name == "start.weight":
        return torch.cat([theirs[f"decoder.layers.{layer}.start.map.weight"] for layer in range(layers)])
    part, kind = name.split(".")  # such as encoder.weight_ih_l1_reverse
    kind, back = kind.removesuffix("_reverse"), kind.endswith("_reverse")
    kind, _, layer = kind.partition("_l")
    cells = {
        "encoder": f"encoder.layers.{layer}.cell.{'backwards' if back else 'forwards'}",
        "decoder": f"decoder.layers.{layer}.cell.forwards",
        "above": f"decoder.layers.{int(layer or 0) + 1}.cell.forwards",
        "cell": "decoder.layers.0.cell",
    }
    if kind == "bias_hh":
        return torch.zeros_like(theirs[f"{cells[part]}.bias"])
    ours = {"weight_ih": "input", "weight_hh": "recurrent", "bias_ih": "bias"}[kind]
    return theirs[f"{cells[part]}.{ours}"]


# Beam search ---------------------------------------------------------------------------------------------------


@torch.inference_mode()
def beam_search(model: Seq2Seq, source: Tensor, lengths: Tensor, width: int) -> list[list[int]]:
    """Write texts of these lengths (B,), and then EOS. → for each source the likeliest that was found

    h, c and the contexts' keys are kept, all hypotheses of all sentences are rows of one batch, and hypotheses are
    chosen by tensor operations alone. The search ends when each sentence has its EOS.
    """
    memory, state = model.encode(source)
    rows, words = len(source), model.table.num_embeddings
    if memory is not None:
        memory = Memory(*(None if each is None else each.repeat_interleave(width, 0) for each in memory))
    state = State(*(each.repeat_interleave(width, 1) for each in state))
    totals = torch.full((rows, width), NEVER)
    totals[:, 0] = 0  # all hypotheses are equal before the first word
    last = torch.full((rows * width, 1), BOS)
    first_row = torch.arange(rows)[:, None] * width
    written, parents = [], []
    for number in range(int(lengths.max()) + 1):
        x, state = model.decode(last, memory, state)
        log_p = F.linear(x[:, -1], model.table.weight).log_softmax(-1).view(rows, width, words)
        log_p[..., [PAD, BOS, MASK]] = NEVER
        log_p[..., EOS] = _end(log_p, lengths == number)
        totals, best = (totals[..., None] + log_p).flatten(1).topk(width)
        parent, word = best // words, best % words
        written.append(word)
        parents.append(parent)
        chosen = (first_row + parent).flatten()
        state = State(*(each[:, chosen] for each in state))
        last = word.view(-1, 1)
    return _traced_back(written, parents, lengths)


def _end(log_p: Tensor, ends: Tensor) -> Tensor:
    """log p(EOS), (B, w), where a text ends, which then has no other word; elsewhere EOS is out of the question."""
    end = log_p[..., EOS].clone()
    if bool(ends.any()):
        log_p[ends] = NEVER
    return torch.where(ends[:, None], end, NEVER)


def _traced_back(written: list[Tensor], parents: list[Tensor], lengths: Tensor) -> list[list[int]]:
    found: list[list[int]] = []
    for row, length in enumerate(lengths.tolist()):
        place, text = 0, []  # the best hypothesis when this sentence ended
        for number in range(length, -1, -1):
            text.append(int(written[number][row, place]))
            place = int(parents[number][row, place])
        found.append(text[::-1])
    return found
