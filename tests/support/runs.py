"""Run directories to work with: some trained for a second, others never."""

from sixfold.config.files import read_config
from sixfold.runs import model_files
from sixfold.runs.run import Run
from tests.support.generators import small_writer
from tests.support.translators import small_translator


def translating(folder, seed=0, **settings):
    """A run that says something of the letters a to i, and has never been trained."""
    return _write(folder, small_translator(seed=seed), {"decoding.max_length": "9", **settings})


def writing(folder, **settings):
    """A language model that has never been trained."""
    plain = {"model.kind": "decoder_only", "decoding.max_length": "9", "data.context": "16"}
    return _write(folder, small_writer(), {**plain, **settings})


def _write(folder, made, settings):
    run = Run(folder)
    run.begin(read_config(None, settings), {})
    model_files.save(made.model.float(), folder)
    made.tokenizers.save(folder)
    return folder
