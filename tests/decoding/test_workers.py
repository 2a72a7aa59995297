"""Processes that share the lines: the same outputs in the same order, and the same mistakes."""

import io
import math
import os
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import pytest
import torch

import sixfold
from sixfold.api import worker
from sixfold.config.schema import change_decoding
from sixfold.decoding import workers
from sixfold.decoding.engine import Engine
from sixfold.decoding.job import Job, Ticket, TooLate
from sixfold.decoding.ordered import Stopped
from sixfold.decoding.records import Line
from tests.support import runs

LINES = ["a b c", "", "i h", "c", "d e", "f", "g h i a b", "a", "b"]


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return sixfold.load(runs.translating(tmp_path_factory.mktemp("run") / "mine"), device="cpu")


class Here(workers._Worker):
    """A worker in a thread of this process."""

    made = 0
    given: ClassVar[list[list[int]]] = []  # what each was given, by the number of lines

    def _start(self):
        Here.made += 1
        Here.given.append([])
        self.mine = Here.given[-1]
        (asked, ask), (said, say) = os.pipe(), os.pipe()
        self.thread = threading.Thread(target=self._serve, args=(asked, say), daemon=True)
        self.thread.start()
        return os.fdopen(ask, "wb"), os.fdopen(said, "rb")

    def _serve(self, asked, say):
        with os.fdopen(asked, "rb") as questions, os.fdopen(say, "w") as answers:
            worker.serve(questions, answers)

    def give(self, tickets):
        self.mine.append(len(tickets))
        super().give(tickets)

    def close(self):
        with suppress(BrokenPipeError):
            self.questions.close()
        self.thread.join()
        self.listener.join()


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(workers, "_Worker", Here)
    monkeypatch.setattr(workers, "PORTION", 2)
    monkeypatch.setattr(Here, "made", 0)
    monkeypatch.setattr(Here, "given", [])
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
    with pytest.raises(Stopped):
        writer.generate(prompts, workers=1, stop=lambda: True)


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


def test_a_mistake_far_ahead_costs_nothing_that_comes_before(translator, here):
    """The longest lines are dealt first, so it is met before the lines before it are begun."""
    found, lines, options = [], [*LINES, "a " * 40, *LINES], {"window": 64, "first": 64, "workers": 2}
    with pytest.raises(ValueError, match="line 10: the source has 40 tokens"):
        found.extend(translator.stream(lines, **options, max_source=8, too_long="refuse"))
    assert told(found) == told(translator.translate(LINES))
    assert Here.made == 2  # it fails alone: nobody begins again


def test_lines_go_where_there_is_time_for_them(translator, here):
    lines = LINES * 8
    assert told(translator.translate(lines, workers=3)) == told(translator.translate(lines))
    assert sum(map(sum, Here.given)) == len(lines)
    assert all(number <= 2 for given in Here.given for number in given)


def queue(of):
    return [(number, number, Ticket(Job(limit=0, size=size))) for number, size in enumerate(of)]


def sizes(*how):
    return [ticket.job.size for ticket in workers.portion(*how).values()]


def test_a_portion_is_of_every_length_and_in_the_end_no_more_than_a_share():
    many = queue(range(100, 0, -1))
    assert sizes(many, 2, 0, 10**6, False) == list(range(100, 68, -2))  # more may come: as much as it has room for
    assert sizes(many, 2, 0, 0, False) == [*range(99, 67, -4), *range(68, 52, -2)]
    few = queue(range(8, 0, -1))
    assert sizes(few, 2, 0, 0, True) == [8, 6, 4]  # 18 of 36
    assert sizes(few, 2, 18, 18, True) == []  # it has its share
    assert sizes(few, 2, 18, 0, True) == [7, 3, 1]


def test_long_lines_go_by_fewer(monkeypatch):
    monkeypatch.setattr(workers, "_CHARACTERS", 100)
    waiting = queue([90, 60, 50, 500, 40, 30] * 2)
    assert sizes(waiting, 1, 0, 0, False) == [90, 60]
    assert sizes(waiting, 1, 0, 0, False) == [50, 500]


def test_one_that_says_what_is_no_answer_is_noticed(translator, tmp_path, monkeypatch):
    """As a module may that Python imports before anything else."""
    (tmp_path / "sitecustomize.py").write_text("print('hello')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ValueError, match="ended before its work was done"):
        translator.translate(LINES, workers=1)


def test_one_that_ends_too_soon_is_noticed(translator):
    given = translator.stream(LINES * 300, workers=1)
    pool = given.gi_frame.f_locals["self"]
    next(given)
    pool.workers[0].process.kill()
    with pytest.raises(ValueError, match="ended before its work was done"):
        for _ in given:
            pass


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


@pytest.fixture
def rows(monkeypatch):
    """The lines of each step of the engines of all workers."""
    found, advance = [], Engine._advance

    def spied(engine):
        found.append([sentence.job.tag.text for sentence in engine.sentences])
        return advance(engine)

    monkeypatch.setattr(Engine, "_advance", spied)
    return found


def pool_of(translator, **keys):
    return workers.WorkerPool(translator.origin, change_decoding(translator.decoding, keys), 1)


def submit(pool, *lines):
    return [pool.submit(job) for job in pool.jobs([Line(*each) for each in lines])]


STEPS = 500  # of each long text, so that messages arrive in between
LONG = {"min_length": STEPS, "max_length": STEPS}


def test_a_line_that_comes_at_step_4_joins_the_batch_and_gives_what_it_gives_alone(translator, here, rows):
    pool = pool_of(translator, **LONG)
    first = submit(pool, ["a b"], ["c"])
    while len(rows) < 4:
        pool.step()
    (late,) = submit(pool, ["d e f"])
    while not late.done:
        pool.step()
    pool.close()
    assert rows[3] == ["c", "a b"]  # the shorter first
    assert ["c", "a b", "d e f"] in rows
    assert rows.index(["c", "a b", "d e f"]) < STEPS, "it did not wait for the others"
    assert all(ticket.done for ticket in first)
    assert told(pool.finish([*first, late])) == told(translator.translate(["a b", "c", "d e f"], **LONG))


def test_a_cancelled_line_is_gone_before_the_workers_next_step(translator, here, rows):
    pool = pool_of(translator, **LONG)
    keep, drop = submit(pool, ["a b"], ["c"])
    while len(rows) < 4:
        pool.step()
    pool.cancel(drop)
    while not keep.done:
        pool.step()
    pool.close()
    assert rows[3] == ["c", "a b"]
    assert rows[-1] == ["a b"]
    assert len(rows) == STEPS + 1
    assert sum("c" in row for row in rows) < STEPS
    assert str(drop.error) == "it was cancelled"
    assert told(pool.finish([keep])) == told(translator.translate(["a b"], **LONG))


class Driven(worker._Worker):
    """A worker whose messages and steps come one by one from a test."""

    def _listen(self, questions):
        pass

    def after(self, *messages):
        for message in messages:
            self.inbox.put(message)
        assert self._hear()
        self._step()


def test_a_worker_cancels_before_its_next_step(translator, rows):
    with torch.inference_mode():
        one = Driven(translator.session(**LONG), None, io.StringIO())
        one.after({"lines": [[1, ["a b", None, []]], [2, ["c", None, []]]]}, {"lines": []})
        one.after()
        one.after({"cancel": [2]})
    assert rows == [["a b", "c"]] * 2 + [["a b"]]


def test_a_deadline_is_kept_in_workers_too(translator, here):
    pool = pool_of(translator, **LONG)
    late, other = (
        pool.submit(replace(job, deadline=deadline))
        for job, deadline in zip(pool.jobs([Line("a b"), Line("c")]), (time.monotonic() + 0.05, math.inf), strict=True)
    )
    done = []
    while not other.done:
        done += pool.step()
    pool.close()
    assert isinstance(late.error, TooLate)
    assert {id(ticket) for ticket in done} == {id(late), id(other)}
    assert told(pool.finish([other])) == told(translator.translate(["c"], **LONG))


NO_WORD = {"no_repeat_ngram_size": 1, "min_length": 9, "max_length": 9}  # each of the nine letters, once


def test_a_line_fails_alone(translator, here):
    """One when its job is made, the other when no word is left for it."""
    pool = pool_of(translator, **NO_WORD)
    jobs = pool.jobs([Line("a"), Line("b", "\ud800"), Line("\udc00")])
    assert [isinstance(each, Job) for each in jobs] == [True, False, False]
    tickets = submit(pool, ["a b"], ["c", "no such words"], ["d"], ["e f", None, ["A B"]], ["g"])
    while not all(ticket.done for ticket in tickets):
        pool.step()
    pool.close()
    assert [ticket.error is None for ticket in tickets] == [True, False, True, False, True]
    assert "no such words" in str(tickets[1].error)
    assert "no output of at most 9 tokens was found" in str(tickets[3].error)
    found = [ticket for ticket in tickets if ticket.error is None]
    assert told(pool.finish(found)) == told(translator.translate(["a b", "d", "g"], **NO_WORD))


def test_a_pause_drains_no_worker(translator, here, rows):
    """A line that comes after a pause shares a batch with those before, and with the one after the next pause."""
    lines, said = iter(["a b", None, "c", None, "d e", None]), []

    def talk():
        for line in lines:
            while line is not None and line != "a b" and len(rows) < 20 * len(said):
                yield None
            said.append(line)
            yield line

    found = translator.stream(talk(), workers=1, wait=lambda: None, **LONG)
    assert told(found) == told(translator.translate(["a b", "c", "d e"], **LONG))
    assert ["a b", "c", "d e"] in rows


def test_an_output_waits_for_others_only_for_a_moment(translator, monkeypatch):
    """The pool never says that there are no more lines, and 15 lines are not done: the first is sent all the same."""
    said = io.StringIO()
    with torch.inference_mode():
        one = Driven(translator.session(max_length=300), None, said)
        one.engine.tokens = 8  # it has as many lines as it can hold, and does not wait for more
        one.after({"lines": [[number, ["c", None, []]] for number in range(40)]})
        while not one.done:
            one.after()
        assert "translations" not in said.getvalue()
        monkeypatch.setattr(worker, "_SOON", 0)
        one.after()
    assert not one.done
    assert "translations" in said.getvalue()


def test_lines_join_while_others_are_on_their_way(translator, here):
    """Lines that come one by one, and never all at once."""
    moments = [LINES[:3], [], [], LINES[3:4], [], LINES[4:]]
    lines = (line for moment in moments for line in (*moment, None))
    assert told(translator.stream(lines, workers=2, wait=lambda: None)) == told(translator.translate(LINES))


def test_what_cannot_be_loaded_says_why(translator, here, tmp_path):
    lost = translator.origin._replace(runs=(str(tmp_path / "gone"),))
    pool = workers.WorkerPool(lost, translator.decoding, 1)
    with pytest.raises(ValueError, match=r"there is no directory .*gone"):
        next(pool.closing(pool.stream(["a"])))


def test_what_workers_are_not_for(translator):
    with pytest.raises(ValueError, match="attention work in this process only"):
        translator.translate(["a"], workers=1, attention=True)
    with pytest.raises(ValueError, match="at least one worker, got -1"):
        translator.translate(["a"], workers=-1)


@pytest.mark.parametrize(("allowed", "number", "each"), [(1, 1, 1), (1, 2, 1), (6, 1, 6), (6, 2, 3), (6, 4, 1)])
def test_workers_share_the_threads_that_this_process_may_use(translator, here, monkeypatch, allowed, number, each):
    taken = []
    monkeypatch.setattr("torch.set_num_threads", taken.append)
    monkeypatch.setattr("torch.get_num_threads", lambda: allowed)
    monkeypatch.setattr("sixfold.core.threads.cores", lambda: 64)
    translator.translate(LINES * 4, workers=number)
    assert taken == [each] * number


def test_a_real_one(translator):
    """Nothing that it prints is an answer, Ctrl-C is not for it, and it ends when it is not needed."""
    given = translator.stream([*LINES, "a " * 40], workers=1, max_source=8, too_long="refuse")
    found = [next(given) for _ in LINES]
    assert [each.tokens for each in found] == [each.tokens for each in translator.translate(LINES)]
    with pytest.raises(ValueError, match="line 10: the source has 40 tokens"):
        next(given)
