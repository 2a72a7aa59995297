"""Dictionaries for unknown words: read, learned from alignments, and used in outputs."""

import pytest
import torch

import sixfold.decoding.dictionary as dictionaries
from sixfold.baselines._shared.cells import LSTMCell
from sixfold.baselines._shared.global_attention import AdditiveAttention
from sixfold.baselines.bahdanau import BackwardState
from sixfold.core.ids import UNK
from sixfold.decoding.dictionary import learn_dictionary, read_dictionary, write_dictionary
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import moved_model
from tests.support.translators import LETTERS, LINES, SHOUTED, small_translator

BPE = train_tokenizer("bpe", ["A B C"] * 3, None)
ASKED = {"max_length": 3, "replace_unknown": True}


def written(tmp_path, text):
    path = tmp_path / "words.tsv"
    path.write_bytes(text.encode())
    return path


def unknown(translator, *looked_at):
    """Let the model write <unk> only, and look at these words of the source."""

    def looks(models, pairs, gates=None):
        rows = torch.eye(len(pairs[0][0]))[[*looked_at, 0]]
        return [rows] * len(pairs)

    output = translator.model.roles["output"].weight
    with torch.no_grad():
        output.zero_()
        output[UNK] = 1e-3
        translator.model.decoder.final.weight.zero_()
        translator.model.decoder.final.bias.fill_(1)
    return looks


# The file ----------------------------------------------------------------------------------------------------


def test_a_file_has_a_word_and_its_translation_in_each_line(tmp_path):
    path = written(tmp_path, "Haus\thouse\r\nStraße\tstreet\nneu\tNew York\n")
    assert read_dictionary(path, SHOUTED) == {"Haus": "house", "Straße": "street", "neu": "New York"}


def test_what_is_written_is_read_again(tmp_path):
    words = {"a\u2028b": "x", "c": "y z"}  # U+2028 is text
    write_dictionary(tmp_path / "words.tsv", words)
    assert read_dictionary(tmp_path / "words.tsv", SHOUTED) == words


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Haus", "line 2: expected a source word, a tab and a target word, got 'Haus"),
        ("", "line 2: expected a source word"),
        ("Haus\t", "line 2: expected a source word"),
        ("\thouse", "line 2: expected a source word"),
        ("a\tb\tc", "line 2: expected a source word"),
        ("das Haus\thouse", "line 2: expected a source word"),
        ("a\tc", "line 2: 'a' is in an earlier line, too"),
    ],
)
def test_a_line_of_another_form_is_an_error_that_names_it(tmp_path, line, message):
    path = written(tmp_path, f"a\tb\n{line}\n")
    with pytest.raises(ValueError, match=f"{path}, {message}"):
        read_dictionary(path, SHOUTED)


def test_a_file_that_is_missing_is_named_before_a_line_is_read(tmp_path):
    translator, path = small_translator(), str(tmp_path / "none.tsv")
    with pytest.raises(ValueError, match="can't be read: No such file"):
        translator.stream(iter(()), dictionary=path, **ASKED)
    with pytest.raises(ValueError, match="can't be read: No such file"):
        translator.pool(2, dictionary=path, **ASKED)


def test_where_words_are_spelled_nothing_is_unknown(tmp_path):
    path = str(written(tmp_path, "a\tb\n"))
    translator = small_translator(tokenizers=Tokenizers(BPE, BPE))
    with pytest.raises(ValueError, match="spelled by a tokenizer of kind bpe, so no word can be unknown"):
        translator.translate(["a"], dictionary=path, **ASKED)
    with pytest.raises(ValueError, match="so no word can be unknown"):
        learn_dictionary(translator.model, translator.tokenizers, [], 9)


def test_it_needs_words_that_are_replaced_and_gives_way_where_they_are_not(tmp_path):
    path = str(written(tmp_path, "a\tb\n"))
    with pytest.raises(ValueError, match="give replace_unknown true, too"):
        small_translator().translate(["a"], dictionary=path)
    translator = small_translator(dictionary=path, **ASKED)
    assert translator.configured({"replace_unknown": False}).dictionary is None


# In outputs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("x\ty\n", "c Zürich a"),
        ("Zürich\tTurin\n", "c Turin a"),
        ("Zürich\tTurin\na\tA\nc\tsea side\n", "sea side Turin A"),
    ],
)
def test_a_line_changes_its_word_and_no_other(tmp_path, monkeypatch, line, text):
    translator = small_translator(**ASKED)
    monkeypatch.setattr("sixfold.decoding.translator.looks", unknown(translator, 2, 1, 0))
    assert translator.translate(["a Zürich c"])[0].text == "c Zürich a"
    path = str(written(tmp_path, line))
    assert translator.translate(["a Zürich c"], dictionary=path)[0].text == text


def test_what_is_forbidden_takes_no_unknown_words_place(tmp_path, monkeypatch):
    translator = small_translator(**ASKED)
    monkeypatch.setattr("sixfold.decoding.translator.looks", unknown(translator, 2, 1, 0))
    path = str(written(tmp_path, "Zürich\tTurin\n"))
    assert translator.translate(["a Zürich c"], dictionary=path, forbidden_words="Turin")[0].text == "c <unk> a"
    assert translator.translate(["a Zürich c"], dictionary=path, forbidden_words="Zürich")[0].text == "c Turin a"


def test_without_unknown_words_outputs_stay_as_they_are(tmp_path):
    path = str(written(tmp_path, "".join(f"{letter}\tx\n" for letter in "abcdefghi")))
    translator = small_translator(max_length=9)
    with torch.no_grad():
        translator.model.roles["output"].weight[UNK] = 0  # below the likeliest word
    plain = [each.text for each in translator.translate(LINES)]
    assert not any("<unk>" in text for text in plain)
    assert [each.text for each in translator.translate(LINES, dictionary=path, replace_unknown=True)] == plain


# Units of LSTMs that count: the encoder's words, the decoder's words; and one that is always tanh(1).
READ, WROTE, ONE = 0, 1, 2
STEP = 0.05  # after n words the unit is tanh(n · STEP)


def make_it_count(cell, unit):
    """A cell that reads nothing: gates are open, and STEP is added in each step."""
    i, f, new, o = cell.bias.chunk(4)
    for tensor in (cell.input, cell.recurrent, new):
        tensor.zero_()
    for gate in (i, f, o):
        gate.fill_(1e4)
    new[unit] = torch.tensor(STEP).atanh()
    new[ONE], f[ONE] = 1e4, -1e4


def look_ahead(cross, words):
    """Let the state after n words look at the source word n + `words`, by the difference of what was counted."""
    slope, width = 400.0, len(cross.score)
    for weight in cross.parameters():
        weight.zero_()
    for row, edge in enumerate((words - 0.5, words + 0.5)):  # the score rises at the first and falls at the second
        cross.key.weight[row, READ] = slope
        cross.query.weight[row, WROTE] = -slope
        cross.key.weight[row, ONE] = -slope * edge * STEP / torch.tensor(1.0).tanh()
    cross.score.copy_(torch.tensor([10.0, -10.0, *[0.0] * (width - 2)]))


def copier(wish, before_word):
    """A model that writes <unk> only, and looks at one source word after the other."""
    translator = small_translator((wish,), replace_unknown=True)
    model, parts = translator.model, [*translator.model.modules()]
    with torch.no_grad():
        for stack, unit in ((model.encoder, READ), (model.decoder, WROTE)):
            for part in stack.modules():
                if isinstance(part, LSTMCell):
                    make_it_count(part, unit)
        for part in parts:
            if isinstance(part, BackwardState):
                part.map.weight.zero_()
            if isinstance(part, AdditiveAttention):
                look_ahead(part, 1 if before_word else 0)
        last = model.decoder.readout if before_word else next(p.combine for p in parts if hasattr(p, "combine"))
        last.weight.zero_()[:, ONE if before_word else model.sizes.d_model + ONE] = 1
        output = model.roles["output"].weight.zero_()
        output[UNK] = 1
    return translator


@pytest.mark.parametrize(
    ("wish", "before_word"),
    [("bahdanau", True), ("luong:score=concat", False), ("luong:score=concat,input_feeding=false", False)],
)
def test_unknown_words_are_copied_by_the_state_that_chose_them(wish, before_word, tmp_path):
    """bahdanau looks with the state before the word, luong with the state after the one that precedes it was read."""
    translator = copier(wish, before_word)
    words = ["Zürich", "a", "Genf", "Basel", "c", "Chur"]
    for number in range(1, 7):
        line = " ".join(words[:number])
        assert translator.translate([line], max_length=number)[0].text == line
    path = str(written(tmp_path, "Basel\tBâle\n"))
    assert translator.translate([line], max_length=6, dictionary=path)[0].text == line.replace("Basel", "Bâle")


# Learned -----------------------------------------------------------------------------------------------------


def learned(monkeypatch, pairs, looked_at, max_length=9):
    """The dictionary of these pairs; for each target word, the index of the source word that it looks at."""
    rows = dict(zip(pairs, looked_at, strict=True))
    ids = {(*SIDES.source.encode(a), 1, *SIDES.target.encode(b)): rows[a, b] for a, b in pairs}

    def looks(models, several):
        for source, target in several:
            look = torch.full((len(target) + 1, len(source)), 0.1)
            for row, column in enumerate(found[(*source[:-1], 1, *target)]):
                look[row, column] = 0.5
            yield look

    found = ids
    monkeypatch.setattr(dictionaries, "looks", looks)
    return learn_dictionary(MODEL, SIDES, [pairs], max_length)


SIDES = Tokenizers(LETTERS, SHOUTED)
MODEL = moved_model(vocab=0, source_vocab=len(LETTERS), target_vocab=len(SHOUTED))


def test_a_word_gets_the_one_that_it_is_aligned_with_most_often(monkeypatch):
    """By hand: a with A twice, with B once; b with B twice, with A and C; c with C once only."""
    pairs = [("a b", "A B"), ("b a", "A B"), ("b a b", "B C B"), ("c", "C")]
    looked_at = [(0, 1), (1, 0), (1, 0, 2), (0,)]
    assert learned(monkeypatch, pairs, looked_at) == {"a": "A", "b": "B"}


def test_half_of_the_alignments_are_enough_and_less_are_not(monkeypatch):
    pairs = [("a", "A A B C"), ("b", "A A B C D")]
    assert learned(monkeypatch, pairs, [(0,) * 4, (0,) * 5]) == {"a": "A"}


def test_unknown_words_have_alignments_and_long_pairs_are_left_out(monkeypatch):
    pairs = [("Zürich a", "Turin B"), ("a Zürich b", "B Turin C"), ("a " * 9 + "a", "A A A")]
    assert learned(monkeypatch, pairs[:2], [(0, 1), (0, 1, 2)]) == {"Zürich": "Turin", "a": "B"}
    assert learned(monkeypatch, pairs[2:], [(0, 0, 0)]) == {}
    assert learned(monkeypatch, pairs[2:], [(0, 0, 0)], max_length=10) == {"a": "A"}


def test_a_model_without_attention_aligns_nothing():
    model = moved_model(modifications=("lstm",), vocab=0, source_vocab=len(LETTERS), target_vocab=len(SHOUTED))
    with pytest.raises(ValueError, match="this model has no cross-attention over each source token"):
        learn_dictionary(model, SIDES, [[("a", "A")]], 9)
