"""BPE dropout: the same text in other pieces."""

from __future__ import annotations

import numpy as np
import pytest

from sixfold.core.ids import PAD
from sixfold.runs.run import Run
from sixfold.text.arrays import Examples, Ragged, RowRange
from sixfold.text.bpe_dropout import BpeDropout, divided, parents
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import resume, train
from sixfold.training.trainer import Trainer
from tests.support import tiny
from tests.support.breaking_off import breaking_off_after

TEXTS = ["under the understandable thunder", "a tender hand", "the sand under the hand"] * 20
ABCD = np.array([[PAD, PAD]] * 14)  # ids 10 to 13 are ab, cd, abcd and abcdab; 6 to 9 are a, b, c, d
ABCD[10:14] = [(6, 7), (8, 9), (10, 11), (12, 10)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("bpe", TEXTS, 320)


@pytest.fixture(scope="module")
def examples(tokenizer):
    rows = tokenizer.encode_batch(TEXTS)
    text = Ragged(np.concatenate([np.array(row, np.uint16) for row in rows]), np.cumsum([0, *map(len, rows)]))
    return Examples(text, text, (RowRange(len(rows), 1.0),))


def of_epoch(tokenizer, examples, epoch=0, probability=0.3, longest=1000, seed=1):
    return BpeDropout(Tokenizers(tokenizer, tokenizer), probability, seed=seed, longest=longest).of_epoch(
        examples, epoch
    )


def texts(tokenizer, ragged):
    return [tokenizer.decode(ragged[row]) for row in range(len(ragged))]


def test_with_certainty_every_piece_falls_into_letters():
    ids, lengths = divided(np.array([13, 6, 11]), np.array([2, 0, 1]), ABCD, np.zeros(3, np.uint64), np.ones(3))
    assert ids.tolist() == [6, 7, 8, 9, 6, 7, 6, 8, 9]
    assert lengths.tolist() == [7, 0, 2]


def test_a_piece_is_divided_with_the_given_probability_and_so_is_each_half():
    keys = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(977)
    _, lengths = divided(np.full(20_000, 12), np.ones(20_000, int), ABCD, keys, np.full(20_000, 0.3))
    # 1 piece: 0.7; 2: 0.3 · 0.7²; 3: 0.3 · 2 · 0.3 · 0.7; 4: 0.3³
    shares = np.bincount(lengths)[1:] / 20_000
    assert shares == pytest.approx([0.7, 0.147, 0.126, 0.027], abs=0.01)


def test_the_parents_of_a_piece_spell_it(tokenizer):
    spelt = tokenizer.spellings()
    table = parents(tokenizer)
    merged = [id_ for id_ in range(len(tokenizer)) if table[id_, 0] != PAD]
    assert len(merged) == len(tokenizer) - 5 - 256
    assert all(spelt[id_] == spelt[table[id_, 0]] + spelt[table[id_, 1]] for id_ in merged)


def test_the_text_stays_and_its_pieces_change_with_each_epoch(tokenizer, examples):
    found = [of_epoch(tokenizer, examples, epoch) for epoch in (0, 1, 0)]
    for each in found:
        assert texts(tokenizer, each.source) == texts(tokenizer, each.target) == TEXTS
        assert len(each.source.ids) > 1.1 * len(examples.source.ids)
    first, second, again = ([*each.target.ids] for each in found)
    assert first == again != second
    assert [*found[0].source.ids] != first  # the sides are divided independently


def test_a_row_does_not_depend_on_its_company(tokenizer, examples):
    some = Examples(examples.source, Ragged(examples.target.ids, examples.target.offsets[:5]), (RowRange(4, 1.0),))
    whole, part = (of_epoch(tokenizer, each).target for each in (examples, some))
    assert all([*whole[row]] == [*part[row]] for row in range(4))


def test_a_row_that_would_be_too_long_stays_whole(tokenizer, examples):
    longest = int(examples.target.lengths.max())
    found = of_epoch(tokenizer, examples, probability=0.8, longest=longest)
    assert found.target.lengths.max() <= longest
    whole = [[*found.target[row]] == [*examples.target[row]] for row in range(len(TEXTS))]
    assert 0 < sum(whole) < len(TEXTS)
    assert texts(tokenizer, found.target) == TEXTS


def bpe(folder, **settings):
    return tiny.config(folder, data__tokenizer="bpe", data__vocabulary=300, data__bpe_dropout=0.3, **settings)


def test_a_resumed_run_sees_the_same_pieces(tmp_path):
    config = bpe(tiny.corpus(tmp_path), training__steps=30)
    train(config, tmp_path / "whole", display=Quiet())
    with breaking_off_after(Trainer, "step", 19):
        train(config, tmp_path / "broken", display=Quiet())
    resume(tmp_path / "broken", display=Quiet())
    left, right = (Run(tmp_path / name) for name in ("whole", "broken"))
    assert tiny.log_without_times(left) == tiny.log_without_times(right)
    assert (left.directory / "model.safetensors").read_bytes() == (right.directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"data.tokenizer": "unigram"}, "pieces of data.tokenizer bpe, got unigram"),
        ({"data.tokenizer": "bpe", "data.source": "null", "task": "language_model"}, "windows of plain text"),
    ],
)
def test_where_it_can_not_work_it_is_refused_before_the_text_is_read(sixfold, tmp_path, settings, words):
    tiny.corpus(tmp_path)
    settings = {"data.train": "train.r", "data.bpe_dropout": "0.1", **settings}
    task = settings.pop("task", "translation")
    code, _, err = sixfold("train", "--task", task, *[part for k, v in settings.items() for part in (f"--{k}", v)])
    assert code == 2
    assert words in err
