"""The programs of docs/python.md do what the page says, with a smaller model where they train."""

import pytest
import torch

import sixfold
from tests.support import pages, runs

TRAIN, USE, *BUILD = pages.programs("python.md")
SMALL = {"training.steps": 1, "training.validate_every": 1, "training.batch_tokens": 64, "training.metric": "loss"}
SMALL |= {"model.d_model": 16, "model.d_ff": 16, "model.heads": 2, "model.layers": 1}


def test_a_run_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    read, few = sixfold.read_config, {"data.train": "pronounce:valid", "data.valid": "pronounce:test"}
    monkeypatch.setattr(sixfold, "read_config", lambda name, _: read(name, {**SMALL, **few}), raising=False)
    exec(TRAIN.text, {})
    assert capsys.readouterr().out.startswith("all 1 steps are done {'loss': ")
    assert (tmp_path / "runs" / "mine" / "model.safetensors").is_file()


def test_a_run_is_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runs.translating(tmp_path / "runs" / "mine")
    exec(USE.text, {"sixfold": sixfold})
    (found,) = sixfold.load("runs/mine").translate(["a line of text"], beam_size=4, n_best=2)
    assert capsys.readouterr().out == f"{found.text} {found.score} {[each.text for each in found.n_best]}\n"


@pytest.fixture(scope="module")
def said():
    """What the programs that build a model leave behind, in order; the last of them makes a training step."""
    names = {"sixfold": sixfold}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for program in BUILD:
            exec(program.text, names)
    return names


def test_what_is_seen_has_the_shape_that_the_page_names(said):
    assert said["log_probs"].shape == (2, 5, 8000)
    assert said["tap"]["decoder.2.cross"][0, 3].shape == (5, 7)


def test_the_next_token_has_the_same_state_as_without_a_cache(said):
    with torch.no_grad():
        model = said["model"].eval()
        at_once = model.decode(said["target"], said["memory"])
    torch.testing.assert_close(said["x"][:, 0], at_once[:, 3], rtol=1e-4, atol=1e-4)


def test_every_weight_has_a_gradient_after_the_training_step(said):
    assert all(parameter.grad is not None for parameter in said["model"].parameters())
