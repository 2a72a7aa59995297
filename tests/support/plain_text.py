"""Tiny runs on plain text."""

from sixfold.config.files import read_config

TEXT = "the cat sat on the mat and the dog sat on the log\nhow now brown cow, said the dog to the cat\n"


def texts(folder):
    """train.txt and valid.txt; → the folder"""
    (folder / "train.txt").write_text(TEXT * 20)
    (folder / "valid.txt").write_text(TEXT)
    return folder


def settings(folder, **others):
    """For `tiny.config`: what a run on plain text has of its own."""
    texts(folder)
    return {
        "data__train": str(folder / "train.txt"),
        "data__valid": str(folder / "valid.txt"),
        "data__source": "null",
        "data__target": "null",
        "data__tokenizer": "characters",
        "data__context": 16,
        "training__metric": "loss",
        **others,
    }


def recipe(folder, name, **settings):
    """A tiny run of one of the recipes for plain text."""
    texts(folder)
    plain = {
        "data.train": str(folder / "train.txt"),
        "data.valid": str(folder / "valid.txt"),
        "data.tokenizer": "characters",
        "data.vocabulary": "null",
        "data.context": "16",
        "model.d_model": "16",
        "model.d_ff": "32",
        "model.heads": "2",
        "model.layers": "1",
        "training.steps": "30",
        "training.batch_tokens": "200",
        "training.learning_rate": "1e-2",
        "training.warmup": "3",
        "training.validate_every": "15",
        "training.checkpoint_every": "10",
        "training.log_every": "5",
        "training.device": "cpu",
    }
    return read_config(name, {**plain, **{key.replace("__", "."): value for key, value in settings.items()}})
