"""Small subjects to measure."""

from contextlib import contextmanager

from sixfold.bench.subject import opened

SMALL = {
    "data.vocabulary": "40",
    "model.d_model": "16",
    "model.d_ff": "32",
    "model.heads": "2",
    "model.encoder_layers": "2",
    "model.decoder_layers": "1",
    "model.dropout": "0",
    "model.modifications": "[]",
    "training.batch_tokens": "100",
    "training.label_smoothing": "0",
}


@contextmanager
def recipe(modify=(), **settings):
    """A model that was never trained, on random words."""
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    with opened("transformer-base", {**SMALL, **changed}, modify) as subject:
        yield subject
