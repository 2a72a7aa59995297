"""For every model that writes: a sentence gives the same text and score alone, in any company, and without a cache."""

import math
from random import Random

import pytest
import torch

from sixfold import BOS, EOS
from sixfold.decoding.cpu.kv_store import KVStore
from sixfold.decoding.cpu.step import FusedStep, make_step
from sixfold.decoding.engine import Engine, Job, search
from sixfold.decoding.equalities import Trial
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.search.greedy import Greedy
from sixfold.decoding.step import ModelStep
from sixfold.decoding.uncached import UncachedStep
from sixfold.verify.contract.searching import gap_without_cache, gaps_in_company
from tests.support.company import EVERYBODY, METHODS, Shuffled, assert_same, found, job_of, made, writers
from tests.support.covering import covering
from tests.support.small import MODIFICATIONS

LOOKED_AT = EVERYBODY[::10]


@covering(writers(), every="kind", method=METHODS)
def test_company_and_cache_make_no_difference(kind, modifications, method):
    """By the functions by which the contract checks a part, and `sixfold verify` a user's own model."""
    model = made(kind, modifications)
    step, some = Shuffled(make_step(model)), [job_of(number, kind) for number in LOOKED_AT]
    trial = Trial(Random(2).sample([job_of(number, kind) for number in EVERYBODY], len(EVERYBODY)), method)
    gaps = [*gaps_in_company(trial, step, alone=LOOKED_AT)]
    gaps.append(gap_without_cache(Trial(some, method), step, Shuffled(UncachedStep(model)), batch_tokens=1))
    assert all(gap.difference <= 1e-9 and not gap.different for gap in gaps), gaps


def test_these_sentences_try_what_they_should():
    """Ends at different times, chosen ends and limits, different words."""
    texts = [
        text
        for wish in MODIFICATIONS[:20]
        for several in found(
            ModelStep(made("encoder_decoder", (wish,))), Greedy(), EVERYBODY, "encoder_decoder"
        ).values()
        for text in several
    ]
    assert {len(text.tokens) for text in texts if text.ended} >= {0, 1, 2, 3}
    assert {len(text.tokens) for text in texts if not text.ended} >= {0, 3, 5, 6, 7}
    assert len({text.tokens for text in texts}) > 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_any_precision_has_scores_in_at_least_single_precision(dtype):
    model = made("encoder_decoder", (), dtype)
    step = ModelStep(model)
    scores, log_z, *_ = step(torch.tensor([[BOS]]), step.begin([[3, EOS]]))
    assert scores.dtype == log_z.dtype == torch.float32
    assert float((scores - log_z[:, None]).exp().sum()) == pytest.approx(1, abs=1e-5)


def test_in_single_precision_too():
    model = made("encoder_decoder", (), torch.float32)
    step = ModelStep(model)
    for method in METHODS.values():
        whole = found(step, method, EVERYBODY, "encoder_decoder")
        assert_same(whole, found(step, method, EVERYBODY, "encoder_decoder", 1), EVERYBODY, within=1e-4)


@pytest.mark.parametrize("method", [Greedy(), Beam(3)], ids=["greedy", "beam"])
@pytest.mark.parametrize("long_first", [True, False])
@pytest.mark.parametrize("step", [ModelStep, FusedStep])
@torch.inference_mode()
def test_one_long_text_does_not_make_room_for_all(method, long_first, step):
    """Room, in tokens, is bounded by the budget, whoever comes before or after whom."""
    budget, model = 2048, made("encoder_decoder", (), torch.float32)
    lengths = [300, 300, *[3] * 400] if long_first else [*[3] * 400, 300, 300]
    jobs = [Job(source=[5] * (length - 1) + [EOS], limit=min(length, 40)) for length in lengths]
    engine = Engine(step(model), method, batch_tokens=budget)
    for number, job in enumerate(jobs):
        engine.submit(job, number)
    while engine.busy:
        engine.step()
        assert engine.state is None or _room(engine.state) <= 12 * budget


def _room(state):
    """Sequences × slots of the largest buffer, or of what was read."""
    if isinstance(state, KVStore):
        return max(math.prod(kv.states.array.shape[:2]) for kv in (*state.memory, *state.past))
    (room,) = {each.states.shape[0] * each.states.shape[-2] for several in state._kept.values() for each in several}
    return room


@torch.inference_mode()
def test_prompts_that_differ_in_length_by_their_padding():
    model = made("encoder_decoder", ())
    jobs = [Job(source=[5, 6, EOS], prompt=prompt, limit=3) for prompt in ((BOS,), (BOS, 4))]
    together = {job.prompt: found for job, found in search(make_step(model), jobs, Greedy())}
    for job in jobs:
        ((_, (alone,)),) = search(ModelStep(model), [job], Greedy())
        assert together[job.prompt][0].log_probs == pytest.approx(alone.log_probs, abs=1e-9)
