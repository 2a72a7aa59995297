"""What parts measure in training, such as the load of each expert, stands in the log."""

import pytest
import torch

import sixfold
from sixfold import Batch
from sixfold.modifications._shared.experts import Experts
from sixfold.runs.run import Run
from sixfold.training.observers.display import Quiet
from sixfold.training.run_state import RunState
from sixfold.training.runner import train
from tests.support import tiny
from tests.support.small import pad, random_rows, seeded, small_model

WISHES = {
    "moe_lstm:experts=3,k=2": "experts",
    "mixture_of_experts:experts=3,every=2,second_threshold=0,capacity=9": "feed_forward",
    "switch:experts=3,every=2,capacity=9": "feed_forward",
}


@pytest.mark.parametrize("wish", WISHES)
def test_the_load_of_an_expert_is_the_number_of_real_tokens_that_choose_it(wish):
    model, rows = small_model("encoder_only", (wish,)).train(), random_rows((6, 3, 8), seeded(1))
    seen, ids = [], pad(rows)
    for part in model.modules():
        if isinstance(part, Experts):
            part.register_forward_pre_hook(lambda part, given: seen.append(given[1]))
    ((name, load),) = model.read(Batch(source=ids, targets=ids)).measures.items()
    assert name == f"only.1.{WISHES[wish]}.load"
    assert load.tolist() == [int((seen[0] == expert).sum()) for expert in range(3)]
    assert load.sum() == 17 * seen[0].shape[1]  # none is over capacity


def test_shares_add_up_to_one():
    state = RunState()
    state.measure("load", [1.0, 0.0, 1.0])
    state.measure("load", [0.0, 2.0, 0.0])
    state.measure("nothing", [0.0, 0.0])
    assert state.shares() == {"load": [0.25, 0.5, 0.25], "nothing": [0.0, 0.0]}


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_line_of_the_log_has_the_shares_of_all_steps_since_the_last_line(tmp_path, monkeypatch, pieces):
    """As the numbers of all passes say, however a step is divided."""
    folder, found = tiny.corpus(tmp_path), []
    read = sixfold.models.encoder_decoder.EncoderDecoder.read

    def watching(model, batch, **rest):
        reading = read(model, batch, **rest)
        if model.training and batch.counts:  # a step of the run, and no trial of its speed
            found.append(reading.measures["decoder.0.feed_forward.load"])
        return reading

    monkeypatch.setattr(sixfold.models.encoder_decoder.EncoderDecoder, "read", watching)
    config = tiny.short(
        folder,
        model__modifications=["switch:experts=4,every=1"],
        training__log_every=2,
        training__accumulate=pieces,
    )
    train(config, folder / "run", display=Quiet())
    lines = [line["decoder.0.feed_forward.load"] for line in Run(folder / "run").records() if line["kind"] == "train"]
    assert len(lines) == 2
    each = len(found) // 2
    for number, line in enumerate(lines):
        total = torch.stack(found[number * each : (number + 1) * each]).sum(0)
        assert line == pytest.approx((total / total.sum()).tolist())
