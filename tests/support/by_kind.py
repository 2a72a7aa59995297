"""Text and batches of the usual task of a model's kind."""

from __future__ import annotations

from sixfold.tasks.task import task_of, usual_task
from sixfold.text import batches as made
from sixfold.text import corpus


def Batches(examples, kind, *, vocab=0, **options):  # noqa: N802  (it stands in for the class)
    task = usual_task(kind)
    return made.Batches(examples, task.lengths(examples), task.batch, words=vocab, **options)


def in_order(examples, kind, batch_tokens, vocab=0):
    task = usual_task(kind)
    return made.in_order(examples, task.lengths(examples), task.batch, batch_tokens, vocab)


def prepare(config, folder, tokenizers=None, progress=None):
    return corpus.prepare(config.data, task_of(config).form, folder, tokenizers, progress)


def data_hashes(config):
    return corpus.data_hashes(config.data, task_of(config).form)
