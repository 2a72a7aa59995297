"""A language model goes on with texts: all at once, piece by piece, in any company."""

import pytest
import torch

from sixfold import BOS, EOS
from sixfold.decoding.generator import Generator
from sixfold.decoding.records import Line
from sixfold.text.tokenizer import Tokenizers
from tests.support.generators import LETTERS, WORDS, small_writer
from tests.support.small import moved_model

PROMPTS = ["the cat", "", "how now", "c", "the cat sat on the mat\nhow"]


WAYS = {"greedy": {}, "sampling": {"sample": True}, "beam": {"beam_size": 3, "n_best": 2}}


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_does_not_depend_on_its_company(way):
    writer = small_writer(**WAYS[way])
    alone = [writer.generate([prompt])[0] for prompt in PROMPTS]
    assert len({each.tokens for each in alone}) > 2
    for together in (writer.generate(PROMPTS), writer.generate(PROMPTS[::-1])[::-1]):
        assert [each.tokens for each in together] == [each.tokens for each in alone]
        for one, other in zip(alone, together, strict=True):
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-9)


def test_the_score_is_that_of_reading_on():
    writer = small_writer(sample=True)
    (found,) = writer.generate(["the cat"])
    ids = [BOS, *LETTERS.encode("the cat"), *found.tokens]
    log_p = writer.model.log_probs(writer.model.decode(torch.tensor([ids])))[0, 7:]
    right = log_p[range(len(found.tokens) + 1), [*found.tokens, EOS]]
    assert found.log_probs == pytest.approx(right.tolist(), abs=1e-9)


@pytest.mark.parametrize("tokenizer", [LETTERS, WORDS])
@pytest.mark.parametrize("way", ["greedy", "sampling"])
def test_a_stream_is_the_same_text_in_pieces(tokenizer, way):
    writer = small_writer(tokenizer, max_length=40, min_length=2, **WAYS[way])
    for prompt in PROMPTS:
        pieces = list(writer.stream(prompt))
        assert len(pieces) > 1
        assert "".join(pieces) == writer.generate([prompt])[0].text


def test_a_character_comes_when_it_is_whole():
    """A model that knows three bytes by heart: those of €."""
    writer, euro = small_writer(max_length=6), [5 + byte for byte in "€".encode()]
    writer.model.eval()

    def next_words(model, x):
        scores = torch.full((x.shape[0], len(LETTERS)), -9.0, dtype=x.dtype)
        scores[:, euro[next_words.step % 3]] = 0
        next_words.step += 1
        return scores, scores.logsumexp(1)

    next_words.step = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sixfold.decoding.step.next_words", next_words)
        assert list(writer.stream("")) == ["€", "€", ""]


def test_a_prompt_that_is_too_long_is_read_from_behind():
    writer = small_writer(max_source=3)
    (found,) = writer.generate(["the cat"])
    assert found.note == "the prompt has 7 tokens, of which the last 3 were read (decoding.max_source)"
    assert found.text == writer.generate(["cat"])[0].text
    with pytest.raises(ValueError, match="line 2: the prompt has 7 tokens"):
        writer.generate(["cat", "the cat"], too_long="refuse")


def test_what_the_model_can_tell_apart_is_a_limit():
    writer = small_writer(wishes=("learned_positions:length=8",), max_length=100)
    with torch.no_grad():
        writer.model.roles["output"].weight[EOS] = 0
    short, long = writer.generate(["a", "the cat sat"])
    assert len(short.tokens) == 6  # and BOS, and the prompt
    assert len(long.tokens) == 4
    assert "the last 3 were read" in long.note


def test_what_is_demanded_of_all_is_refused_before_a_prompt_is_read():
    writer, read = small_writer(wishes=("learned_positions:length=8",)), []
    prompts = (read.append(number) or "a" for number in range(3))
    with pytest.raises(ValueError, match=r"^the output must have at least 9 tokens, but at most 7 may be written"):
        writer.stream_many(prompts, min_length=9)
    with pytest.raises(ValueError, match=r"^forbidden words must not be empty"):
        writer.stream_many(prompts, forbidden_words=[""], workers=2)
    assert read == []


def test_more_than_was_seen_at_once_in_training_is_noted():
    notes = [small_writer(context=context).generate(["the cat"])[0] for context in (6, 300, None)]
    assert notes[0].note.endswith("tokens; the model was trained on 6")
    assert (notes[1].note, notes[2].note) == ("", "")


@pytest.mark.parametrize(
    ("text", "as_words"), [("the cat\nhow", "the cat \n how"), ("the\n", "the \n"), ("\n\nmat", "\n \n mat")]
)
def test_ends_of_lines_are_words_as_in_training(text, as_words):
    task = small_writer(WORDS).session()
    (ids,) = task.encode([Line(text)])
    assert ids == WORDS.encode(as_words)
    assert task.text(ids) == text


def test_it_samples_unless_it_is_asked_to_search():
    model = small_writer().model
    writer = Generator(model, Tokenizers(LETTERS, LETTERS))
    assert writer.decoding.sample
    assert len({writer.generate(["the"], max_length=12, seed=seed)[0].text for seed in range(4)}) > 1
    greedy = {writer.generate(["the"], max_length=12, seed=seed, sample=False)[0].text for seed in range(4)}
    assert greedy == {small_writer().generate(["the"])[0].text}
    assert len(writer.generate(["the"], max_length=9, beam_size=4, n_best=3)[0].n_best) == 3


def test_what_cannot_be_written():
    with pytest.raises(ValueError, match="a list of prompts"):
        small_writer().generate("the")
    with pytest.raises(ValueError, match="only models of kind decoder_only continue a text"):
        Generator(moved_model(vocab=len(LETTERS)), Tokenizers(LETTERS, LETTERS))
    with pytest.raises(ValueError, match=f"the target tokenizer has {len(LETTERS)} ids"):
        Generator(moved_model("decoder_only"), Tokenizers(LETTERS, LETTERS))
    with pytest.raises(ValueError, match="must be 1"):
        small_writer().stream("the", beam_size=2)
