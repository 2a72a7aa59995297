"""Advice before training: for each kind a case that deserves it, and one that does not."""

import pytest

from sixfold.config.advice import (
    advice,
    large_vocabulary,
    less_than_an_epoch,
    long_warmup,
    unusual_rate,
)
from sixfold.config.cost import Facts
from sixfold.config.files import read_config
from sixfold.config.plan import Choice, Planned, make_plan

CAPTIONS = Facts(29_000, 400_000, 420_000, 5_000, pairs=True)  # 449,000 tokens with the ends


def planned(epochs=None, facts=CAPTIONS, choices=(), **settings):
    settings = {"training.warmup": "10%", "training.steps": 5000, **settings}
    if "training.minutes" in settings:
        del settings["training.steps"]
    return Planned(read_config(None, settings), list(choices), facts, epochs)


def test_a_warmup_that_is_longer_than_the_run():
    said = long_warmup(planned(**{"training.warmup": 1000, "training.steps": 935}))
    assert "training.warmup is 1,000 steps, but the run has about 935" in said
    assert "--training.warmup 10%" in said
    assert long_warmup(planned(**{"training.warmup": 1000, "training.steps": 5000})) is None
    assert long_warmup(planned()) is None


def test_a_warmup_that_is_longer_than_the_run_is_expected_to_be():
    """2 epochs of 449,000 tokens in batches of 1,000 are 898 steps."""
    settings = {"training.minutes": 5, "training.batch_tokens": 1000}
    assert "about 898" in long_warmup(planned(epochs=2, **settings, **{"training.warmup": 1000}))
    assert long_warmup(planned(epochs=2, **settings, **{"training.warmup": 800})) is None
    assert long_warmup(planned(epochs=None, **settings, **{"training.warmup": 800})) is None  # not known


@pytest.mark.parametrize(
    ("optimizer", "rate", "words"),
    [
        ("adamw", 0.5, "grow"),
        ("adamw", 1e-7, "hardly learn"),
        ("adamw", 3e-3, None),
        ("sgd", 0.1, None),
        ("sgd", 1e-4, "hardly"),
        ("adafactor", 1e-2, None),
        ("muon", 1e-2, None),
        ("muon", 1.0, "grow"),
    ],
)
def test_a_rate_that_is_unusual_for_the_optimiser(optimizer, rate, words):
    said = unusual_rate(planned(**{"training.optimizer": optimizer, "training.learning_rate": rate}))
    assert said is None if words is None else words in said


def test_steps_that_see_less_than_an_epoch():
    said = less_than_an_epoch(planned(**{"training.steps": 10, "training.batch_tokens": 4490}))
    assert "about 10 steps of 4,490 tokens see only 10% of the training text: raise training.steps" in said
    assert less_than_an_epoch(planned(**{"training.steps": 100, "training.batch_tokens": 4490})) is None
    assert "raise training.minutes" in less_than_an_epoch(planned(epochs=0.5, **{"training.minutes": 1}))


def test_a_vocabulary_that_the_text_can_not_fill():
    said = large_vocabulary(planned(**{"data.vocabulary": 100_000}))
    assert "data.vocabulary is 100,000, but the training text has only 820,000 tokens" in said
    assert large_vocabulary(planned(**{"data.vocabulary": 80_000})) is None
    assert large_vocabulary(planned()) is None
    sides = {"data.vocabulary": {"source": 40_000, "target": 50_000}}
    assert "data.vocabulary.target is 50,000" in large_vocabulary(planned(**sides))


def test_a_vocabulary_of_characters_need_not_be_filled():
    kinds = {"source": "characters", "target": "bpe"}
    both = {"data.vocabulary": 50_000, "data.tokenizer": kinds}
    assert "data.vocabulary.target is 50,000" in large_vocabulary(planned(**both))
    assert large_vocabulary(planned(**{**both, "data.tokenizer": {**kinds, "target": "symbols"}})) is None


def test_a_vocabulary_that_nobody_gave_is_not_criticised():
    few = Facts(3, 20, 20, 260, pairs=True)
    chosen = [Choice("data.vocabulary", 500, "")]
    assert large_vocabulary(planned(facts=few, choices=chosen, **{"data.vocabulary": 500})) is None
    assert large_vocabulary(planned(facts=few._replace(trained=True), **{"data.vocabulary": 500})) is None


def test_what_is_wrong_is_said_and_nothing_else():
    assert [*advice(planned())] == []
    (said,) = advice(planned(**{"training.learning_rate": 1.0}))
    assert said.startswith("warning: training.learning_rate is 1, ")


@pytest.mark.parametrize("facts", [CAPTIONS, Facts(3, 20, 20, 260, pairs=True), Facts(4_000, 0, 1_000_000, 300)])
@pytest.mark.parametrize("given", [{"training.minutes": 5}, {"training.minutes": 600}, {"training.steps": 5000}, {}])
@pytest.mark.parametrize("optimizer", ["adamw", "muon", "adafactor", "sgd", None])
def test_what_is_planned_gets_no_advice(facts, given, optimizer):
    config = read_config(None, given if optimizer is None else {**given, "training.optimizer": optimizer})
    assert [*advice(make_plan(config, facts, lambda width: 60e9))] == []
