"""Which word comes from which."""

import pytest
import torch

from sixfold import BOS, EOS, Tap
from sixfold.core.ids import UNK
from sixfold.decoding.alignment import align, looks, watched_layer, word_numbers, words_in_place_of_unknown
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import assert_close, moved_model

TEXT = ["the cat sat on the mat"] * 5
BPE = train_tokenizer("bpe", TEXT, 5 + 256 + 12)
LETTERS = train_tokenizer("characters", TEXT, None)
WORDS = train_tokenizer("words", TEXT, None)


@pytest.mark.parametrize(
    ("tokenizer", "text", "numbers"),
    [
        (LETTERS, "a cat", [0, None, 1, 1, 1]),
        (LETTERS, " a  ü ", [None, 0, None, None, 1, 1, None]),  # a letter that was never seen is two bytes
        (WORDS, "the cat zzz sat", [0, 1, 2, 3]),
        (LETTERS, "", []),
    ],
)
def test_pieces_stand_in_words(tokenizer, text, numbers):
    assert word_numbers(tokenizer, tokenizer.encode(text)) == numbers


def test_pieces_with_a_space_before_them_begin_words():
    ids = BPE.encode("the cat xy mat")
    pieces, numbers = BPE.pieces(ids), word_numbers(BPE, ids)
    words = ["".join(p for p, n in zip(pieces, numbers, strict=True) if n == word) for word in range(4)]
    assert [word.removeprefix("▁") for word in words] == ["the", "cat", "xy", "mat"]


def test_an_alignment_by_hand():
    source, target = [*LETTERS.encode("a at"), EOS], WORDS.encode("cat mat")
    look = torch.tensor(
        [
            [0.4, 0.0, 0.3, 0.2, 0.1],  # one piece of the first word, but both of the second together
            [0.1, 0.0, 0.1, 0.0, 0.8],  # mostly the end, which does not count
            [0.0, 0.0, 0.0, 0.0, 1.0],  # before the end
        ]
    )
    found = align(look, source, target, Tokenizers(LETTERS, WORDS))
    assert found.source == ("a", "▁", "a", "t")
    assert found.tokens == (0, 0)
    assert found.words == ((0, 1), (1, 0))
    assert align(look[2:], [EOS], [], Tokenizers(LETTERS, WORDS)).words == ()


def test_unknown_words_by_hand():
    both = Tokenizers(WORDS, WORDS)
    text = "the  Zorro sat"  # two spaces are one
    look = torch.tensor([[0.8, 0.1, 0.0, 0.1], [0.2, 0.5, 0.0, 0.3], [0.3, 0.1, 0.2, 0.4], [0.0, 0.0, 0.0, 1.0]])
    target = [WORDS.encode("cat")[0], UNK, UNK]
    found = words_in_place_of_unknown(target, look, [*WORDS.encode(text), EOS], text, both)
    assert found == [None, "Zorro", "the"]


@pytest.mark.parametrize("wishes", [(), ("rotary",), ("evolved",), ("universal",)])
def test_a_look_is_what_the_tap_sees_whoever_shares_the_batch(wishes):
    model = moved_model(modifications=wishes)
    pairs = [([7, 8, 9, EOS], [11, 12]), ([7, EOS], []), ([20, 21, EOS], [30, 31, 32, 33])]
    together = looks([model], pairs)
    for (source, target), look in zip(pairs, together, strict=True):
        tap = Tap("decoder.0.cross")
        model.decode(torch.tensor([[BOS, *target]]), model.encode(torch.tensor([source])), tap=tap)
        assert watched_layer(model) == "decoder.0.cross"
        assert_close(look, tap["decoder.0.cross"][0].mean(0).float(), within=1e-6)
        assert_close(looks([model], [(source, target)])[0], look, within=1e-6)


def test_several_models_look_with_the_mean_of_their_eyes():
    models = [moved_model(seed=seed) for seed in (0, 1)]
    pairs = [([7, 8, EOS], [9])]
    one, other, both = (looks(some, pairs)[0] for some in ([models[0]], [models[1]], models))
    assert_close(both, (one + other) / 2, within=1e-6)


def test_who_shortens_the_source_has_no_alignment():
    assert looks([moved_model(modifications=("funnel:blocks=2",))], [([7, 8, 9, 10, EOS], [11])]) == [None]
