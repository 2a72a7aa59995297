"""The plan is a pure function of configuration, text, time and speed, so that each rule can be checked by hand."""

from __future__ import annotations

import pytest

from sixfold.config.cost import Facts, Size
from sixfold.config.files import read_config
from sixfold.config.plan import PLANNED, make_plan, vocabulary
from sixfold.config.schema import keys

CAPTIONS = Facts(29_000, 400_000, 420_000, 5_000, pairs=True, valid_rows=1_000)
DRAMA = Facts(4_000, 0, 1_000_000, 300, valid_rows=400)
THREE_LINES = Facts(3, 20, 20, 260, pairs=True, valid_rows=1)
TEN_MILLION = Facts(10_000_000, 250_000_000, 260_000_000, 32_000, pairs=True, valid_rows=3_000)


def planned(facts, gflops=60.0, **settings):
    config = read_config(None, {key.replace("__", "."): value for key, value in settings.items()})
    return make_plan(config, facts, lambda width: gflops * 1e9)


def test_parameters_are_those_of_the_layers_matrices():
    # encoder layer 4·8² + 2·8·32, decoder layer 8·8² + 2·8·32; one layer of each
    assert Size(8, 1, 32, pairs=True).parameters() == 256 + 512 + 512 + 512
    assert Size(8, 2, 32).parameters() == 2 * (256 + 512)


def test_operations_are_six_for_each_weight_and_token():
    facts = Facts(1, 0, 9, 100)  # ten tokens with the end; each looks at ten
    weights, looking, head = 256 + 512, 2 * 10 * 8, 8 * 100
    assert Size(8, 1, 32).operations(facts) == 6 * 10 * (weights + looking + head)


def test_an_update_counts_the_products_of_three_polynomials():
    gram, square, product = 2 * 8 * 8 * 32, 2 * 8**3, 2 * 8 * 8 * 32  # X·Xᵀ (8 × 32), its square, times X
    of_attention, of_feed_forward = 3 * 3 * 2 * 8**3, 3 * (gram + square + product)
    assert Size(8, 1, 32).update() == 4 * of_attention + 2 * of_feed_forward
    assert Size(8, 2, 32, pairs=True).update() == 2 * (12 * of_attention + 4 * of_feed_forward)


def test_a_vocabulary_grows_with_the_text_within_bounds():
    assert vocabulary(0) == vocabulary(100) == 500
    assert vocabulary(700_000) == 4000
    assert vocabulary(700_000) < vocabulary(5_000_000) < vocabulary(100_000_000)
    assert vocabulary(10**11) == 32_000


def test_more_time_and_more_text_make_larger_models():
    widths = [planned(CAPTIONS, training__minutes=m).config.model.d_model for m in (1, 5, 60, 6000)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]
    texts = [planned(facts).config.model.d_model for facts in (THREE_LINES, CAPTIONS, TEN_MILLION)]
    assert texts == sorted(set(texts))


def test_a_faster_machine_gets_the_larger_model():
    slow, fast = (planned(CAPTIONS, gflops, training__minutes=5).config.model.d_model for gflops in (20, 20_000))
    assert slow < fast


def test_what_is_given_is_never_changed():
    given = {
        "model.d_model": 200,
        "model.dropout": 0.37,
        "training.learning_rate": 0.123,
        "training.warmup": 17,
        "training.steps": 50,
        "decoding.beam_size": 2,
    }
    plan = make_plan(read_config(None, given), CAPTIONS, lambda width: 1e9)
    for key, value in given.items():
        section, name = key.split(".")
        assert getattr(getattr(plan.config, section), name) == value
    assert not {choice.key for choice in plan.choices} & set(given)
    assert plan.config.model.d_ff == 800  # follows the given width
    assert 200 % plan.config.model.heads == 0


@pytest.mark.parametrize(("width", "wide"), [(96, 32), (128, 32), (512, 64), (200, 40), (100, 50), (33, 33), (14, 14)])
def test_heads_are_nearly_as_wide_as_usual_for_any_width(width, wide):
    model = planned(CAPTIONS, model__d_model=width, training__minutes=5).config.model
    assert model.d_model == model.heads * wide


def test_the_stack_whose_depth_is_not_given_gets_a_planned_one():
    plan = planned(CAPTIONS, model__encoder_layers=2, model__d_model=128, training__minutes=5)
    assert (plan.config.model.encoder_layers, plan.config.model.decoder_layers) == (2, 4)
    assert planned(CAPTIONS, model__layers=3, model__encoder_layers=2).config.model.decoder_layers is None


def test_a_short_run_by_steps_gets_a_small_model():
    short, long = (planned(TEN_MILLION, training__steps=steps).config.model.d_model for steps in (100, 1_000_000))
    assert (short, long) == (64, 1024)


def test_text_that_repeats_itself_counts_once():
    often = CAPTIONS._replace(repeated=0.95)
    once, ten_times = (planned(facts, gflops=500, training__minutes=60).config.model for facts in (CAPTIONS, often))
    assert ten_times.d_model < once.d_model
    assert ten_times.dropout >= once.dropout


def test_a_second_plan_of_a_completed_configuration_chooses_nothing():
    first = planned(CAPTIONS, training__minutes=5)
    assert make_plan(first.config, CAPTIONS, lambda width: 1e6).choices == []


def test_more_epochs_get_more_dropout():
    few, many = (planned(CAPTIONS, training__steps=steps).config.model.dropout for steps in (100, 100_000))
    assert few == 0.0
    assert many == 0.3


def test_a_run_with_a_length_rises_and_falls_within_it():
    for length in ({"training__minutes": 5}, {"training__steps": 3000}):
        training = planned(CAPTIONS, **length).config.training
        assert (training.schedule, training.warmup) == ("cosine", 0.1)
        assert 0 < training.validate_every < 1


def test_a_run_without_a_length_ends_by_patience():
    training = planned(CAPTIONS).config.training
    assert training.steps is None
    assert training.patience == 5
    assert training.schedule == "warmup_stable_decay"
    assert training.warmup >= 100
    assert training.validate_every >= 100


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"training__schedule": "cosine"}, "the schedule cosine needs a length"),
        ({"training__warmup": "10 %"}, "training.warmup is a share of the run"),
    ],
)
def test_what_needs_a_length_gets_one(settings, why):
    plan = planned(CAPTIONS, **settings)
    assert plan.config.training.steps
    assert any(why in choice.reason for choice in plan.choices)


def test_without_validation_text_a_run_has_twenty_epochs():
    training = planned(CAPTIONS._replace(valid_rows=0)).config.training
    assert training.steps * training.batch_tokens == pytest.approx(20 * CAPTIONS.tokens, rel=0.1)


def test_plain_text_is_trained_without_smoothing_and_pairs_are_decoded_by_a_beam():
    text, pairs = planned(DRAMA, training__minutes=3).config, planned(CAPTIONS, training__minutes=3).config
    assert (text.training.label_smoothing, text.decoding.beam_size) == (0.0, 1)
    assert (pairs.training.label_smoothing, pairs.decoding.beam_size) == (0.1, 4)


@pytest.mark.parametrize("facts", [THREE_LINES, DRAMA, CAPTIONS, TEN_MILLION], ids=["3", "drama", "captions", "10M"])
@pytest.mark.parametrize("minutes", [0.01, 1e7])
def test_an_absurd_budget_gets_a_plan(facts, minutes):
    plan = planned(facts, training__minutes=minutes)
    assert plan.config.model.d_model % plan.config.model.heads == 0
    assert 0 < plan.config.training.learning_rate <= 8e-3


def test_the_expected_duration_is_that_of_the_operations():
    plan = planned(CAPTIONS, gflops=60.0, training__steps=3000)
    size = Size(plan.config.model.d_model, plan.config.model.layers, plan.config.model.d_ff, pairs=True)
    operations = plan.epochs * size.operations(CAPTIONS) + 3000 * size.update()
    seconds = operations / 60e9 / 0.85
    assert f"about {seconds / 60:.0f} minutes" in plan.length()


def test_trained_weights_are_changed_by_adamw_and_more_gently():
    fresh, trained = (planned(CAPTIONS._replace(trained=t), training__minutes=5).config.training for t in (False, True))
    assert (fresh.optimizer, trained.optimizer) == ("muon", "adamw")
    assert trained.learning_rate < fresh.learning_rate / 5


def test_a_validation_text_that_is_large_for_the_time_is_used_less_often():
    every = [
        planned(CAPTIONS._replace(valid_rows=rows), training__minutes=5).config.training.validate_every
        for rows in (10, 300, 10_000)
    ]
    assert every == sorted(set(every))


def test_the_keys_that_help_calls_planned_exist_and_are_planned():
    assert set(PLANNED) <= {key for key, _ in keys()}
    chosen = {choice.key for facts in (CAPTIONS, DRAMA) for choice in planned(facts, training__minutes=5).choices}
    assert set(PLANNED) <= chosen
