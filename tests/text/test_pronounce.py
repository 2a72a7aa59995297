"""The embedded pronunciations: whole, and in three splits that share no word."""

from collections import Counter
from importlib import resources

import pytest

from sixfold.text import pronounce

VOWELS = {"AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"}
CONSONANTS = {"B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R", "S", "SH", "T", "TH"}
CONSONANTS |= {"V", "W", "Y", "Z", "ZH"}


@pytest.fixture(scope="module")
def table():
    return pronounce.pronunciations()


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("hello", ("HH AH0 L OW1", "HH EH0 L OW1")),
        ("cat", ("K AE1 T",)),
        ("either", ("IY1 DH ER0", "AY1 DH ER0")),
        ("don't", ("D OW1 N T", "D OW1 N")),
    ],
)
def test_words_known_by_heart(table, word, said):
    assert table[word] == said


def test_nothing_but_words_and_sounds(table):
    assert not {c for word in table for c in word} - set("abcdefghijklmnopqrstuvwxyz'-.")
    sounds = {sound for said in table.values() for way in said for sound in way.split(" ")}
    assert sounds == CONSONANTS | {vowel + stress for vowel in VOWELS for stress in "012"}
    assert all(said and len(set(said)) == len(said) for said in table.values())
    assert list(table) == sorted(table)


def test_splits_share_no_word_and_leave_none_out(table):
    splits = {split: list(pronounce.examples(split)) for split in pronounce.SPLITS}
    words = {split: {word for word, _ in pairs} for split, pairs in splits.items()}
    assert sum(map(len, words.values())) == len(table)
    assert sorted(pair for pairs in splits.values() for pair in pairs) == sorted(
        (word, sounds) for word, said in table.items() for sounds in said
    )


def test_sizes_of_the_parts(table):
    shares = Counter(map(pronounce.split_of, table))
    assert len(table) > 125_000
    for split, percent in (("train", 93), ("valid", 2), ("test", 5)):
        assert 100 * shares[split] / len(table) == pytest.approx(percent, abs=0.2)


@pytest.mark.parametrize(
    ("word", "digest", "hundredth", "split"),
    [
        ("tree", 0xDC9C5EDB8B2D479E, 2, "test"),
        ("water", 0x0F4168490E38B844, 4, "test"),
        ("dawn", 0x8326E09CE4E90A41, 5, "valid"),
        ("hello", 0x2CF24DBA5FB0A30E, 42, "train"),
    ],
)
def test_the_split_never_moves(word, digest, hundredth, split):
    """`echo -n tree | sha256sum` begins dc9c5edb8b2d479e; modulo 100 that is 2: one of the five for the test."""
    assert digest % 100 == hundredth
    assert pronounce.split_of(word) == split


def test_the_fingerprint_is_of_the_table(table):
    assert pronounce.fingerprint() == "500eec8e2d4f73aaf09648985937c5c3e2a9ce7c3007f6d4352b99f1ad13667a"


def test_unknown_split():
    with pytest.raises(ValueError, match="no split 'dev'; there are train, valid, test"):
        list(pronounce.examples("dev"))


def test_the_licence_is_shipped():
    licence = resources.files("sixfold.text").joinpath("examples", "LICENSE-cmudict").read_text(encoding="utf-8")
    assert "Carnegie Mellon University" in licence
    assert "Redistribution" in licence
