"""Models that are exported, and run directories of them."""

import torch

from sixfold.api.load import OpenedRun
from sixfold.config.files import read_config
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.tasks.task import usual_task
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import moved_model, seeded

SYMBOLS = train_tokenizer("symbols", ["a b c d e f g h i j k l m n o p"], None)
CHARACTERS = train_tokenizer("characters", ["abcdefghi"], None)
TEXTS = ["a b c", "i h g f e d c b a", "a", "c c", "b a d", "p o n m", "k", "l l l a", "j i"]
SETTINGS = {"decoding.max_length": "9"}


def opened(kind="encoder_decoder", wishes=(), source=SYMBOLS, target=SYMBOLS, **sizes):
    """A model that says something, as a run is opened: its output table is far from its others.

    With this seed some texts end soon, and most go on.
    """
    words = {"vocab": len(target)}
    if source is not target:
        words = {"vocab": 0, "source_vocab": len(source), "target_vocab": len(target)}
    tables = () if any("embedding" in wish or "tied" in wish for wish in wishes) else ("untied",)
    model = moved_model(kind, (*wishes, *tables), dtype=torch.float32, **words, **sizes)
    with torch.no_grad():
        for p in model.roles["output"].parameters():
            p += torch.randn(p.shape, generator=seeded(6))
    config = read_config(None, {"model.kind": kind, **SETTINGS})
    return OpenedRun(model, Tokenizers(source, target), config, usual_task(kind))


def directory(folder, kind="encoder_decoder", wishes=(), **sizes):
    """The same on disk."""
    return saved(opened(kind, wishes, **sizes), folder)


def saved(made, folder):
    Run(folder).begin(made.config, {})
    model_files.save(made.model, folder)
    made.tokenizers.save(folder)
    return folder
