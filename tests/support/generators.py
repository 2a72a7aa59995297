"""A language model that was never trained, and its tokenizers."""

import torch

from sixfold.config.schema import Decoding
from sixfold.decoding.generator import Generator
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import moved_model, seeded

TEXT = ["the cat sat on the mat\n", "how now, brown cow\n"] * 5
LETTERS = train_tokenizer("characters", TEXT, None)
WORDS = train_tokenizer("words", [f"{line[:-1]} \n" for line in TEXT], None)


def small_writer(tokenizer=LETTERS, wishes=(), context=None, **keys):
    model = moved_model("decoder_only", ("untied", *wishes), vocab=len(tokenizer))
    with torch.no_grad():
        noise = torch.randn(len(tokenizer), 16, generator=seeded(2), dtype=torch.float64)
        model.roles["output"].weight += noise
    return Generator(model, Tokenizers(tokenizer, tokenizer), Decoding(**{"max_length": 12, **keys}), context=context)
