"""Small runs unlike the defaults and unlike each other, and runs that begin with them."""

import json

from safetensors.torch import load_file

from sixfold.config.files import read_config
from sixfold.runs.run import Run
from sixfold.training.runner import train
from tests.support import tiny
from tests.support.breaking_off import Listener
from tests.support.plain_text import recipe

ONE_STEP = {"training.steps": "1", "training.batch_tokens": "120", "training.device": "cpu"}

# What a user gave for each.
RUNS = {
    "plain": {},
    "unequal": {
        "model__encoder_layers": 2,
        "model__modifications": ["rotary", "swiglu"],
        "model__dropout": 0.3,
        "data__max_length": 30,
        "training__label_smoothing": 0.05,
        "decoding__beam_size": 2,
    },
    "joint": {
        "data__tokenizer": "characters",
        "model__d_head": 4,
        "model__modifications": ["t5_bias:buckets=8", "untied", "transparent_attention"],
    },
    "shared": {"model__layers": 3, "model__modifications": ["block_sharing", "rezero"]},
}


def made_in(folder):
    """A corpus, and runs on it by name; mlm is one on plain text. → the folder"""
    tiny.corpus(folder)
    for name, settings in RUNS.items():
        config = tiny.config(folder, **{"training__steps": 1, "training__metric": "loss", **settings})
        train(config, folder / name, display=Listener())
    train(recipe(folder, "mlm", training__steps="1"), folder / "mlm", display=Listener())
    return folder


def adapted(run, out, settings):
    """A run of one step that begins with another; → it, and what was said."""
    listener = Listener()
    config = read_config(None, {**ONE_STEP, **settings})
    train(config, out, start_from=run, display=listener)
    return Run(out), listener.words


def first_weights(run):
    """Those before the first step."""
    return load_file(run.directory / "training" / "step-0" / "model.safetensors")


def start_of(run):
    """What run.json says of it."""
    return json.loads(run.about.read_text())["start"]
