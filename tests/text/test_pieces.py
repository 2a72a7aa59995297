"""Pieces know where they stand in a text, for every kind of tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.core.ids import UNK
from sixfold.text.pieces import Piece
from sixfold.text.tokenizer import KINDS
from sixfold.text.vocabulary import train_tokenizer
from tests.support.trained_tokenizers import EXACT, trained

TOKENIZERS = {kind: trained(kind) for kind in KINDS}
TEXTS = [
    "the cat sat",
    "das Mädchen",
    "cafe\u0301 n\u0303",  # combining marks
    "猫が好き 猫\u3000犬",  # U+3000 is whitespace of three bytes
    "👩‍👩‍👧 ok 🎉🎉",
    "  two   spaces  ",
    "a\tb\nc\r\n",
    " ",
    "",
    "<unk> </s>",
    "कुत्ता और",
]
ALL = pytest.mark.parametrize("kind", KINDS)
some_text = st.lists(st.sampled_from([*TEXTS, "ä", "猫", " ", "e\u0301", "🎉"]) | st.text(max_size=5), max_size=5).map(
    "".join
)


def checked(kind, text):
    """The pieces of a text, which cover it in order: each character once, or by pieces that share it."""
    tokenizer = TOKENIZERS[kind]
    pieces = tokenizer.split(text)
    assert [each.id for each in pieces] == tokenizer.encode(text)
    assert [each.text for each in pieces] == tokenizer.pieces([each.id for each in pieces])
    seen = 0
    for each in pieces:
        assert each.start < each.end <= len(text)
        between = text[seen : each.start]
        assert set(between) <= ({" "} if kind not in EXACT else set()), "a character was left out"
        overlap = seen - each.start
        assert overlap <= (1 if len(text[each.start].encode()) > 1 else 0), (
            "only a character of several bytes is shared"
        )
        seen = each.end
    assert not text[seen:].strip(" ") if kind not in EXACT else seen == len(text)
    return pieces


def check_words(kind, text, pieces):
    """The pieces of each word touch its characters, and those without a word have none."""
    words = [word for word in text.split(" ") if word] if kind not in EXACT else text.split()
    for each in pieces:
        own = text[each.start : each.end]
        if each.word is None:
            assert not own.strip()
        else:
            assert own.split()[0] in words[each.word] if kind in EXACT else own == words[each.word]
    numbers = [each.word for each in pieces if each.word is not None]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(words)))


@ALL
@pytest.mark.parametrize("text", TEXTS)
def test_spans_cover_the_text_in_order(kind, text):
    check_words(kind, text, checked(kind, text))


@ALL
@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(text=some_text)
def test_spans_cover_any_text_in_order(kind, text):
    checked(kind, text)


def test_by_hand():
    bpe = train_tokenizer("bpe", ["ab ab ab ab cd cd"], 5 + 256 + 4)
    assert bpe.split("ab  cd") == [
        Piece(bpe.encode("ab")[0], "ab", 0, 2, 0),
        Piece(bpe.encode(" ")[0], "▁", 2, 3, None),
        Piece(bpe.encode(" cd")[0], "▁cd", 3, 6, 1),
    ]
    assert [tuple(each)[1:] for each in TOKENIZERS["bytes"].split("é b")] == [
        ("\\xc3", 0, 1, 0),
        ("\\xa9", 0, 1, 0),
        ("▁", 1, 2, None),
        ("b", 2, 3, 1),
    ]
    assert [tuple(each)[1:] for each in TOKENIZERS["characters"].split("ä€")] == [
        ("ä", 0, 1, 0),
        ("\\xe2", 1, 2, 0),  # never seen, so three bytes
        ("\\x82", 1, 2, 0),
        ("\\xac", 1, 2, 0),
    ]
    words = TOKENIZERS["words"].split("  the zebra\tsat  cat ")
    assert [tuple(each)[1:] for each in words] == [("the", 2, 5, 0), ("<unk>", 6, 15, 1), ("cat", 17, 20, 2)]
    assert words[1].id == UNK


def test_a_piece_that_ends_inside_a_character_has_all_of_it():
    """In UTF-8, ä ö ü begin with the byte C3, so that "a" and C3 are a frequent pair."""
    bpe = train_tokenizer("bpe", ["aä aö aü"] * 4, 5 + 256 + 1)
    first, second = bpe.split("aä")
    assert (first.text, first.start, first.end) == ("a\\xc3", 0, 2)
    assert (second.text, second.start, second.end) == ("\\xa4", 1, 2)


@ALL
def test_half_a_character_is_refused(kind):
    with pytest.raises(ValueError, match="half a character"):
        TOKENIZERS[kind].split("abc\ud800")
