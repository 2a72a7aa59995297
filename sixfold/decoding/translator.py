"""From lines of text to lines of text: the one object behind the command line, Python and validation.

Letters: L target length, n source length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sixfold.call import BOS, EOS, PAD
from sixfold.decoding.greedy import Hypothesis, greedy
from sixfold.decoding.step import ModelStep
from sixfold.models import EncoderDecoder
from sixfold.tap import Tap
from sixfold.text.tokenizer import MASK, Tokenizers

NEVER = (PAD, BOS, MASK)  # ids that no text has


class Stopped(Exception):  # noqa: N818  (it is a wish that came true, and no error)
    """Somebody asked to stop, before all was translated."""


class Translation(NamedTuple):
    """One line."""

    text: str
    score: float  # the model's own log-probability of tokens and end
    tokens: tuple[int, ...]  # without BOS and EOS
    ended: bool = True  # False: cut off where it became too long
    note: str = ""  # what a person should know, such as that the source was truncated


class CrossAttention(NamedTuple):
    """Where the decoder looked in the source when it was about to write each target piece."""

    source: list[str]  # n readable pieces, the last of which is the end
    target: list[str]  # L
    weights: Tensor  # (layers, heads, L, n)


class _Source(NamedTuple):
    """One line to be translated."""

    ids: list[int]  # EOS included
    limit: int  # most tokens of its translation
    note: str


class Translator:
    """Translates with a model and its tokenizers, whatever the model's device and precision.

    No more than `max_length` tokens are written, nor more than `max_ratio` for each token of the source
    and ten. Lines are decoded together as long as their source tokens, with padding, are no more than
    `batch_tokens`; which ones share a batch makes no difference to what comes out.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        tokenizers: Tokenizers,
        *,
        max_length: int = 256,
        max_ratio: float = 3.0,
        batch_tokens: int = 4096,
    ):
        if model.kind != "encoder_decoder":
            raise ValueError(f"only an encoder_decoder translates, and this is a model of kind {model.kind}")
        for side, tokenizer, stack in zip(("source", "target"), tokenizers, ("encoder", "decoder"), strict=True):
            words = model.sizes.vocabulary(stack)
            if len(tokenizer) != words:
                raise ValueError(f"the {side} tokenizer has {len(tokenizer)} ids, but the model was made for {words}")
        if min(max_length, max_ratio, batch_tokens) <= 0:
            got = f"{max_length}, {max_ratio} and {batch_tokens}"
            raise ValueError(f"max_length, max_ratio and batch_tokens must be positive, got {got}")
        self.model, self.tokenizers = model, tokenizers
        self.max_length, self.max_ratio, self.batch_tokens = max_length, max_ratio, batch_tokens

    def translate(self, texts: Sequence[str], *, stop: Callable[[], bool] | None = None) -> list[Translation]:
        """The translation of each line, in order; that of an empty line is empty.

        `stop` is asked before each batch; if it says True, `Stopped` is raised.
        """
        if isinstance(texts, str):
            raise ValueError("translate takes a list of lines, got one text")
        found = [Translation("", 0.0, ()) for _ in texts]
        sources = {number: self._source(ids) for number, ids in self._encode(texts).items()}
        with evaluating(self.model), torch.inference_mode():
            for numbers in batched({number: len(source.ids) for number, source in sources.items()}, self.batch_tokens):
                if stop is not None and stop():
                    raise Stopped
                batch = [sources[number] for number in numbers]
                for number, source, hypothesis in zip(numbers, batch, self._search(batch), strict=True):
                    text = self.tokenizers.target.decode(hypothesis.tokens)
                    found[number] = Translation(
                        text, hypothesis.score, hypothesis.tokens, hypothesis.ended, source.note
                    )
        return found

    def cross_attention(self, source: str, target: str) -> CrossAttention:
        """The weights of all cross-attentions in one pass that reads both texts."""
        read = [*self.tokenizers.source.encode(source), EOS]
        written = self.tokenizers.target.encode(target)
        device, tap = next(self.model.parameters()).device, Tap("decoder.*.cross")
        with evaluating(self.model), torch.inference_mode():
            memory = self.model.encode(torch.tensor([read], device=device))
            self.model.decode(torch.tensor([[BOS, *written]], device=device), memory, tap=tap)
        if not len(tap):
            raise ValueError("this model has no cross-attention whose weights can be shown")
        weights = torch.stack([tap[name][0] for name in tap]).float().cpu()
        pieces = self.tokenizers.source.pieces(read)
        if weights.shape[-1] != len(read):  # a funnel's states stand for several pieces each
            pieces = [str(number) for number in range(1, weights.shape[-1] + 1)]
        return CrossAttention(pieces, self.tokenizers.target.pieces([*written, EOS]), weights)

    def _encode(self, texts: Sequence[str]) -> dict[int, list[int]]:
        """The ids of each line that is not empty, by its number."""
        numbers = [number for number, text in enumerate(texts) if text.strip()]
        ids = self.tokenizers.source.encode_batch([texts[number] for number in numbers])
        return {number: line for number, line in zip(numbers, ids, strict=True) if line}

    def _source(self, ids: list[int]) -> _Source:
        """A line as the encoder can read it, and how long its translation may become."""
        limits, note = self.model.limits, ""
        if "encoder" in limits and len(ids) + 1 > limits["encoder"]:
            most = limits["encoder"] - 1  # one place is for EOS
            note = f"the source has {len(ids)} tokens and was truncated to {most}, all that this model can read"
            ids = ids[:most]
        limit = min(self.max_length, int(self.max_ratio * len(ids)) + 10)
        if "decoder" in limits:
            limit = min(limit, limits["decoder"] - 1)  # it reads BOS first
        return _Source([*ids, EOS], limit, note)

    def _search(self, batch: Sequence[_Source]) -> list[Hypothesis]:
        step = ModelStep(self.model)
        state = step.begin([source.ids for source in batch])
        first = torch.full((len(batch), 1), BOS, device=step.device)
        return greedy(step, state, first, [source.limit for source in batch], NEVER)


def batched(lengths: dict[int, int], tokens: int) -> Iterator[list[int]]:
    """Numbers in batches of about equal length, the longest first: rows × the longest ≤ tokens, or one row."""
    batch: list[int] = []
    for number in sorted(lengths, key=lambda number: -lengths[number]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode, and each of its parts back as it was."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
