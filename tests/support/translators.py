"""A translator that was never trained, and its lines."""

import pytest
import torch

from sixfold.config.schema import Decoding
from sixfold.decoding.translator import Translator
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import moved_model, seeded

LETTERS = train_tokenizer("symbols", ["a b c d e f g h i"], None)
SHOUTED = train_tokenizer("symbols", ["A B C D E F G H I"], None)
LINES = ["a b c", "", "i h g f e d c b a", "a", "   ", "c c", "b a d", "f e d c b", "g", "a b c"]
METHODS = {
    "greedy": {},
    "beam": {"beam_size": 3, "n_best": 2},
    "sampling": {"sample": True, "n_best": 2, "top_k": 6},
}


def small_translator(wishes=(), tokenizers=Tokenizers(LETTERS, SHOUTED), seed=0, **keys):  # noqa: B008
    """A model that says something: a plain one with tied tables says the same word for ever."""
    sizes = {"vocab": 0, "source_vocab": len(tokenizers.source), "target_vocab": len(tokenizers.target)}
    model = moved_model(modifications=("untied", *wishes), seed=seed, **sizes)
    with torch.no_grad():
        noise = torch.randn(len(tokenizers.target), 16, generator=seeded(2), dtype=torch.float64)
        model.roles["output"].weight += noise
    return Translator(model, tokenizers, Decoding(**keys))


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        assert [(each.text, each.tokens, each.ended, each.note) for each in one.n_best] == [
            (each.text, each.tokens, each.ended, each.note) for each in other.n_best
        ]
        for a, b in zip(one.n_best, other.n_best, strict=True):
            assert (a.score, *a.log_probs) == pytest.approx((b.score, *b.log_probs), abs=1e-9)
