"""Tokenizers of every kind, trained on a few texts."""

from __future__ import annotations

from sixfold.text.tokenizer import Tokenizer
from sixfold.text.vocabulary import train_tokenizer

EXACT = ("bpe", "unigram", "characters", "bytes")
TEXTS = [
    "the cat sat on the mat",
    "the cats sat on the mats and the hats",
    "das Mädchen über den Bäumen",
    "कुत्ता और बिल्ली",
    "猫が好き 猫が好き",
    "<s> <pad> </s> <unk> <mask>",
] * 3
SIZE = 300


def trained(kind: str) -> Tokenizer:
    return train_tokenizer(kind, TEXTS, SIZE if kind in EXACT else None)
