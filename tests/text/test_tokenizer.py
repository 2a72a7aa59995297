"""Text comes back as it went in, and never turns into a control id."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from sixfold.core.ids import CONTROLS, MASK, UNK
from sixfold.text.tokenizer import KINDS, Tokenizer, Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.trained_tokenizers import EXACT, TEXTS, trained

BETWEEN_SPACES = ("words", "symbols")
TRICKY = [
    "",
    " ",
    "  two  spaces ",
    "</s>",
    "<pad><s><unk><mask>",
    "<0x41>",
    "\u2581under\u2581score",
    "line\u2028separator",
    "carriage\r\nreturn\r",
    "\0\t\x7f\x85\ufeff",
    "e\u0301 \u1112\u1161\u11ab 👩‍👩‍👧 \U0010ffff",
    "Ġspace Ċline Ã¤",
    "<pad> sixfold-tokenizer-1 bpe",
]


@pytest.fixture(scope="module")
def all_kinds() -> dict[str, Tokenizer]:
    return {kind: trained(kind) for kind in KINDS}


@pytest.fixture(scope="module")
def reloaded(all_kinds: dict[str, Tokenizer], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    for kind, tokenizer in all_kinds.items():
        tokenizer.save(folder / kind)
    return {kind: Tokenizer.load(folder / kind) for kind in KINDS}


any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
bits = st.sampled_from([*CONTROLS.values(), *TRICKY, "the", " cat", "ä", "猫", "\n", "<", ">", "s"])
any_mixture = st.lists(any_text | bits, max_size=6).map("".join)


@pytest.mark.parametrize("kind", EXACT)
def test_every_text_comes_back_exactly_and_without_control_ids(kind, all_kinds, reloaded):
    first, second = all_kinds[kind], reloaded[kind]

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(any_mixture)
    def check(text: str) -> None:
        ids = first.encode(text)
        assert first.decode(ids) == text
        assert all(len(CONTROLS) <= id_ < len(first) for id_ in ids)
        assert second.encode(text) == ids
        assert second.decode(ids) == text

    check()
    for text in TRICKY:
        assert second.decode(second.encode(text)) == text


@pytest.mark.parametrize("kind", BETWEEN_SPACES)
def test_known_items_come_back_and_others_are_unknown(kind, all_kinds, reloaded):
    known = {word for text in TEXTS for word in text.split(" ")}

    @settings(max_examples=150, deadline=None, database=None, derandomize=True)
    @given(st.lists(st.sampled_from(sorted(known)) | any_text.map(lambda text: text.replace(" ", "")), max_size=8))
    def check(words: list[str]) -> None:
        words = [word for word in words if word]
        for tokenizer in (all_kinds[kind], reloaded[kind]):
            ids = tokenizer.encode(" ".join(words))
            assert [id_ == UNK for id_ in ids] == [word not in known for word in words]
            assert not {*ids} & (CONTROLS.keys() - {UNK})
            assert tokenizer.decode(ids) == " ".join(word for word in words if word in known)

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_alone_reads_the_file_and_says_the_same(kind, all_kinds, tmp_path):
    all_kinds[kind].save(tmp_path / "tokenizer.json")
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.get_vocab_size() == len(all_kinds[kind])
    for text in [*TEXTS, *TRICKY]:
        assert plain.encode(text).ids == all_kinds[kind].encode(text)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_the_same_file(kind, all_kinds, reloaded, tmp_path):
    all_kinds[kind].save(tmp_path / "first")
    reloaded[kind].save(tmp_path / "second")
    content = (tmp_path / "first").read_bytes()
    assert (tmp_path / "second").read_bytes() == content
    assert reloaded[kind].kind == kind
    assert reloaded[kind].fingerprint == all_kinds[kind].fingerprint == hashlib.sha256(content).hexdigest()


def test_many_texts_are_encoded_as_each_one(all_kinds, monkeypatch):
    monkeypatch.setattr("sixfold.text.tokenizer._CHUNK", 4)
    for tokenizer in all_kinds.values():
        assert tokenizer.encode_batch(iter([*TEXTS, *TRICKY])) == [tokenizer.encode(text) for text in [*TEXTS, *TRICKY]]
        assert tokenizer.encode_batch([]) == []


def test_bytes_are_bytes(all_kinds):
    assert len(all_kinds["bytes"]) == 5 + 256
    assert all_kinds["bytes"].encode("Aä") == [5 + 0x41, 5 + 0xC3, 5 + 0xA4]
    for kind in EXACT:
        assert [all_kinds[kind].decode([5 + byte]) for byte in range(128)] == [chr(byte) for byte in range(128)]


def test_characters_have_one_id_each_and_unseen_ones_their_bytes(all_kinds):
    tokenizer = all_kinds["characters"]
    assert [len(tokenizer.encode(char)) for char in "aä猫क €"] == [1, 1, 1, 1, 1, 3]
    assert len(tokenizer.encode("ä猫 und Bäume")) == len("ä猫 und Bäume")
    assert len(train_tokenizer("characters", ["ää öö ü"], 5 + 256 + 2).encode("äöü")) == 1 + 1 + 2


def test_of_very_many_characters_those_seen_once_get_no_id():
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 5001)))
    assert len(train_tokenizer("characters", [text[:5000]], None)) == 5 + 256 + 5000
    assert len(train_tokenizer("characters", [text, "一丁"], None)) == 5 + 256 + 2


def test_words_are_taken_by_frequency_and_then_in_order():
    tokenizer = train_tokenizer("words", ["b c c a", "c  b a d"], 5 + 3)
    assert tokenizer.pieces(range(5, 8)) == ["c", "a", "b"]
    assert tokenizer.encode("d c  a ") == [UNK, 5, 6]
    assert len(train_tokenizer("symbols", ["AH0 B AH1", "B"], None)) == 5 + 3


def test_bpe_joins_the_most_frequent_pair_first():
    """In this text "ab" occurs four times, a space before it three times, "cd" and the space before it twice."""
    text = "ab ab ab ab cd cd"
    tokenizer = train_tokenizer("bpe", [text], 5 + 256 + 2)
    assert tokenizer.pieces([261, 262]) == ["ab", "▁ab"]
    assert len(train_tokenizer("bpe", [text], 5 + 256 + 1000)) == 5 + 256 + len(["ab", "▁ab", "cd", "▁cd"])


def test_vowel_signs_stay_with_their_word(all_kinds):
    tokenizer = train_tokenizer("bpe", ["कुत्ता"] * 4, 400)
    assert len(tokenizer.encode("कुत्ता")) == 1


def test_pieces_are_readable(all_kinds):
    tokenizer = all_kinds["bytes"]
    assert tokenizer.pieces([0, 1, 2, UNK, MASK]) == ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    assert tokenizer.pieces(tokenizer.encode("a \nä")) == ["a", "▁", "\\n", "\\xc3", "\\xa4"]
    assert tokenizer.pieces([261, -1]) == ["<261>", "<-1>"]
    assert all_kinds["characters"].pieces(all_kinds["characters"].encode("ä ")) == ["ä", "▁"]


@pytest.mark.parametrize("kind", KINDS)
def test_any_ids_can_be_decoded(kind, all_kinds):
    tokenizer = all_kinds[kind]
    ids = [1, *tokenizer.encode("the cat"), 2, 0, UNK, MASK, len(tokenizer), 10**12, -1]
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.decode([]) == tokenizer.decode([0, 1, 2, 3, 4]) == ""
    assert isinstance(tokenizer.decode(reversed(range(len(tokenizer)))), str)


def test_half_a_character_is_refused(all_kinds):
    for kind, tokenizer in all_kinds.items():
        with pytest.raises(ValueError, match=r"half a character \(U\+D800\) at index 3"):
            tokenizer.encode("abc\ud800")
        with pytest.raises(ValueError, match="half a character"):
            tokenizer.encode_batch(["abc", "\udfff"])
        if kind != "bytes":
            with pytest.raises(ValueError, match="half a character"):
                train_tokenizer(kind, ["abc", "\udfff"], None)


def test_sizes_that_cannot_be(all_kinds):
    for kind in EXACT:
        with pytest.raises(ValueError, match=r"vocabulary of 260 is too small.*at least 261"):
            train_tokenizer(kind, TEXTS, 260)
        assert len(train_tokenizer(kind, TEXTS, 261)) == 261
    with pytest.raises(ValueError, match="at least 6"):
        train_tokenizer("words", TEXTS, 5)
    with pytest.raises(ValueError, match=r"vocabulary of 7 is too small: there are 3 different symbols.*8 in all"):
        train_tokenizer("symbols", ["A B C"], 7)
    with pytest.raises(ValueError, match="no tokenizer 'bpee'"):
        train_tokenizer("bpee", TEXTS, None)
    for kind in set(KINDS) - {"bytes"}:
        with pytest.raises(ValueError, match=f"no text .* {kind}"):
            train_tokenizer(kind, ["", ""], None)


PROGRAM = """
import json, os, signal, sys
sys.path.insert(0, {root!r})
from sixfold.text.tokenizer import KINDS
from tests.support.trained_tokenizers import TEXTS, trained
found = {{kind: trained(kind) for kind in KINDS}}
before = found["bpe"].encode_batch(TEXTS * 50)
child = os.fork()
if child == 0:
    signal.alarm(30)  # so that a child that hangs is not left behind
    os._exit(0 if found["bpe"].encode_batch(TEXTS * 50) == before else 1)
status = os.waitpid(child, 0)[1]
print(json.dumps([{{kind: tokenizer.fingerprint for kind, tokenizer in found.items()}}, status]))
"""


def test_another_process_finds_the_same_and_its_fork_neither_warns_nor_hangs(all_kinds):
    program = PROGRAM.format(root=str(Path(__file__).parents[2]))
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    environment["PYTHONHASHSEED"] = "7"
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    fingerprints, status = json.loads(done.stdout)
    assert fingerprints == {kind: tokenizer.fingerprint for kind, tokenizer in all_kinds.items()}
    assert (status, done.stderr) == (0, "")


def changed(tokenizer: Tokenizer, path: Path, *keys: str, to: object) -> Path:
    """A file of this tokenizer in which one value is another."""
    tokenizer.save(path)
    content = json.loads(path.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to(place[keys[-1]]) if callable(to) else to
    path.write_text(json.dumps(content))
    return path


def renamed(old: str, new: str):
    return lambda vocabulary: {key.replace(old, new): value for key, value in vocabulary.items()}


def without(key: str):
    return lambda vocabulary: {piece: id_ for piece, id_ in vocabulary.items() if piece != key}


def test_files_of_another_format_or_kind_are_refused_by_name(all_kinds, tmp_path):
    bpe, path = all_kinds["bpe"], tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match=r"tokenizer\.json has format 'sixfold-tokenizer-9'"):
        Tokenizer.load(changed(bpe, path, "model", "vocab", to=renamed("tokenizer-1", "tokenizer-9")))
    with pytest.raises(ValueError, match=r"tokenizer\.json is of kind 'syllables'"):
        Tokenizer.load(changed(bpe, path, "model", "vocab", to=renamed("1 bpe", "1 syllables")))
    with pytest.raises(ValueError, match=r"tokenizer\.json (was changed|is damaged)"):
        Tokenizer.load(changed(bpe, path, "model", "vocab", to=renamed("1 bpe", "1 characters")))
    tokenizers.Tokenizer(tokenizers.models.BPE({"<pad>": 0, "a": 1}, [])).save(str(path))
    with pytest.raises(ValueError, match=r"tokenizer\.json is a tokenizer, but not one that sixfold trained"):
        Tokenizer.load(path)


@pytest.mark.parametrize(
    ("keys", "to", "message"),
    [
        (("model", "vocab"), without("A"), "lacks the control tokens or bytes"),
        (("model", "vocab"), without("<mask> sixfold-tokenizer-1 bpe"), "lacks the control tokens or bytes"),
        (("model", "vocab"), lambda vocabulary: vocabulary | {"two words": 300}, "'two words' can't be a piece"),
        (("model", "vocab"), lambda vocabulary: vocabulary | {"猫": 300}, "'猫' can't be a piece"),
        (("model", "vocab"), lambda vocabulary: vocabulary | {"zzz": 5000}, "was changed"),
        (("model", "vocab"), lambda vocabulary: vocabulary | {[*vocabulary][-1]: 0}, "was changed|damaged|id 0 is"),
        (("model", "merges"), lambda merges: [*merges, ["Z", "Q"]], "damaged"),
        (("model", "dropout"), 0.5, "was changed"),
        (("normalizer",), {"type": "Lowercase"}, "was changed"),
        (("truncation",), {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}, "changed"),
        (("added_tokens",), [{"id": 0, "content": "the", "single_word": False, "lstrip": False, "rstrip": False,
                              "normalized": False, "special": True}], "was changed"),
        (("model", "type"), "Magic", "damaged"),
    ],
)  # fmt: skip
def test_a_file_that_would_work_otherwise_is_refused(keys, to, message, all_kinds, tmp_path):
    path = changed(all_kinds["bpe"], tmp_path / "tokenizer.json", *keys, to=to)
    with pytest.raises(ValueError, match=rf"tokenizer\.json.*({message})"):
        Tokenizer.load(path)


def test_damaged_files_are_refused(all_kinds, tmp_path):
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ValueError, match=r"no tokenizer at .*tokenizer\.json"):
        Tokenizer.load(path)
    all_kinds["unigram"].save(path)
    whole = path.read_bytes()
    for content in (b"", whole[:-10], whole[: len(whole) // 2], b"\xff" + whole, b"[]", b"{}", b'"text"', b"[" * 10**5):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"tokenizer\.json is damaged, or not a tokenizer"):
            Tokenizer.load(path)


def test_a_pair_is_one_file_or_two(all_kinds, tmp_path):
    bpe, symbols = all_kinds["bpe"], all_kinds["symbols"]
    Tokenizers(bpe, symbols).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.tokenizer.json", "target.tokenizer.json"]
    both = Tokenizers.load(tmp_path)
    assert not both.joint
    assert (both.source.fingerprint, both.target.fingerprint) == (bpe.fingerprint, symbols.fingerprint)
    Tokenizers(bpe, bpe).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    assert Tokenizers.load(tmp_path).joint
    (tmp_path / "tokenizer.json").rename(tmp_path / "source.tokenizer.json")
    with pytest.raises(ValueError, match=r"must hold tokenizer\.json, or .*; it has source\.tokenizer\.json"):
        Tokenizers.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_spellings_joined_are_the_text(all_kinds, kind, data):
    tokenizer = all_kinds[kind]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=8))
    spellings = tokenizer.spellings()
    joined = b"".join(spellings[id_] for id_ in ids)
    assert len(spellings) == len(tokenizer)
    assert tokenizer.decode(ids) == (joined if tokenizer.spells else joined[1:]).decode("utf-8", "replace")
