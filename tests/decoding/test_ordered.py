"""Lines are answered in order, as they come, and in memory that does not depend on how many they are."""

import itertools

import pytest

from sixfold.decoding.job import Hypothesis, Job, Ticket
from sixfold.decoding.ordered import OrderedStream
from sixfold.decoding.records import Translation


class Echo:
    """A session and its engine that say what they read. Of those done side by side, the shortest are done first."""

    empty = Translation()

    def __init__(self, together=3):
        self.together, self.begun, self.waiting = together, [], []

    def engine(self):
        return self

    def jobs(self, lines):
        return [self.job(line.text) for line in lines]

    def job(self, text):
        if text == "wrong":
            return ValueError("this is wrong")
        return Job(source=list(map(ord, text)), limit=0, tag=text) if text else None

    @property
    def busy(self):
        return bool(self.waiting)

    @property
    def hungry(self):
        return len(self.waiting) < self.together

    def submit(self, job, order):
        self.waiting.append(Ticket(job))
        return self.waiting[-1]

    def cancel(self, ticket):
        self.waiting = [each for each in self.waiting if each is not ticket]

    def step(self):
        some, self.waiting = self.waiting[: self.together], self.waiting[self.together :]
        self.begun += [ticket.job.tag for ticket in some]
        return [self.answer(ticket) for ticket in sorted(some, key=lambda ticket: len(ticket.job.source))]

    def answer(self, ticket):
        ticket.found, ticket.done = [Hypothesis(tuple(ticket.job.source), (), 0.0)], True
        return ticket

    def finish(self, tickets):
        return [Translation("".join(map(chr, ticket.found[0].tokens))) for ticket in tickets]


LINES = ["ccc", "", "a", "dddd", "bb", "", "eeeee", "a", "bb", "ccc", ""]


@pytest.mark.parametrize("window", [1, 2, 3, 5, 100])
def test_in_order_whatever_the_window(window):
    assert [found.text for found in OrderedStream(Echo(), LINES, window)] == LINES


def test_lengths_fall_in_one_window_and_rise_in_the_next():
    task = Echo()
    list(OrderedStream(task, LINES, 6))
    assert task.begun == ["dddd", "ccc", "bb", "a", "a", "bb", "ccc", "eeeee"]


def test_where_somebody_waits_the_shortest_come_first():
    task = Echo()
    list(OrderedStream(task, LINES, 6, first=3))
    assert task.begun == ["a", "ccc", "eeeee", "dddd", "bb", "bb", "a", "ccc"]


def test_lines_are_read_as_they_are_needed():
    read = []

    def lines():
        for number in itertools.count():
            read.append(number)
            yield "a" * (number % 7)

    given = OrderedStream(Echo(), lines(), 5)
    for number, found in enumerate(itertools.islice(given, 500)):
        assert found.text == "a" * (number % 7)
        assert len(read) - number <= 6 * 5


def test_empty_lines_without_end_are_answered_too():
    assert [found.text for found in itertools.islice(OrderedStream(Echo(), itertools.repeat(""), 5), 100)] == [""] * 100


def test_a_line_that_holds_up_the_others_is_waited_for():
    """While one is not done, others go on, but not for ever."""

    class Slow(Echo):
        def step(self):
            first, *self.waiting = self.waiting
            done = super().step()
            self.waiting = [first, *self.waiting] if done else []
            return done or [self.answer(first)]

    read = []
    lines = (read.append(number) or "a" for number in itertools.count())
    given = iter(OrderedStream(Slow(), lines, 5))
    assert next(given).text == "a"
    assert len(read) <= 6 * 5


@pytest.mark.parametrize("window", [1, 2, 100])
def test_at_a_pause_all_so_far_is_answered(window):
    answered = []

    def lines():
        asked = 0
        for line in (None, "a", "bb", None, None, "ccc", "", None):
            yield line
            asked += line is not None
            if line is None:
                assert len(answered) == asked

    for found in OrderedStream(Echo(), lines(), window):
        answered.append(found.text)
    assert answered == ["a", "bb", "ccc", ""]


@pytest.mark.parametrize("window", [1, 4, 100])
def test_a_mistake_ends_it_after_what_came_before(window):
    found = []
    with pytest.raises(ValueError, match="line 6: this is wrong"):
        found.extend(OrderedStream(Echo(), ["ccc", "", "a", "dddd", "bb", "wrong", "eeeee", "wrong"], window))
    assert [each.text for each in found] == ["ccc", "", "a", "dddd", "bb"]


@pytest.mark.parametrize("window", [1, 4, 100])
def test_what_cannot_be_read_ends_it_after_what_came_before(window):
    def lines():
        yield from LINES
        raise ValueError("file.txt, line 12: no text")

    found = []
    with pytest.raises(ValueError, match=r"file.txt, line 12"):
        found.extend(OrderedStream(Echo(), lines(), window))
    assert [each.text for each in found] == LINES


def test_numbers_go_on_from_where_they_are_told():
    with pytest.raises(ValueError, match="line 42: this is wrong"):
        list(OrderedStream(Echo(), ["a", "wrong"], 4, start=41))
