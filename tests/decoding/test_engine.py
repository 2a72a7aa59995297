"""A running batch that one can talk to: jobs come, go, and fail alone, between two steps."""

import math
import time
from dataclasses import replace

import pytest
import torch

from sixfold import BOS, EOS
from sixfold.core.ids import PAD
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.engine import Engine
from sixfold.decoding.job import Impossible, Job, TooLate, Unanswerable
from sixfold.decoding.ordered import OrderedStream
from sixfold.decoding.records import Line
from sixfold.decoding.rules.rule import CoveragePenalty, Rule
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.sample import Sample
from sixfold.decoding.step import ModelStep
from tests.support.chains import Chain
from tests.support.company import METHODS, SOURCES, Shuffled, made
from tests.support.small import moved_model
from tests.support.translators import LINES, assert_same, small_translator

WAYS = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
A, B = 3, 4
# After A and B comes the other, nearly always: texts are as long as they may be.
AB = [[0] * 5, [0, 0, 0, 0.5, 0.5], [0] * 5, [0, 0, 0.1, 0.1, 0.8], [0, 0, 0.1, 0.8, 0.1]]


def job(number, **more):
    return Job(source=[*SOURCES[number], EOS], limit=9, seed=number, **more)


def answered(engine, ticket):
    while not ticket.done:
        engine.step()
    return ticket.found


class Nothing(Rule):
    """No word is allowed after so many."""

    def __init__(self, after=0):
        self.after = after

    def apply(self, log_p, said, room):
        if len(said) >= self.after:
            log_p[:] = -math.inf

    def describe(self):
        return "saying nothing at all"


@WAYS
def test_a_job_that_comes_late_gives_what_it_gives_alone(method):
    step = Shuffled(make_step(made("encoder_decoder", ())))
    (alone,) = [answered(engine := Engine(step, method), engine.submit(job(5)))]
    engine = Engine(step, method)
    others = [engine.submit(job(number)) for number in range(4)]
    for _ in range(3):
        engine.step()
    assert not all(other.done for other in others)
    ticket = engine.submit(job(5))
    engine.step()
    assert any(sentence is ticket for sentence in engine.sentences) or ticket.done, "it joins at the next step"
    found = answered(engine, ticket)
    assert [each.tokens for each in found] == [each.tokens for each in alone]
    for one, other in zip(found, alone, strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-9)
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-9)


@WAYS
@pytest.mark.parametrize("after", [0, 2])
def test_a_job_that_cannot_be_answered_fails_alone(method, after):
    step = Shuffled(make_step(made("encoder_decoder", ())))
    engine = Engine(step, method)
    first, wrong, last = (engine.submit(job(n, rules=rules)) for n, rules in ((1, ()), (2, (Nothing(after),)), (3, ())))
    done = []
    while engine.busy:
        done += engine.step()
    assert {id(ticket) for ticket in done} == {id(first), id(wrong), id(last)}
    assert isinstance(wrong.error, Impossible)
    assert "saying nothing at all" in str(wrong.error)
    for ticket in (first, last):
        alone = answered(other := Engine(step, method), other.submit(ticket.job))
        assert [each.tokens for each in ticket.found] == [each.tokens for each in alone]
        assert ticket.error is None


@WAYS
@pytest.mark.parametrize("make", [make_step, ModelStep])
def test_a_source_for_which_the_model_gives_nan_fails_alone(method, make):
    """Word 9 is no number."""
    model = moved_model(modifications=("untied",), vocab=12, dtype=torch.float32)
    engine = Engine(make(model), method)
    first, last = engine.submit(job(1)), engine.submit(Job(source=[4, EOS], limit=9))
    engine.step()
    with torch.no_grad():
        model.roles["source"].weight[9] = math.nan
    wrong = engine.submit(Job(source=[9, EOS], limit=9))
    while engine.busy:
        engine.step()
    assert str(wrong.error) == "the model's log-probabilities are NaN"
    assert [ticket.error for ticket in (first, last)] == [None, None]


@pytest.mark.parametrize("method", [Greedy(), Beam(3)], ids=["greedy", "beam"])
@pytest.mark.parametrize("make", [make_step, ModelStep])
@pytest.mark.parametrize("kind", ["encoder_decoder", "decoder_only"])
@pytest.mark.parametrize(
    "wish", ["untied", "rotary", "t5_bias", "shaw", "lightweight_convolution", "mixture_of_softmaxes"]
)
@torch.inference_mode()
def test_a_job_that_takes_the_row_of_one_with_nan_gives_what_it_gives_alone(wish, kind, make, method):
    """Word 9 is no number: in sources, in prompts, and where a decoder alone chooses it."""
    model = moved_model(kind, dict.fromkeys(("untied", wish)), vocab=12, dtype=torch.float32)
    model.roles["source" if kind == "encoder_decoder" else "target"].weight[9] = math.nan
    words = [[5, 6], [4, 9, 7, 8, 9], [3, 5], [9, 9, 9, 9, 4, 5], [7], [4, 4], [9], [8, 7, 6, 5, 4, 3], [5], [9, 3, 5]]
    jobs = [
        Job(source=[*line, EOS], limit=12) if kind == "encoder_decoder" else Job(prompt=[BOS, *line], limit=12)
        for line in words * 2
    ]
    step, engine = make(model), Engine(make(model), method, batch_tokens=40 * method.width)
    tickets = [engine.submit(job, number) for number, job in enumerate(jobs)]
    while engine.busy:
        engine.step()
    for ticket in tickets:
        alone = (other := Engine(step, method)).submit(ticket.job)
        answered(other, alone)
        assert str(ticket.error) == str(alone.error)
        assert [each.tokens for each in ticket.found] == [each.tokens for each in alone.found]
    assert {ticket.error is None for ticket in tickets} == {True, False}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"source": [5, 99, EOS]}, "source of a job has one id or more, from 1 to 13; got ids from 2 to 99"),
        ({"source": []}, "source of a job has one id or more, from 1 to 13; got no ids"),
        ({"source": [PAD, EOS]}, "source of a job has one id or more, from 1 to 13; got ids from 0 to 2"),
        ({"source": [5] * 9}, "source of a job has 9 tokens, and the model has 6 positions"),
        ({"prompt": [1, 14]}, "prompt of a job has one id or more, from 1 to 13; got ids from 1 to 14"),
        ({"limit": 6}, "prompt of a job and the limit of its output have 7 tokens, and the model has 6 positions"),
    ],
)
def test_a_job_that_the_model_cannot_read_is_refused_before_it_is_queued(wrong, message):
    engine = small_translator(("learned_positions:length=6",)).session().engine()
    right = engine.submit(Job(source=[5, EOS], limit=5))
    with pytest.raises(ValueError, match=message):
        engine.submit(Job(**{"source": [5, EOS], "limit": 5, **wrong}))
    assert answered(engine, right)


@WAYS
def test_a_rule_that_needs_attention_fails_alone_where_the_step_has_none(method):
    engine = Engine(Shuffled(make_step(made("encoder_decoder", ()))), method)
    first, wrong = engine.submit(job(1)), engine.submit(job(2, rules=[CoveragePenalty(0.2)]))
    assert answered(engine, first)
    assert "needs attention weights, which the search does not read" in str(wrong.error)


def test_a_job_may_be_submitted_twice():
    """Its rules remember nothing of another search: here one in which a layer does not see the source."""
    session, off = small_translator(max_length=12, seed=4).session(gates={}), {"decoder.1.cross": torch.zeros(1, 2)}

    def job_with(gates):
        (found,) = session.jobs([Line("a b c d", terms=("D E",))])
        return replace(found, gates=gates)

    plain, blind = (answered(engine := session.engine(), engine.submit(job_with(gates))) for gates in (None, off))
    assert plain[0].tokens != blind[0].tokens
    once, engine = job_with(None), session.engine()
    tickets = [engine.submit(once), engine.submit(replace(once, gates=off))]
    assert [answered(engine, ticket)[0].tokens for ticket in tickets] == [plain[0].tokens, blind[0].tokens]


def test_of_a_job_that_is_cancelled_nothing_is_found():
    """One of its samples had ended, the other had not."""
    engine = Engine(Chain([[0, 0, 0.5, 0.5]] * 4), Sample(2))
    tickets = [engine.submit(Job(source=(number,), limit=50, seed=number)) for number in range(20)]
    while not (begun := [ticket for ticket in tickets if len(ticket.found) == 1]):
        engine.step()
    engine.cancel(begun[0])
    assert (begun[0].found, str(begun[0].error)) == ([], "it was cancelled")


@pytest.mark.parametrize("method", [Greedy(), Beam(2), Sample(2)])
def test_a_cancelled_job_is_gone_by_the_next_step(method):
    chain = Chain(AB)
    engine = Engine(chain, method)
    tickets = [engine.submit(Job(source=(number,), limit=20)) for number in range(8)]
    engine.step()
    engine.cancel(tickets[3])
    engine.step()
    assert (3,) in chain.asked[-2]
    assert (3,) not in chain.asked[-1], "one of eight leaves, though it costs copying"
    assert isinstance(tickets[3].error, Unanswerable)
    for ticket in tickets:
        engine.cancel(ticket)
    assert engine.step() == []
    assert (engine.busy, engine.state, len(chain.asked)) == (False, None, 2)


def test_one_that_waits_can_be_cancelled_too_and_what_is_done_stays():
    engine = Engine(Chain(AB), Greedy(), batch_tokens=2)
    first, second, third = (engine.submit(Job(source=(number,), limit=3)) for number in range(3))
    engine.cancel(second)
    answered(engine, first)
    engine.cancel(first)
    assert (first.error, len(first.found)) == (None, 1)
    assert answered(engine, third)
    assert second.found == []


def test_a_deadline_is_kept_by_the_job_alone():
    chain = Chain(AB)
    engine = Engine(chain, Greedy())
    late = engine.submit(Job(source=(1,), limit=20, deadline=time.monotonic() - 1))
    punctual = engine.submit(Job(source=(2,), limit=20, deadline=time.monotonic() + 1000))
    assert engine.step() == [late]
    assert isinstance(late.error, TooLate)
    assert chain.asked == [[(2,)]]
    assert answered(engine, punctual)


def test_the_shortest_of_those_that_wait_come_first_but_nobody_waits_for_ever():
    engine = Engine(Chain(AB), Greedy(), batch_tokens=1)
    begun, running = [], engine.submit(Job(source=(0,), limit=1))
    waiting = [engine.submit(Job(source=[number] * length, limit=1)) for number, length in enumerate((9, 2, 5), 1)]
    later = [engine.submit(Job(source=[9], limit=1)) for _ in range(20)]
    while engine.busy:
        begun += engine.step()  # one after the other
    places = [next(place for place, each in enumerate(begun) if each is ticket) for ticket in (*waiting, *later)]
    assert begun[0] is running
    nine, two, five = places[:3]
    assert two < five < nine
    assert nine < max(places), "it was overtaken by some, not by all"


def test_room_that_is_there_is_used_at_once_and_for_many_when_a_quarter_is_free():
    engine = Engine(Chain(AB), Greedy(), batch_tokens=16)  # eight of two tokens
    for number in range(7):
        engine.submit(Job(source=(number,), limit=20))
    engine.step()
    engine.submit(Job(source=(7,), limit=20))
    engine.step()
    assert len(engine.sentences) == 8, "the batch is nearly full, but there is room for all"
    queue = [engine.submit(Job(source=(number,), limit=20)) for number in range(8, 12)]
    engine.cancel(engine.sentences[0])
    engine.step()
    assert len(engine.waiting) == len(queue), "one row is not worth it"
    for sentence in engine.sentences[:2]:
        engine.cancel(sentence)
    engine.step()
    assert len(engine.waiting) == 1


# Streams of lines -----------------------------------------------------------------------------------------------------


class Talk:
    """Lines that come when a program says so: `hears` is told of the lines that are answered, step by step."""

    def __init__(self, *moments):
        self.moments, self.waited = list(moments), 0

    def __iter__(self):
        while self.moments:
            yield from self.moments.pop(0)
            yield None

    def wait(self):
        self.waited += 1


def test_a_pause_drains_nothing():
    """A line joins while others are on their way, and nobody waits for anything until all is answered."""
    session = small_translator(max_length=12, min_length=12).session()
    engine = session.engine()
    session.engine = lambda: engine
    talk = Talk(LINES[:1], [], LINES[2:3], LINES[3:4])
    seen, step = [], engine.step
    engine.step = lambda: seen.append(sum(not each.done for each in engine.sentences)) or step()
    with torch.inference_mode():
        found = list(OrderedStream(session, talk, wait=talk.wait))
    assert max(seen) == 3, "all three were on their way at once"
    assert talk.waited <= 1  # when all is answered, for the end
    translator = small_translator(max_length=12, min_length=12)
    assert_same(found, translator.translate([LINES[0], *LINES[2:4]]))


def test_a_job_is_next_while_a_file_is_on_its_way():
    """A stream of 100 lines and a program submit to one engine, whose batch has room for a few lines."""
    session = small_translator(max_length=6, batch_tokens=16).session()
    engine = session.engine()
    session.engine = lambda: engine
    file, answers, asked = iter(OrderedStream(session, ["a b c"] * 100)), [], []
    for number in range(0, 90, 30):
        answers += [next(file) for _ in range(10)]
        (job,) = session.jobs([Line(f"{'b ' * (number // 30 + 1)}c d e f g")])
        asked.append((engine.submit(job), len(answers)))
        while not asked[-1][0].done:
            answers.append(next(file))
    assert len(answers) < 60, "a job waited for lines that were submitted before"
    for ticket, _ in asked:
        (found,) = session.finish([ticket])
        assert_same([found], small_translator(max_length=6).translate([ticket.job.tag.text]))
    assert len([*answers, *file]) == 100


def test_a_line_is_answered_while_others_come():
    """Each is out as soon as it and those before it are done, though lines never cease to come."""
    translator, answers = small_translator(max_length=6), []

    def lines():
        for number in range(200):
            yield "a b" if number % 2 else None
            assert number // 2 - len(answers) <= 12, "lines wait for others that came later"

    for found in translator.stream(lines(), wait=lambda: None):
        answers.append(found)
    assert len(answers) == 100


def test_a_plain_source_that_may_wait_is_asked_again_when_all_is_answered():
    answers = []

    def lines():
        for line in ("a b", None, "c", None):
            yield line
            assert line is not None or len(answers) in (1, 2)

    for found in small_translator().stream(lines()):
        answers.append(found)


def test_one_line_that_fails_is_named_and_the_others_are_not_begun_again():
    translator = small_translator(max_length=5)
    session = translator.session()
    engine, plain, steps = session.engine(), session.job, []
    session.engine = lambda: engine
    session.job = lambda line, ids: Job(source=[*ids, EOS], limit=5, rules=[Nothing(2)] if line.text == "c" else [])
    step = engine.step
    engine.step = lambda: steps.append(1) or step()
    found = []
    with pytest.raises(ValueError, match="line 3: no output of at most 5 tokens"):
        found.extend(OrderedStream(session, ["a b", "b", "c", "d e"]))
    assert len(found) == 2
    assert len(steps) <= 6, "nobody starts from the beginning"
    assert plain


def test_a_line_that_fails_while_others_step_the_engine_is_named():
    session = small_translator().session()
    engine = session.engine()
    session.engine = lambda: engine
    limits = {"a": 0, "b": 9, "c": 9}
    session.job = lambda line, ids: Job(
        source=[*ids, EOS], limit=limits[line.text], rules=[Nothing(2)] if line.text == "b" else []
    )
    lines = iter(OrderedStream(session, [*limits]))
    assert next(lines).text == ""
    while engine.busy:
        engine.step()
    with pytest.raises(ValueError, match="line 2: no output of at most 9 tokens"):
        next(lines)
