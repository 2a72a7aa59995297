"""Lines in, lines out: the same ones in any company, in order, and nobody's mode is changed."""

import pytest
import torch

from sixfold import BOS, EOS, PAD, Tap
from sixfold.core.ids import MASK, UNK
from sixfold.decoding import session as task
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.engine import Job, search
from sixfold.decoding.ordered import Stopped
from sixfold.decoding.records import Line, Translation, from_json, to_json
from sixfold.decoding.rules.rule import Rule
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from sixfold.decoding.translator import TranslationSession, Translator
from sixfold.models.model import evaluating
from sixfold.text.tokenizer import Tokenizers
from sixfold.text.vocabulary import train_tokenizer
from tests.support.small import MODIFICATIONS, applies, assert_close, moved_model
from tests.support.translators import LETTERS, LINES, METHODS, SHOUTED, assert_same, small_translator

PIECES = train_tokenizer("bpe", ["ab ab ba ba abba baab abab"] * 9, 5 + 256 + 8)


@pytest.mark.parametrize("method", METHODS)
def test_a_line_does_not_depend_on_its_company(method):
    translator, keys = small_translator(max_length=12), METHODS[method]
    alone = [translator.translate([line], **keys)[0] for line in LINES]
    assert len({line.text for line in alone}) > 4
    for tokens in (8, 30, 1000):
        assert_same(alone, translator.translate(LINES, batch_tokens=tokens, **keys))
    assert_same(alone, translator.stream(LINES, window=3, **keys))
    assert_same(alone[::-1], translator.translate(LINES[::-1], **keys))


def test_a_translation_is_what_greedy_search_finds():
    translator = small_translator()
    (line,) = translator.translate(["c c"])
    job = Job(source=[*LETTERS.encode("c c"), EOS], limit=16)
    with torch.inference_mode():
        ((_, (found,)),) = search(make_step(translator.model), [job], Greedy(), never=(PAD, BOS, MASK))
    assert (line.tokens, line.log_probs, line.ended) == (found.tokens, found.log_probs, found.ended)
    assert line.text == SHOUTED.decode(found.tokens)


@pytest.mark.parametrize("method", METHODS)
def test_the_score_is_that_of_reading_what_was_written(method):
    translator, length = small_translator(), LengthPenalty(0.6 if method == "beam" else "none")
    model = translator.model
    for source, line in zip(LINES, translator.translate(LINES, **METHODS[method]), strict=True):
        for each in line.n_best if source.strip() else ():
            memory = model.encode(torch.tensor([[*LETTERS.encode(source), EOS]]))
            log_p = model.log_probs(model.decode(torch.tensor([[BOS, *each.tokens]]), memory))[0]
            right = log_p[range(len(each.tokens) + 1), [*each.tokens, EOS]]
            assert each.log_probs == pytest.approx(right.tolist(), abs=1e-9)
            assert each.score == pytest.approx(length.score(right.sum().item(), len(right)), abs=1e-9)
            assert each.log_prob == pytest.approx(right.sum().item(), abs=1e-9)
            assert each.confidence == pytest.approx(right.exp().tolist(), abs=1e-9)


def test_the_best_come_first_and_no_text_comes_twice():
    """Of three pieces, at most two are said: 13 ways, of which two are the text "ab"."""
    translator = small_translator(tokenizers=Tokenizers(LETTERS, PIECES), beam_size=13, n_best=13, max_length=2)
    letters, whole = [PIECES._rust.token_to_id(letter) for letter in "ab"], PIECES.encode("ab")
    assert len(whole) == 1
    always(translator, *letters, *whole, EOS)
    (line,) = translator.translate(["a"])
    texts = [each.text for each in line.n_best]
    assert len(set(texts)) == 13
    assert set(texts[:12]) == {"", "a", "b", "ab", "aa", "ba", "bb", "aab", "bab", "aba", "abb", "abab"}
    scores = [each.score for each in line.n_best]
    assert scores == sorted(scores, reverse=True)


def test_a_seed_gives_the_same_text_and_another_another():
    translator = small_translator(sample=True)
    assert_same(translator.translate(LINES, seed=1), translator.translate(LINES, seed=1))
    one, other = ([line.text for line in translator.translate(LINES, seed=seed)] for seed in (1, 2))
    assert one != other
    assert translator.translate(["a b c", "a b c"])[0].text == translator.translate(["a b c"])[0].text


def test_each_line_has_random_numbers_of_its_own():
    task = small_translator().session()
    lines = [Line("a b"), Line("b a"), Line("a"), Line("a", prefix="A"), Line("a", terms=("B",))]
    seeds = [task.job(line, LETTERS.encode(line.text)).seed for line in lines]
    assert len(set(seeds)) == len(lines)
    assert task.job(lines[0], LETTERS.encode("a b")).seed == seeds[0]


def test_empty_lines_stay_where_they_are():
    translations = small_translator().translate(LINES)
    assert len(translations) == len(LINES)
    assert [translations[i] for i in (1, 4)] == [Translation()] * 2
    assert small_translator().translate([]) == []
    assert small_translator().translate(["", " "]) == [Translation()] * 2


def test_a_line_of_a_file_has_an_end_that_is_not_read():
    translator = small_translator()
    assert_same(translator.translate([f"{line}\n" for line in LINES[:4]]), translator.translate(LINES[:4]))


def test_lengths_are_limited():
    free = small_translator(max_length=1000, max_ratio=50.0).translate(LINES)
    longest = max(len(line.tokens) for line in free)
    assert longest > 60  # 50 · 1 + 10: some line goes on and on
    for line in small_translator(max_length=7, max_ratio=50.0).translate(LINES):
        assert len(line.tokens) == 7 if not line.ended else len(line.tokens) <= 7
    for source, line in zip(LINES, small_translator(max_ratio=1.5).translate(LINES), strict=True):
        most = int(1.5 * len(source.split())) + 10
        assert len(line.tokens) == most if not line.ended else len(line.tokens) <= most
    assert len(small_translator(min_length=40).translate(["a"])[0].tokens) >= 40  # however short the source


def test_what_the_model_can_tell_apart_limits_too():
    translator = small_translator(("learned_positions:length=6",), max_ratio=50.0)
    assert translator.model.limits == {"encoder": 6, "decoder": 6}
    with torch.no_grad():
        translator.model.roles["output"].weight[EOS] = 0  # less likely than some word always is: no end
    found = translator.translate(["a b c d e", "a b c d e f g", "a"])
    assert [(len(line.tokens), line.ended) for line in found] == [(5, False)] * 3  # and BOS
    note = "the source has 7 tokens and was truncated to 5 (all that this model can read)"
    assert [line.note for line in found] == ["", note, ""]
    assert found[0].text == found[1].text


def test_a_long_source_is_truncated_or_refused():
    translator, long = small_translator(max_source=3), " ".join("abcdefghi" * 11_111)
    found = translator.translate([long, "a b c"])
    assert found[0].note == "the source has 99,999 tokens and was truncated to 3 (decoding.max_source)"
    assert (found[0].text, found[1].note) == (found[1].text, "")
    given = translator.stream(["a", "", "b", long, "c"], too_long="refuse")
    assert [next(given).text for _ in range(3)] == [line.text for line in translator.translate(["a", "", "b"])]
    with pytest.raises(ValueError, match=r"line 4: the source has 99,999 tokens, and no more than 3 are taken"):
        next(given)


def always(translator, *ids):
    """Make the model say these ids, each as likely as the others, whatever it reads."""
    model = translator.model
    with torch.no_grad():
        table = model.roles["output"].weight
        table[:] = 0
        table[list(ids)] = model.decode(torch.tensor([[BOS]]), model.encode(torch.tensor([[5, EOS]])))[0, 0]


def test_control_ids_are_never_said_but_an_unknown_word_may_be():
    translator = small_translator(max_length=2)
    always(translator, PAD, BOS, MASK, UNK)
    (line,) = translator.translate(["a"])
    assert (line.tokens, line.text) == ((UNK, UNK), "<unk> <unk>")
    speller = small_translator(tokenizers=Tokenizers(LETTERS, PIECES), max_length=2)
    always(speller, PAD, BOS, MASK, UNK)
    assert UNK not in speller.translate(["a"])[0].tokens  # nothing is unknown to who can spell


def test_unknown_words_are_replaced_by_what_they_come_from(monkeypatch):
    translator = small_translator(max_length=2)
    always(translator, UNK)
    look = torch.tensor([[0.1, 0.5, 0.2, 0.2], [0.1, 0.1, 0.2, 0.6], [1.0, 0.0, 0.0, 0.0]])  # a column is the end
    monkeypatch.setattr("sixfold.decoding.translator.looks", lambda models, pairs, gates: [look] * len(pairs))
    (line,) = translator.translate(["a Zürich c"], replace_unknown=True)
    assert line.text == "Zürich c"
    assert translator.translate(["a Zürich c"])[0].text == "<unk> <unk>"


@pytest.mark.parametrize(
    ("forbidden", "text"),
    [
        ([], "Zürich c c"),
        (["Zürich"], "<unk> c c"),
        (["c"], "Zürich <unk> <unk>"),
        (["Zürich c"], "Zürich <unk> c"),  # a phrase that the neighbours would make together
        (["c c"], "Zürich c <unk>"),
        (["Zür", "cc"], "Zürich c c"),  # parts of words, and other words
    ],
)
def test_what_is_forbidden_takes_no_unknown_words_place(monkeypatch, forbidden, text):
    translator = small_translator(max_length=3)
    always(translator, UNK)
    look = torch.tensor([[0.1, 0.5, 0.2, 0.2], *[[0.1, 0.1, 0.2, 0.6]] * 2, [1.0, 0.0, 0.0, 0.0]])
    monkeypatch.setattr("sixfold.decoding.translator.looks", lambda models, pairs, gates: [look] * len(pairs))
    (line,) = translator.translate(["a Zürich c"], replace_unknown=True, forbidden_words=forbidden)
    assert line.text == text


def test_a_source_that_is_shortened_has_no_coverage():
    """A funnel's states stand for several tokens each: nobody knows which of them was looked at."""
    keys = {"beam_size": 2, "coverage_penalty": 0.2}
    with pytest.raises(ValueError, match="coverage_penalty needs cross-attention over each source token"):
        small_translator(("funnel:blocks=2",)).translate(["a b c"], **keys)
    assert small_translator(("funnel:blocks=2",)).translate(["a b c"], beam_size=2)[0].text
    assert small_translator(("cross_heads:heads=3",)).translate(["a b c"], **keys)[0].text


class Forbid(Rule):
    """Nothing may be said."""

    def apply(self, log_p, said, room):
        log_p[:] = -torch.inf

    def describe(self):
        return "saying nothing at all"


class Curious(Rule):
    """A rule that wants to know where the model looked."""

    needs_attention = True

    def describe(self):
        return "look at everything"

    def final(self, said, coverage):
        assert coverage.shape == (3,)  # two letters and the end
        return 0.0


def test_a_rule_that_needs_attention_gets_it_or_is_refused(monkeypatch):
    plain = task.make_rules
    monkeypatch.setattr(task, "make_rules", lambda *a, **k: (*plain(*a, **k), Curious()))
    assert small_translator(beam_size=2).translate(["a b"])[0].text  # all lines want it: the step is made to say it
    monkeypatch.setattr(task, "make_rules", lambda *a, **k: plain(*a, **k) if "prefix" not in k else (Curious(),))
    with pytest.raises(ValueError, match="line 1: a rule of this job needs attention weights"):
        small_translator(beam_size=2).translate(["a b"])


def test_what_is_demanded_of_all_is_refused_before_a_line_is_read():
    translator, read = small_translator(("learned_positions:length=6",)), []
    lines = (read.append(number) or "a" for number in range(3))
    for changes, message in (
        ({"min_length": 9}, "^the output must have at least 9 tokens, but at most 5 may be written"),
        ({"forbidden_words": ["A", " "]}, "^forbidden words must not be empty"),
    ):
        with pytest.raises(ValueError, match=message):
            translator.stream(lines, **changes)
    assert read == []
    for changes, message in (
        ({"terms": ["A B C D E F"]}, "^the terms 'A B C D E F' need 6 tokens, but at most 5"),
        ({"terms": ["A"], "forbidden_words": ["A"]}, "^the term 'A' can't be written"),
    ):
        with pytest.raises(ValueError, match=message):
            translator.stream(lines, **changes)
    assert read == []


def test_what_is_demanded_comes_about():
    translator = small_translator()
    found = translator.translate(["a b", "a b"], prefixes=["H A", None], terms=[[], ["G I", "F"]], beam_size=4)
    assert found[0].text.startswith("H A")
    assert "G I" in found[1].text
    assert "F" in found[1].text
    for wrong in ({"prefixes": ["A"]}, {"terms": [["A"]] * 3}, {"terms": ["A", "B"]}, {"prefixes": "AB"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            translator.translate(["a", "b"], **wrong)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode_and_its_dropout_is_off(training):
    translator = small_translator()
    expected = translator.translate(LINES)
    model = translator.model.train(training)
    model.encoder.eval()
    for part in model.modules():
        part.p = 0.5
    assert_same(expected, translator.translate(LINES, alignment=True))
    translator.cross_attention("a b", "A")
    assert (model.training, model.decoder.training) == (training, training)
    assert not model.encoder.training
    with pytest.raises(ValueError), evaluating(model):
        model.encode(torch.tensor([[len(LETTERS)]]))
    assert model.decoder.training is training


def test_the_caller_may_train_between_two_outputs():
    given = small_translator().stream(["a", "b"], window=1)
    next(given)
    assert not torch.is_inference_mode_enabled()


def test_somebody_may_ask_to_stop_before_any_step():
    translator, asked = small_translator(), []

    def stop():
        asked.append(len(asked))
        return len(asked) == 3

    with pytest.raises(Stopped):
        translator.translate(LINES, stop=stop)
    assert len(asked) == 3
    assert_same(translator.translate(LINES, stop=lambda: False), translator.translate(LINES))


@pytest.mark.parametrize("wish", [wish for wish in MODIFICATIONS if applies("encoder_decoder", wish)])
def test_every_model_shows_its_cross_attention(wish):
    translator = Translator(moved_model(modifications=(wish,), vocab=len(LETTERS)), Tokenizers(LETTERS, LETTERS))
    names = [name for name in translator.model.maps if name.endswith(".cross")]
    if not names:
        with pytest.raises(ValueError, match="no cross-attention"):
            translator.cross_attention("a b c", "b a")
        return
    attention = translator.cross_attention("a b c", "b a")
    assert attention.target == ["b", "a", "</s>"]
    assert attention.source == (["1", "2"] if wish.startswith("funnel") else ["a", "b", "c", "</s>"])
    layers, _, rows, columns = attention.weights.shape
    assert (layers, rows, columns) == (len(names), 3, len(attention.source))
    assert_close(attention.weights.sum(-1), torch.ones(attention.weights.shape[:-1]), within=1e-6)


def test_cross_attention_is_what_a_tap_sees():
    translator = small_translator()
    tap, model = Tap("decoder.1.cross"), translator.model
    memory = model.encode(torch.tensor([[*LETTERS.encode("a b c"), EOS]]))
    model.decode(torch.tensor([[BOS, *SHOUTED.encode("B A")]]), memory, tap=tap)
    assert_close(translator.cross_attention("a b c", "B A").weights[1], tap["decoder.1.cross"][0].float())


def test_attention_and_alignment_on_request():
    translator = small_translator()
    plain, shown = (translator.translate(LINES, **wish)[2] for wish in ({}, {"attention": True, "alignment": True}))
    assert (plain.attention, plain.alignment) == (None, None)
    first = translator.cross_attention(LINES[2], shown.text).weights[0].mean(0)  # the last layer but one of two
    assert_close(shown.attention, first, within=1e-6)
    assert shown.alignment.source == tuple("ihgfedcba")
    assert shown.alignment.tokens == tuple(first[:-1, :-1].argmax(1).tolist())
    assert [word for word, _ in shown.alignment.words] == list(range(len(shown.tokens)))
    again = from_json(to_json(shown))
    assert (again.text, again.log_probs, again.alignment) == (shown.text, shown.log_probs, shown.alignment)


def test_who_cannot_be_answered_is_named_after_all_before(monkeypatch):
    plain = task.make_rules
    monkeypatch.setattr(
        task, "make_rules", lambda *a, terms=(), **k: (Forbid(),) if terms == ("!",) else plain(*a, terms=terms, **k)
    )
    translator = small_translator(max_ratio=9.0)
    lines = [Line(text) for text in LINES[:6]] + [Line("g", terms=("!",)), Line("a", terms=("!",)), Line("b")]
    given, found = translator.stream(lines), []
    with pytest.raises(ValueError, match=r"line 7: no output of at most .* saying nothing at all"):
        found.extend(given)
    assert_same(found, translator.translate(LINES[:6]))


def test_what_cannot_translate():
    both = Tokenizers(LETTERS, SHOUTED)
    with pytest.raises(ValueError, match="only models of kind encoder_decoder translate"):
        Translator(moved_model("decoder_only"), both)
    with pytest.raises(ValueError, match=f"the source tokenizer has {len(LETTERS)} ids, but the model was made for 50"):
        Translator(moved_model(), both)
    with pytest.raises(ValueError, match="a list of lines"):
        small_translator().translate("a b c")
    with pytest.raises(ValueError, match=r"did you mean 'decoding.beam_size'"):
        small_translator().translate(["a"], beamsize=4)
    with pytest.raises(ValueError, match=r"decoding.beam_size: .* got 0"):
        small_translator().translate(["a"], beam_size=0)
    with pytest.raises(ValueError, match=r"n_best 3 needs a beam_size at least as large, got 2$"):
        small_translator().translate(["a"], beam_size=2, n_best=3)
    with pytest.raises(ValueError, match="line 2: the text has half a character"):
        small_translator().translate(["a", "\ud800", "b"])
    with pytest.raises(ValueError, match="line 2: expected a text, got int"):
        small_translator().translate(["a", 3])
    with pytest.raises(ValueError, match="workers load runs from their directories"):
        small_translator().translate(["a"], workers=2)


def test_what_is_wrong_with_a_task_is_said_before_a_line_is_read(monkeypatch):
    """So that no file is emptied for nothing."""

    def wrong(self, *how, **more):
        raise ValueError("int8 is for a CPU")

    monkeypatch.setattr(TranslationSession, "__init__", wrong)
    with pytest.raises(ValueError, match="int8 is for a CPU"):
        small_translator().stream(["a"])
