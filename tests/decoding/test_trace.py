"""A trace lists what each step compared, leads to every output, and changes nothing."""

import math
from dataclasses import replace

import pytest
import torch

from sixfold import EOS, Tap
from sixfold.decoding.cpu.step import FusedStep
from sixfold.decoding.engine import Engine, search
from sixfold.decoding.job import Job
from sixfold.decoding.rules.rule import Rule
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.search.length_penalty import LengthPenalty
from sixfold.decoding.search.sample import Sample
from sixfold.decoding.step import ModelStep, padded
from sixfold.decoding.trace import Trace
from tests.support.chains import Chain
from tests.support.company import LIMITS, SOURCES, Shuffled, made
from tests.support.small import assert_close

METHODS = {
    "greedy": Greedy(),
    "beam": Beam(3, n_best=2, length=LengthPenalty(0.6)),
    "groups": Beam(4, n_best=3, groups=2, diversity=0.5),
    "sample": Sample(2),
}
WAYS = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
JOBS = [
    Job(source=[*source, EOS], limit=limit, seed=number)
    for number, (source, limit) in enumerate(zip(SOURCES[:12], LIMITS, strict=False))
]
A, B = 3, 4
CHAIN = [
    [0] * 5,
    [0, 0, 0, 0.6, 0.4],
    [0] * 5,
    [0, 0, 0.2, 0.5, 0.3],  # A
    [0, 0, 0.1, 0.1, 0.8],  # B
]


def traced(step, method, *jobs):
    """The tickets of jobs that were decoded together."""
    engine = Engine(step, method)
    tickets = [engine.submit(replace(job, trace=True)) for job in jobs]
    while engine.busy:
        engine.step()
    return tickets


def by_hand(candidates):
    """(parent, token, p, p of all tokens, fate, index)"""
    return [
        (
            each.parent,
            each.token,
            round(math.exp(each.log_prob), 9),
            round(math.exp(each.total), 9),
            each.fate,
            each.index,
        )
        for each in candidates
    ]


def test_a_beam_on_paper():
    (ticket,) = traced(Chain(CHAIN), Beam(2), Job(limit=1, source=(0,)))
    first, second = ticket.trace.steps
    assert by_hand(first.candidates) == [(0, A, 0.6, 0.6, "kept", 0), (0, B, 0.4, 0.4, "kept", 1)]
    assert by_hand(second.candidates) == [(0, EOS, 0.2, 0.12, "stopped", None), (1, EOS, 0.1, 0.04, "stopped", None)]
    (ticket,) = traced(Chain(CHAIN), Beam(2), Job(limit=9, source=(0,)))
    assert by_hand(ticket.trace.steps[1].candidates) == [
        (1, B, 0.8, 0.32, "kept", 0),
        (0, A, 0.5, 0.3, "kept", 1),
        (0, B, 0.3, 0.18, "cut", None),
        (0, EOS, 0.2, 0.12, "cut", None),  # not among the first two
    ]


def test_greedy_search_on_paper():
    (ticket,) = traced(Chain(CHAIN), Greedy(), Job(limit=1, prompt=(A,), source=(0,)))
    first, last = ticket.trace.steps
    assert by_hand(first.kept) == [(0, A, 0.5, 0.5, "kept", 0)]
    assert by_hand(first.cut) == [(0, B, 0.3, 0.3, "cut", None), (0, EOS, 0.2, 0.2, "cut", None)]
    assert by_hand(last.ended) == by_hand(last.candidates) == [(0, EOS, 0.2, 0.1, "stopped", None)]


def test_samples_are_traced_each_by_itself():
    (ticket,) = traced(Chain(CHAIN), Sample(3), Job(limit=4, source=(0,), seed=5))
    opened = {0, 1, 2}
    for step in ticket.trace.steps:
        assert [each.parent for each in step.kept] == [each.index for each in step.kept]
        taken = [each.parent for each in (*step.kept, *step.ended)]
        assert sorted(taken) == sorted(opened)
        opened = {each.index for each in step.kept}
    assert opened == set()


@WAYS
def test_the_path_of_every_output_has_its_tokens_and_log_probabilities(method):
    step = Shuffled(ModelStep(made("encoder_decoder", ())))
    for ticket in traced(step, method, *JOBS):
        for each in ticket.found:
            path = ticket.trace.path(each.tokens)
            assert tuple(candidate.log_prob for candidate in path) == each.log_probs
            assert path[-1].fate == ("ended" if each.ended else "stopped")
            assert path[-1].total == pytest.approx(sum(each.log_probs), abs=1e-9)  # without rules
        for earlier, later in zip(ticket.trace.steps, ticket.trace.steps[1:], strict=False):
            indices = [each.index for each in earlier.kept]
            assert len(indices) == len(set(indices)), "two candidates became one hypothesis"
            assert {each.parent for each in later.candidates} <= set(indices)


class Half(Rule):
    """A is half as likely."""

    def apply(self, log_p, said, budget):
        log_p[A] += math.log(0.5)


@pytest.mark.parametrize("method", [Greedy(), Beam(1), Sample(1, top_k=1)])
def test_the_total_is_after_the_rules_and_the_log_probability_before(method):
    (ticket,) = traced(Chain(CHAIN), method, Job(limit=2, source=(0,), rules=[Half()]))
    first, *_ = ticket.trace.steps
    assert by_hand(first.kept) == [(0, B, 0.4, 0.4, "kept", 0)]
    assert by_hand(first.cut) == [(0, A, 0.6, 0.3, "cut", None)]


class TwoWords(Rule):
    """Neither fewer nor more: impossible."""

    def apply(self, log_p, said, budget):
        log_p[EOS] = -math.inf
        if len(said) == 2:
            log_p[:] = -math.inf

    def describe(self):
        return "two words without an end"


@WAYS
def test_a_job_that_fails_has_a_trace_up_to_there(method):
    (ticket,) = traced(Chain(CHAIN), method, Job(limit=5, source=(0,), rules=[TwoWords()]))
    assert ticket.error is not None
    assert [bool(step.candidates) for step in ticket.trace.steps] == [True, True, False]


def test_tokens_that_were_not_found_have_no_path():
    (ticket,) = traced(Chain(CHAIN), Greedy(), Job(limit=3, source=(0,)))
    for tokens in ((B, A, B), (), (A,) * 9):
        with pytest.raises(ValueError, match="no hypothesis of this search ended with the tokens"):
            ticket.trace.path(tokens)
    with pytest.raises(ValueError, match="no hypothesis"):
        Trace().path(())


@WAYS
@pytest.mark.parametrize("kind", [FusedStep, ModelStep])
def test_texts_and_scores_are_those_without_a_trace(kind, method):
    step = Shuffled(kind(made("encoder_decoder", (), torch.float32)))
    plain = {job.seed: found for job, found in search(step, JOBS, method)}
    for ticket in traced(step, method, *JOBS):
        assert ticket.found == plain[ticket.job.seed]
    engine = Engine(step, method)
    (ticket,) = [engine.submit(JOBS[0])]
    assert ticket.trace is None


@WAYS
@torch.inference_mode()
def test_the_tap_of_each_step_shows_where_the_hypotheses_of_the_sentence_looked(method):
    """Row i is the hypothesis i, in any company: what one pass over the whole output shows."""
    model, tap = made("encoder_decoder", ()), Tap("decoder.*", fields=("weights", "heads"))
    for ticket in traced(Shuffled(ModelStep(model, tap=tap)), method, *JOBS):
        source = ticket.job.source
        for each in ticket.found:
            whole = Tap("decoder.*", fields=("weights", "heads"))
            model.decode(
                torch.tensor([[1, *each.tokens]]), model.encode(padded([source], torch.device("cpu"))), tap=whole
            )
            for t, (step, chosen) in enumerate(zip(ticket.trace.steps, ticket.trace.path(each.tokens), strict=False)):
                for name in ("decoder.0.attention", "decoder.1.cross"):
                    weights = step.tap[name][chosen.parent, :, -1]
                    seen = t + 1 if name.endswith("attention") else len(source)
                    assert_close(weights[:, :seen], whole[name][0, :, t, :seen])
                    assert not weights[:, seen:].any(), "padding, or another hypothesis"
                    assert_close(step.tap[name, "heads"][chosen.parent, :, -1], whole[name, "heads"][0, :, t])


def test_a_tap_that_is_divided_among_sentences():
    tap = Tap(fields=("weights", "k", "bias"))
    tap("a", "weights", torch.arange(6.0))
    tap("a", "k", torch.arange(3.0))
    tap("a", "bias", torch.ones(1))
    second = tap.part(1, 3)
    assert second["a"].tolist() == [2, 3]
    assert second["a", "k"].tolist() == [1]
    assert second["a", "bias"].tolist() == [1]
