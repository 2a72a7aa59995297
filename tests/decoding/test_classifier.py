"""Texts in, labels out: the same ones in any company, in order, and nobody's mode is changed."""

import itertools

import pytest
import torch

from sixfold.config.schema import Decoding
from sixfold.core.dropout import Dropout
from sixfold.decoding.classifier import BatchEngine, Classification, Classifier
from sixfold.decoding.engine import Job
from sixfold.decoding.ordered import Stopped
from sixfold.decoding.step import batches
from tests.support.classifiers import CLASSIFYING, LABELS, LETTERS, TEXTS, assert_same, small_classifier
from tests.support.small import moved_model


def test_a_label_is_the_likeliest_class_of_the_model():
    classifier = small_classifier()
    for text, found in zip(TEXTS, classifier.classify(TEXTS), strict=True):
        if not text.strip():
            assert found == Classification()
            continue
        probabilities = classifier.model.classify(torch.tensor([LETTERS.encode(text)]))[0].exp().tolist()
        assert [*found.probabilities] == [*LABELS]
        assert [*found.probabilities.values()] == pytest.approx(probabilities, abs=1e-9)
        assert found.probability == max(found.probabilities.values()) == found.probabilities[found.label]
        assert sum(found.probabilities.values()) == pytest.approx(1, abs=1e-12)
        assert found.tokens == tuple(LETTERS.encode(text))
        assert found.note == ""


def test_these_texts_try_what_they_should():
    assert len({found.label for found in small_classifier().classify(TEXTS)}) == 1 + 3  # an empty one, and every label


@pytest.mark.parametrize(
    ("dtype", "precision", "within"),
    [(torch.float64, "float32", 1e-9), (torch.float32, "float32", 1e-6), (torch.float32, "int8", 1e-9)],
)
def test_a_text_does_not_depend_on_its_company(dtype, precision, within):
    classifier = small_classifier(dtype=dtype, precision=precision)
    alone = [classifier.classify([text])[0] for text in TEXTS]
    for tokens in (1, 8, 30, 1000):
        assert_same(alone, classifier.classify(TEXTS, batch_tokens=tokens), within)
    for window in (1, 3):
        assert_same(alone, classifier.stream(TEXTS, window=window), within)
    assert_same(alone[::-1], classifier.classify(TEXTS[::-1]), within)


@pytest.mark.parametrize("wish", CLASSIFYING)
def test_nor_does_it_with_any_modification(wish):
    classifier = small_classifier((wish,))
    alone = [classifier.classify([text])[0] for text in TEXTS]
    assert_same(alone, classifier.classify(TEXTS))


def test_int8_is_near_and_leaves_the_model_alone():
    exact = small_classifier(dtype=torch.float32, seed=0)
    before = {name: tensor.clone() for name, tensor in exact.model.state_dict().items()}
    found = exact.classify(TEXTS, precision="int8")
    assert_same(found, exact.classify(TEXTS, precision="auto"), 0)
    for one, other in zip(found, exact.classify(TEXTS), strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=0.05)
    assert [one.probability for one in found] != [one.probability for one in exact.classify(TEXTS)]
    assert all(torch.equal(tensor, before[name]) for name, tensor in exact.model.state_dict().items())


def test_a_changed_model_is_heeded_in_int8_too():
    classifier = small_classifier(dtype=torch.float32, precision="int8")
    first = classifier.classify(["a b c"])[0].probabilities
    with torch.no_grad():
        classifier.model.classifier.weight *= -1
    assert classifier.classify(["a b c"])[0].probabilities != first


def test_a_line_of_a_file_has_an_end_that_is_not_read():
    classifier = small_classifier()
    assert_same(classifier.classify([f"{text}\n" for text in TEXTS]), classifier.classify(TEXTS))


@pytest.mark.parametrize(
    ("wishes", "keys", "most", "why"),
    [
        ((), {"max_source": 3}, 3, "decoding.max_source"),
        (("learned_positions:length=4",), {}, 4, "all that this model can read"),
    ],
)
def test_a_text_that_is_too_long_is_cut_with_a_note_or_refused(wishes, keys, most, why):
    classifier = small_classifier(wishes, **keys)
    short, long = classifier.classify([" ".join("abcdefghi"[:most]), "a b c d e f g h i"])
    assert (short.note, short.probabilities) == ("", pytest.approx(long.probabilities))
    assert long.note == f"the text has 9 tokens and was truncated to {most} ({why})"
    found = []
    with pytest.raises(ValueError, match=rf"line 2: the text has 9 tokens, and no more than {most} are taken"):
        found.extend(classifier.stream(["a", "a b c d e f g h i", "b"], too_long="refuse"))
    assert_same(found, classifier.classify(["a"]))


def test_lines_are_answered_as_they_come():
    classifier, answered = small_classifier(), []

    def lines():
        for line in ("a", "b c", None, "", "d", None):
            yield line
            if line is None:
                assert len(answered) in (2, 4)

    for found in classifier.stream(lines()):
        answered.append(found)
    assert_same(answered, classifier.classify(["a", "b c", "", "d"]))


def test_memory_does_not_depend_on_how_many_there_are():
    endless = small_classifier().stream(itertools.cycle(TEXTS), window=4)
    assert_same(itertools.islice(endless, 50), small_classifier().classify(TEXTS * 5))


def test_who_asks_to_stop_is_heard_before_each_batch():
    asked = iter([False, True])
    given = small_classifier().stream(TEXTS, stop=lambda: next(asked), batch_tokens=1)
    with pytest.raises(Stopped):
        list(given)
    assert next(asked, None) is None


def test_the_mode_of_the_model_is_what_it_was():
    classifier = small_classifier()
    for part in classifier.model.modules():
        if isinstance(part, Dropout):
            part.p = 0.5
    expected = classifier.classify(TEXTS)
    classifier.model.train()
    classifier.model.stack.layers[0].eval()
    modes = [part.training for part in classifier.model.modules()]
    assert_same(classifier.classify(TEXTS), expected)
    assert [part.training for part in classifier.model.modules()] == modes


def test_a_model_that_gives_nan_is_named_with_the_line():
    classifier = small_classifier()
    with torch.no_grad():
        classifier.model.roles["target"].weight[LETTERS.encode("i")] = torch.nan
    found = []
    with pytest.raises(ValueError, match="line 3: the model's probabilities for this text are NaN"):
        found.extend(classifier.stream(["a", "b", "i", "c"]))
    assert len(found) == 2


def test_of_equal_labels_the_first_wins():
    classifier = small_classifier()
    with torch.no_grad():
        classifier.model.classifier.weight.zero_()
        classifier.model.classifier.bias.zero_()
    (found,) = classifier.classify(["a b"])
    assert (found.label, found.probability) == (LABELS[0], pytest.approx(1 / 3))


def test_batches_have_at_most_so_many_tokens_with_padding():
    lengths = [1, 1, 3, 9, 2, 2, 2, 5]
    found = []
    engine = BatchEngine(lambda jobs: found.append([len(job.source) for job in jobs]) or [[1.0]] * len(jobs), 6)
    for order, length in enumerate(lengths):
        engine.submit(Job(source=[5] * length, limit=0), order)
    while engine.busy:
        engine.step()
    assert found == [[1, 1], [3], [9], [2, 2, 2], [5]]
    assert [*batches([], 6)] == []


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: Classifier(moved_model("encoder_only"), LETTERS, LABELS), "ids, but the model was made for 50"),
        (lambda: Classifier(moved_model("encoder_only", vocab=len(LETTERS)), LETTERS, LABELS), "no classes"),
        (lambda: Classifier(moved_model("decoder_only"), LETTERS, LABELS), "only models of kind encoder_only classify"),
        (lambda: Classifier(small_classifier().model, LETTERS, LABELS[:2]), "made for 3 classes.*got 2"),
        (lambda: Classifier(small_classifier().model, LETTERS, ("a", "b", "a")), "got 3, of which 2 differ"),
        (lambda: small_classifier().classify("a b"), "a list of texts"),
        (lambda: small_classifier().classify(["a", 3]), "line 2: expected a text, got int"),
        (lambda: small_classifier().classify(["a"], max_sources=3), "max_source"),
        (lambda: small_classifier().classify(["a"], window=0), "at least one line"),
    ],
)
def test_a_mistake_is_named(made, words):
    with pytest.raises(ValueError, match=words):
        made()


def test_the_default_is_what_the_configuration_says():
    assert Classifier(small_classifier().model, LETTERS, LABELS).decoding == Decoding()
    assert Classification().probabilities == {}
