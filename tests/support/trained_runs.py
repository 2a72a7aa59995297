"""Run directories whose models were trained for a second: they are unsure, so that settings of decoding matter."""

import random

import torch
import torch.nn.functional as F

from sixfold import BOS, EOS, PAD
from sixfold.config.files import read_config
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.text.tokenizer import Tokenizers
from tests.support.small import pad, small_model
from tests.support.small_runs import SYMBOLS

WORDS = list("abcdefghijklmnop")
STEPS = 150


def directory(folder, kind="encoder_decoder", **decoding):
    """A run with these settings of decoding. One that translates says each word once to three times; a language model
    goes on in the alphabet, by one or two letters."""
    settings = {f"decoding.{key}": str(value) for key, value in decoding.items()}
    Run(folder).begin(read_config(None, {"model.kind": kind, **settings}), {})
    model_files.save(_model(kind), folder)
    Tokenizers(SYMBOLS, SYMBOLS).save(folder)
    return folder


def lines(number, seed=9):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 9))) for _ in range(number)]


_made = {}


def _model(kind):
    if kind not in _made:
        _made[kind] = _train(kind)
    return _made[kind]


def _train(kind):
    torch.manual_seed(1)
    model = small_model(kind, dtype=torch.float32, vocab=len(SYMBOLS), encoder_layers=1, decoder_layers=1).train()
    optimizer, chance = torch.optim.Adam(model.parameters(), lr=1e-2), random.Random(1)
    for _ in range(STEPS):
        sources, targets = zip(*(_example(kind, chance) for _ in range(32)), strict=True)
        inputs = pad([torch.tensor([BOS, *row]) for row in targets])
        wanted = pad([torch.tensor([*row, EOS]) for row in targets])
        read = [] if kind == "decoder_only" else [model.encode(pad([torch.tensor([*row, EOS]) for row in sources]))]
        log_probs = model.log_probs(model.decode(inputs, *read))
        F.nll_loss(log_probs.flatten(0, 1), wanted.flatten(), ignore_index=PAD).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def _example(kind, chance):
    if kind == "encoder_decoder":
        words = chance.choices(WORDS, k=chance.randint(1, 8))
        target = [word for word in words for _ in range(chance.randint(1, 3))]
        return SYMBOLS.encode(" ".join(words)), SYMBOLS.encode(" ".join(target))
    place, target = chance.randrange(16), []
    while not target or chance.random() > 0.1:
        target.append(WORDS[place % 16])
        place += chance.randint(1, 2)
    return [], SYMBOLS.encode(" ".join(target))
