"""Processes that share the lines: the same outputs in the same order, and the same mistakes."""

import io
import json

import pytest

import sixfold
from sixfold.decoding import workers
from tests import runs

LINES = ["a b c", "", "i h", "c", "d e", "f", "g h i a b", "a", "b"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return sixfold.load(runs.translating(tmp_path_factory.mktemp("run") / "mine"), device="cpu")


class Here:
    """A worker in this process, which must be asked and answer by turns."""

    made = 0

    def __init__(self, hello):
        Here.made += 1
        self.hello, self.question = json.dumps(hello), None

    def ask(self, question):
        assert self.question is None, "it has not been listened to"
        self.question = json.dumps(question)

    def answer(self):
        questions = io.BytesIO(f"{self.hello}\n{self.question}\n".encode())
        self.question, answers = None, io.StringIO()
        workers.serve(questions, answers)
        return json.loads(answers.getvalue())

    def close(self):
        pass


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(workers, "_Worker", Here)
    monkeypatch.setattr(workers, "CHUNK", 2)
    monkeypatch.setattr(Here, "made", 0)
    monkeypatch.setattr("torch.set_num_threads", lambda number: None)  # what a worker does to itself


def told(translations):
    return [[(each.text, each.tokens, each.ended, each.alignment) for each in t.n_best] for t in translations]


@pytest.mark.parametrize(("number", "started"), [(1, 1), (2, 2), (9, 5)])
def test_many_give_the_same_as_one(translator, here, number, started):
    keys = {"beam_size": 2, "n_best": 2, "alignment": True}
    shared = translator.translate(LINES, workers=number, terms=[["F"], *[[]] * 8], **keys)
    alone = translator.translate(LINES, terms=[["F"], *[[]] * 8], **keys)
    assert told(shared) == told(alone)
    for one, other in zip(shared, alone, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    assert Here.made == started  # no more than there is work for


@pytest.mark.parametrize("keys", [{}, {"n_best": 2, "seed": 3}, {"beam_size": 2, "n_best": 2}])
def test_a_language_model_is_shared_too(here, tmp_path, keys):
    writer = sixfold.load(runs.writing(tmp_path / "lm"), device="cpu")
    prompts = ["the", "", "how now", "c", "the cat sat on the mat"]
    shared, alone = writer.generate(prompts, workers=2, **keys), writer.generate(prompts, **keys)
    assert told(shared) == told(alone)
    assert [each.note for each in shared] == [each.note for each in alone]
    assert alone[-1].note  # longer than what it was trained on
    assert Here.made == 2
    with pytest.raises(ValueError, match="without workers"):
        writer.generate(prompts, workers=1, stop=lambda: False)


def test_a_mistake_is_named_after_what_came_before(translator, here):
    long = "a " * 40
    found = []
    with pytest.raises(ValueError, match="line 6: the source has 40 tokens"):
        found.extend(translator.stream([*LINES[:5], long, *LINES], workers=2, max_source=8, too_long="refuse"))
    assert told(found) == told(translator.translate(LINES[:5]))

    def lines():
        yield from LINES[:5]
        raise ValueError("in.txt, line 6: no text")

    found = []
    with pytest.raises(ValueError, match=r"in.txt, line 6: no text"):
        found.extend(translator.stream(lines(), workers=2))
    assert told(found) == told(translator.translate(LINES[:5]))


def test_at_a_pause_all_so_far_is_answered(translator, here):
    found = []

    def lines():
        for number, line in enumerate(LINES, 1):
            yield line
            if number in (3, 4):
                yield None
                assert len(found) == number

    for each in translator.stream(lines(), workers=2):
        found.append(each)
    assert told(found) == told(translator.translate(LINES))


def test_what_cannot_be_loaded_says_why(translator, here, tmp_path):
    lost = translator.origin._replace(runs=(str(tmp_path / "gone"),))
    given = workers.in_processes(lost, translator.decoding, ["a"], 1)
    with pytest.raises(ValueError, match=r"there is no directory .*gone"):
        next(given)


def test_what_workers_are_not_for(translator):
    with pytest.raises(ValueError, match="without workers"):
        translator.translate(["a"], workers=1, attention=True)
    with pytest.raises(ValueError, match="-1 workers"):
        translator.translate(["a"], workers=-1)


def test_a_real_one(translator):
    """Nothing that it prints is an answer, Ctrl-C is not for it, and it ends when it is not needed."""
    given = translator.stream([*LINES, "a " * 40], workers=1, max_source=8, too_long="refuse")
    found = [next(given) for _ in LINES]
    assert [each.tokens for each in found] == [each.tokens for each in translator.translate(LINES)]
    with pytest.raises(ValueError, match="line 10: the source has 40 tokens"):
        next(given)
