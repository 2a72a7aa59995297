"""Tiny runs on texts with labels: words of eight letters, and where in the alphabet most of a word's letters stand."""

import random

from tests.support import tiny

LABELS = ("begin", "end", "middle")  # by name, as a run keeps them
OF = {"begin": "abc", "middle": "def", "end": "gh"}


def rows(number, seed):
    """(word, label): about three of four letters are the label's own. No word comes twice."""
    chance, found = random.Random(seed), {}
    while len(found) < number:
        label = chance.choice(LABELS)
        word = "".join(chance.choice(OF[label] if chance.random() < 0.75 else tiny.LETTERS) for _ in range(8))
        found.setdefault(word[: chance.randint(3, 8)], label)
    return list(found.items())


def tables(folder, number=60):
    """train.tsv and valid.tsv; → the folder"""
    found = rows(number + 12, seed=0)
    for part, chosen in (("train", found[12:]), ("valid", found[:12])):
        (folder / f"{part}.tsv").write_text("text\tlabel\n" + "".join(f"{word}\t{label}\n" for word, label in chosen))
    return folder


def settings(folder, **others):
    """For `tiny.config`: what a run on `tables(folder)` has of its own."""
    return {
        "task": "classification",
        "data__train": str(folder / "train.tsv"),
        "data__valid": str(folder / "valid.tsv"),
        "data__source": "text",
        "data__target": "label",
        "data__tokenizer": "characters",
        "training__metric": "accuracy",
        **others,
    }


def config(folder, **others):
    """The configuration of a tiny run on `tables(folder)`."""
    learns = {"training__learning_rate": 0.01, "training__steps": 30, "training__validate_every": 10}
    return tiny.config(folder, **settings(folder, **{**learns, **others}))
