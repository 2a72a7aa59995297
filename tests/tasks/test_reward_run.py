"""Runs of the task `reward`: what they need, log and become; resumed and divided, they are the same run."""

import json

import pytest

from sixfold.api.load import load
from sixfold.runs.run import Run
from sixfold.scoring.metrics import METRICS
from sixfold.tasks.task import find_task
from sixfold.training.drift import drifted
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import train
from sixfold.verify.report import verify
from tests.support import tiny
from tests.support.interrupting import assert_it_ends_as_left_alone

TASK = "reward:metric=word_error_rate,samples=4,likelihood=0.1"
SETTINGS = {
    "training__steps": 6,
    "training__validate_every": 3,
    "training__checkpoint_every": 3,
    "training__log_every": 2,
    "training__metric": "auto",
    "decoding__max_length": 10,
}


@pytest.fixture(name="base", scope="module")
def _base(tmp_path_factory):
    """A run that has learned a little."""
    folder = tiny.corpus(tmp_path_factory.mktemp("base"))
    settings = {"training__steps": 150, "training__learning_rate": 0.01, "training__validate_every": 50}
    train(tiny.config(folder, **{**SETTINGS, **settings}), folder / "base", display=Quiet())
    return folder / "base"


def config(base, task=TASK, **settings):
    made = tiny.config(base.parent, **{**SETTINGS, **settings})
    return made.model_copy(update={"task": task})


@pytest.fixture(name="rewarded", scope="module")
def _rewarded(base, tmp_path_factory):
    run = tmp_path_factory.mktemp("rewarded") / "run"
    train(config(base), run, start_from=base, display=Quiet())
    return run


def records(run, kind):
    return [record for record in Run(run).records() if record["kind"] == kind]


def test_the_log_has_the_reward_and_the_length_of_samples(rewarded):
    for record in records(rewarded, "train"):
        assert 0 < record["reward"] < 1
        assert 2 < record["sample_length"] < 10
        assert 0 <= record["without_signal"] < 1
        assert record["loss"] > 0  # of the references, per token


def test_the_weights_of_the_beginning_are_validated_by_the_metric_of_the_reward(base, rewarded):
    first, *later = records(rewarded, "valid")
    assert (first["step"], [record["step"] for record in later]) == (0, [3, 6])
    translator = load(base, device="cpu")
    pairs = [(base.parent / f"valid.{side}").read_text().splitlines() for side in "wr"]
    outputs = [found.text for found in translator.translate(pairs[0])]
    score = METRICS["word_error_rate"].score(outputs, [(right,) for right in pairs[1]])
    assert first["word_error_rate"] == pytest.approx(score["word_error_rate"])
    assert first["loss"] == pytest.approx(records(base, "valid")[-1]["loss"], rel=1e-5)
    assert "reward" not in first  # nothing is sampled


def test_it_is_a_run_like_one_of_translation(sixfold, rewarded, base):
    code, out, err = sixfold("translate", rewarded, base.parent / "valid.w", "--device", "cpu")
    assert (code, len(out.splitlines())) == (0, 10), err
    best = min(records(rewarded, "valid"), key=lambda record: (record["word_error_rate"], record["loss"]))
    code, out, err = sixfold("score", rewarded, "--part", "valid", "--json", "--device", "cpu")
    scores = {score["name"]: score["value"] for score in json.loads(out)["scores"]}
    assert scores == {"word_error_rate": pytest.approx(best["word_error_rate"])}, err
    code, out, err = sixfold("score", base, "--compare", rewarded, "--part", "valid", "--metric", "gleu")
    assert code == 0, err
    code, out, err = sixfold("info", rewarded)
    assert code == 0, err
    assert "reward" in out


def test_its_equalities_hold(rewarded):
    """The gradient of micro-batches is that of one batch, for the same candidates are drawn; the log can be trusted."""
    keys = ["micro-batches", "resume", "loss", "score"]
    assert {each.key: each.result for each in verify(rewarded, only=keys, device="cpu")} == dict.fromkeys(keys, "pass")


@pytest.mark.parametrize("method", ["expected", "self_critical", "risk"])
def test_an_interrupted_one_ends_as_one_left_alone(base, tmp_path, monkeypatch, method):
    task = f"reward:metric=gleu,samples=3,method={method}"
    settings = {"training__checkpoint_every": 1, "training__accumulate": 2}
    assert_it_ends_as_left_alone(config(base, task, **settings), tmp_path, monkeypatch, after=2, start_from=base)


def test_a_recurrent_model_is_improved(tmp_path):
    """From nearly random outputs: after some steps, samples have more of the right letters."""
    folder, model = tiny.corpus(tmp_path), {"model__modifications": ["gnmt"], "model__layers": 2}
    train(tiny.config(folder, **model), folder / "base", display=Quiet())
    settings = {"training__steps": 20, "training__validate_every": 20, "training__learning_rate": 0.01}
    made = config(folder / "base", "reward:metric=symbol_error_rate,likelihood=0,samples=8", **model, **settings)
    train(made, folder / "run", start_from=folder / "base", display=Quiet())
    first, *_, last = records(folder / "run", "train")
    assert last["reward"] > 1.2 * first["reward"]


@pytest.mark.parametrize(
    ("settings", "from_base", "words"),
    [
        ({}, False, "task 'reward' improves a trained model: train one first, .* then give --from RUN"),
        ({"training__parallel": "fsdp"}, True, "training.parallel can't be fsdp; leave it out"),
        ({"training__compile": True}, True, "training.compile can't be True; leave it out"),
    ],
)
def test_what_it_can_not_do_is_said_before_any_work(base, tmp_path, settings, from_base, words):
    start = {"start_from": base} if from_base else {}
    with pytest.raises(ValueError, match=words):
        train(config(base, **settings), tmp_path / "run", display=Quiet(), **start)
    assert not (tmp_path / "run").exists()


def test_a_run_that_drifts_ends_with_its_best_weights(base, tmp_path, monkeypatch):
    """With the opposite of the reward, outputs get worse soon."""
    from sixfold.tasks import _candidates

    original = _candidates.reward_of

    def opposite(name, tokenizer):
        reward = original(name, tokenizer)
        return lambda outputs, reference: [1 - r for r in reward(outputs, reference)]

    monkeypatch.setattr(_candidates, "reward_of", opposite)
    settings = {"training__steps": 60, "training__learning_rate": 0.02, "training__schedule": "constant"}
    made = config(base, "reward:metric=word_error_rate,samples=4,likelihood=0", **settings)
    outcome = train(made, tmp_path / "run", start_from=base, display=Quiet())
    assert outcome.finished
    assert outcome.step < 60
    assert "the best weights, of step" in outcome.reason
    valid = records(tmp_path / "run", "valid")
    assert outcome.best == min(record["word_error_rate"] for record in valid)


@pytest.mark.parametrize(
    ("metric", "first", "now", "words"),
    [
        ("gleu", {"gleu": 50.0}, {"gleu": 45.1}, ""),
        ("gleu", {"gleu": 50.0}, {"gleu": 44.9}, "gleu went from 50 to 44.9"),
        ("word_error_rate", {"word_error_rate": 20.0}, {"word_error_rate": 27.0}, ""),
        ("word_error_rate", {"word_error_rate": 20.0}, {"word_error_rate": 29.0}, "word_error_rate went from 20 to 29"),
        ("word_error_rate", {"word_error_rate": 120.0}, {"word_error_rate": 130.0}, ""),
        ("gleu", {"gleu": 50.0, "output_length": 1.3}, {"gleu": 50.0, "output_length": 0.95}, ""),
        ("gleu", {"gleu": 50.0, "output_length": 1.0}, {"gleu": 50.0, "output_length": 0.89}, "length of outputs"),
        ("gleu", {"gleu": 50.0, "output_length": 1.0}, {"gleu": 50.0, "output_length": 1.11}, "length of outputs"),
        ("gleu", {"gleu": 50.0, "output_length": 0.5}, {"gleu": 50.0, "output_length": 0.44}, "from 0.5 to 0.44"),
    ],
)
def test_drift_of_a_tenth(metric, first, now, words):
    found = drifted(first, now, METRICS[metric], 0.1)
    assert words in found
    assert bool(found) == bool(words)


def test_the_metric_that_decides_is_that_of_the_reward_unless_another_is_given():
    assert find_task("reward").with_options({"metric": "chrf"}).usual_metric == "chrf"
    assert find_task("translation").usual_metric == "bleu"


def test_the_guard_watches_the_reward_because_the_likelihood_may_fall():
    losses = {"words": 3.0, "reward": 0.25, "sample_length": 5.0, "without_signal": 0.0}
    assert find_task("reward").watched(losses) == -0.25
    assert find_task("translation").watched({"words": 3.0}) == 3.0
