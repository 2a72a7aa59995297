"""Tokenizers, tables of what follows what, and a plain loop that writes by them: what tests of rules need."""

import unicodedata
from functools import cache

import torch

from sixfold.core.ids import BOS, EOS, MASK, PAD, UNK
from sixfold.text.vocabulary import train_tokenizer

TEXTS = [
    "the cat sat on the mat",
    "a cat and cats and the dog sat",
    "the cats sat on a mat, and the dog.",
    "concat the cat, cat sat the dogs",
] * 3
KINDS = ("bytes", "characters", "bpe", "unigram", "words")
SIZES = {"bpe": 285, "unigram": 285}


@cache
def tokenizer(kind):
    return train_tokenizer(kind, TEXTS, SIZES.get(kind))


def favouring(tokens, seed, text, much=4.0):
    """log p(next | last token), (V, V), by chance, but rather what could be part of a text."""
    chance = torch.Generator().manual_seed(seed)
    scores = 1.5 * torch.randn(len(tokens), len(tokens), generator=chance, dtype=torch.float64)
    text = f" {text} ".encode()
    likely = [id_ for id_, spelling in enumerate(tokens.spellings()) if spelling and spelling in text]
    scores[:, [*likely, EOS]] += much
    return scores.log_softmax(-1)


def write(rules, log_p, limit):
    """The likeliest word allowed, again and again; log_p is (V,), or (V, V) by the last token. None: a dead end."""
    said = []
    while True:
        room = limit - len(said)
        now = (log_p if log_p.dim() == 1 else log_p[said[-1] if said else BOS]).clone()
        now[[PAD, BOS]] = -torch.inf
        if len(now) > 6:  # not one of the small vocabularies without them
            now[[UNK, MASK]] = -torch.inf
        for rule in rules:
            rule.apply(now, tuple(said), room)
        if room == 0:
            now[torch.arange(len(now)) != EOS] = -torch.inf
        word = int(now.argmax())
        if now[word] == -torch.inf:
            return None
        if word == EOS:
            return said
        said.append(word)


def occurs(phrase, text):
    """Whether a phrase stands in a text as a whole word, by looking at every place. For scripts with spaces."""

    def letter(place):
        return 0 <= place < len(text) and unicodedata.category(text[place])[0] in "LMN"

    places = [place for place in range(len(text)) if text.startswith(phrase, place)]
    return any(
        not (letter(place) and letter(place - 1)) and not (letter(end - 1) and letter(end))
        for place in places
        for end in [place + len(phrase)]
    )
