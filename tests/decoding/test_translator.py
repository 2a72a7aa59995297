"""Lines in, lines out: the same ones in any company, in order, and nobody's mode is changed."""

import pytest
import torch

from sixfold import BOS, EOS, PAD, Tap
from sixfold.decoding.greedy import greedy
from sixfold.decoding.step import ModelStep
from sixfold.decoding.translator import Stopped, Translator, batched, evaluating
from sixfold.text.tokenizer import MASK, UNK, Tokenizers, train_tokenizer
from tests.small import MODIFICATIONS, applies, assert_close, moved_model, seeded

LETTERS = train_tokenizer("symbols", ["a b c d e f g h i"], None)
SHOUTED = train_tokenizer("symbols", ["A B C D E F G H I"], None)
LINES = ["a b c", "", "i h g f e d c b a", "a", "   ", "c c", "b a d", "f e d c b", "g", "a b c"]


def small_translator(wishes=(), **options):
    """A model that says something: a plain one with tied tables says the same word for ever."""
    model = moved_model(
        modifications=("untied", *wishes), vocab=0, source_vocab=len(LETTERS), target_vocab=len(SHOUTED)
    )
    with torch.no_grad():
        model._table["output"].weight += torch.randn(len(SHOUTED), 16, generator=seeded(2), dtype=torch.float64)
    return Translator(model, Tokenizers(LETTERS, SHOUTED), **options)


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        assert one._replace(score=0.0) == other._replace(score=0.0)
        assert one.score == pytest.approx(other.score, abs=1e-9)


def test_a_line_does_not_depend_on_its_company():
    alone = small_translator(batch_tokens=1).translate(LINES)
    assert len({line.text for line in alone}) > 5
    for tokens in (8, 15, 1000):
        assert_same(alone, small_translator(batch_tokens=tokens).translate(LINES))
    assert_same(alone[::-1], small_translator().translate(LINES[::-1]))
    assert_same(alone[2:3], small_translator().translate(LINES[2:3]))


def test_a_translation_is_what_greedy_search_finds():
    translator = small_translator()
    (line,) = translator.translate(["c c"])
    step = ModelStep(translator.model)
    with torch.inference_mode():
        state = step.begin([[*LETTERS.encode("c c"), EOS]])
        (found,) = greedy(step, state, torch.tensor([[BOS]]), [16], never=(PAD, BOS, MASK))
    assert (line.tokens, line.score, line.ended) == (found.tokens, found.score, found.ended)
    assert line.text == SHOUTED.decode(found.tokens)


def test_the_score_is_that_of_reading_what_was_written():
    translator = small_translator()
    for source, line in zip(LINES, translator.translate(LINES), strict=True):
        if source.strip():
            model = translator.model
            memory = model.encode(torch.tensor([[*LETTERS.encode(source), EOS]]))
            log_p = model.log_probs(model.decode(torch.tensor([[BOS, *line.tokens]]), memory))[0]
            right = log_p[range(len(line.tokens) + 1), [*line.tokens, EOS]]
            assert line.score == pytest.approx(right.sum().item(), abs=1e-9)


def test_empty_lines_stay_where_they_are():
    translations = small_translator().translate(LINES)
    assert len(translations) == len(LINES)
    assert [translations[i] for i in (1, 4)] == [("", 0.0, (), True, "")] * 2
    assert small_translator().translate([]) == []


def test_lengths_are_limited():
    free = small_translator(max_length=1000, max_ratio=50).translate(LINES)
    longest = max(len(line.tokens) for line in free)
    assert longest > 60  # 50 · 1 + 10: some line goes on and on
    for line in small_translator(max_length=7, max_ratio=50).translate(LINES):
        assert len(line.tokens) == 7 if not line.ended else len(line.tokens) <= 7
    for source, line in zip(LINES, small_translator(max_ratio=1.5).translate(LINES), strict=True):
        most = int(1.5 * len(source.split())) + 10
        assert len(line.tokens) == most if not line.ended else len(line.tokens) <= most


def test_what_the_model_can_tell_apart_limits_too():
    translator = small_translator(("learned_positions:length=6",), max_ratio=50)
    assert translator.model.limits == {"encoder": 6, "decoder": 6}
    with torch.no_grad():
        translator.model._table["output"].weight[EOS] = 0  # less likely than some word always is: no end
    found = translator.translate(["a b c d e", "a b c d e f g", "a"])
    assert [(len(line.tokens), line.ended) for line in found] == [(5, False)] * 3  # and BOS
    assert [line.note for line in found] == [
        "",
        "the source has 7 tokens and was truncated to 5, all that this model can read",
        "",
    ]
    assert found[0].text == found[1].text


def test_control_ids_are_never_said_but_an_unknown_word_may_be():
    translator = small_translator()
    table = translator.model._table["output"].weight
    with torch.no_grad():
        table[:] = 0.0  # all words alike, and the one that is likeliest is the first that may be said
        assert translator.translate(["a"])[0] == ("", pytest.approx(-torch.tensor(len(SHOUTED)).log()), (), True, "")
        table[UNK] = translator.model.decode(torch.tensor([[BOS]]), translator.model.encode(torch.tensor([[5, EOS]])))[
            0
        ]
        table[[PAD, BOS, MASK]] = 2 * table[UNK]
    assert translator.translate(["a"])[0].tokens[0] == UNK


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode_and_its_dropout_is_off(training):
    translator = small_translator()
    expected = translator.translate(LINES)
    model = translator.model.train(training)
    model.encoder.eval()
    for part in model.modules():
        part.p = 0.5
    assert_same(expected, translator.translate(LINES))
    translator.cross_attention("a b", "A")
    assert (model.training, model.decoder.training) == (training, training)
    assert not model.encoder.training
    with pytest.raises(ValueError), evaluating(model):
        model.encode(torch.tensor([[len(LETTERS)]]))
    assert model.decoder.training is training


def test_somebody_may_ask_to_stop_between_batches():
    translator, asked = small_translator(batch_tokens=1), []

    def stop():
        asked.append(len(asked))
        return len(asked) == 3

    with pytest.raises(Stopped):
        translator.translate(LINES, stop=stop)
    assert len(asked) == 3
    assert_same(translator.translate(LINES, stop=lambda: False), translator.translate(LINES))


def test_batches_by_hand():
    lengths = {0: 3, 2: 9, 3: 1, 5: 2, 6: 4, 7: 4}
    assert list(batched(lengths, 8)) == [[2], [6, 7], [0, 5], [3]]  # 9 is too long, and goes alone
    assert list(batched(lengths, 100)) == [[2, 6, 7, 0, 5, 3]]
    assert list(batched({}, 8)) == []


@pytest.mark.parametrize("wish", [wish for wish in MODIFICATIONS if applies("encoder_decoder", wish)])
def test_every_model_shows_its_cross_attention(wish):
    translator = Translator(moved_model(modifications=(wish,), vocab=len(LETTERS)), Tokenizers(LETTERS, LETTERS))
    attention = translator.cross_attention("a b c", "b a")
    assert attention.target == ["b", "a", "</s>"]
    assert attention.source == (["1", "2"] if wish.startswith("funnel") else ["a", "b", "c", "</s>"])
    layers, _, rows, columns = attention.weights.shape
    assert (layers, rows, columns) == (2, 3, len(attention.source))
    assert_close(attention.weights.sum(-1), torch.ones(attention.weights.shape[:-1]), within=1e-6)


def test_cross_attention_is_what_a_tap_sees():
    translator = small_translator()
    tap, model = Tap("decoder.1.cross"), translator.model
    memory = model.encode(torch.tensor([[*LETTERS.encode("a b c"), EOS]]))
    model.decode(torch.tensor([[BOS, *SHOUTED.encode("B A")]]), memory, tap=tap)
    assert_close(translator.cross_attention("a b c", "B A").weights[1], tap["decoder.1.cross"][0].float())


def test_what_cannot_translate():
    both = Tokenizers(LETTERS, SHOUTED)
    with pytest.raises(ValueError, match="only an encoder_decoder translates"):
        Translator(moved_model("decoder_only"), both)
    with pytest.raises(ValueError, match=f"the source tokenizer has {len(LETTERS)} ids, but the model was made for 50"):
        Translator(moved_model(), both)
    with pytest.raises(ValueError, match="must be positive, got 0"):
        small_translator(max_length=0)
    with pytest.raises(ValueError, match="a list of lines"):
        small_translator().translate("a b c")
