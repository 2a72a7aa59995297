"""What to type after training: commands that work for this run."""

import shlex
import signal

import pytest

from sixfold.spec import registry
from sixfold.training.observers.display import Quiet
from sixfold.training.runner import Outcome, train
from sixfold.training.what_next import what_next
from tests.support import tiny

OWN_PART = """
from dataclasses import replace
import torch.nn.functional as F
from sixfold import Spec, modification

@modification()
def my_gelu(spec: Spec) -> Spec:
    '''GeLU, as an example.'''
    return replace(spec, activation=F.gelu)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs with a test part, and without one."""
    folder = tiny.corpus(tmp_path_factory.mktemp("corpus"))
    for name, settings in {"test": {"data__test": str(folder / "valid")}, "valid": {}}.items():
        train(tiny.config(folder, training__steps=1, **settings), folder / name, display=Quiet())
    return folder


def commands(run, **ending):
    """The verbs that are offered, with their options."""
    outcome = Outcome("", run, **{"finished": True, **ending})
    split = [shlex.split(command, comments=False) for command in what_next(outcome)]
    assert all(words[0] == "sixfold" and str(run) in words for words in split)
    return [[word for word in words[1:] if word != str(run)] for words in split]


def test_score_is_offered_on_text_that_the_run_has(trained):
    assert commands(trained / "test") == [["info"], ["plot"], ["translate"], ["score"]]
    assert commands(trained / "valid") == [["info"], ["plot"], ["translate"], ["score", "--part", "valid"]]


def test_a_language_model_without_held_out_text_is_not_scored(tmp_path):
    tiny.corpus(tmp_path)
    text = {"data__train": str(tmp_path / "train.w"), "data__valid": "null", "data__tokenizer": "characters"}
    config = tiny.config(tmp_path, model__kind="decoder_only", training__metric="auto", training__steps=1, **text)
    train(config, tmp_path / "run", display=Quiet())
    assert commands(tmp_path / "run") == [["info"], ["plot"], ["generate"]]


def test_a_training_that_gave_up_offers_nothing_to_use(trained):
    assert commands(trained / "test", finished=False) == [["info"], ["plot"]]


def test_an_interrupted_training_offers_to_go_on_first(trained):
    first, *_ = commands(trained / "test", finished=False, signal=signal.SIGINT)
    assert first[:2] == ["train", "--resume"]


def test_the_files_of_a_user_are_imported_in_every_command_that_takes_them(sixfold, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))
    monkeypatch.setattr(registry, "_imported", {})
    tiny.corpus(tmp_path)
    (tmp_path / "my parts.py").write_text(OWN_PART)
    (tmp_path / "unused.py").write_text(OWN_PART.replace("my_gelu", "another"))
    registry.import_file("unused.py")
    settings = tiny.config(tmp_path, training__steps=1).model_dump(mode="json")
    options = [
        word
        for section, values in settings.items()
        if section != "task"
        for key, value in values.items()
        if value not in (None, []) and section != "decoding" and not isinstance(value, list)
        for word in (f"--{section}.{key}", str(value).lower() if isinstance(value, bool) else str(value))
    ]
    code, _, err = sixfold("train", *options, "--import", "my parts.py", "--modify", "my_gelu", "--out", "run")
    assert code == 0, err
    offered = err.partition("what to type next:\n")[2].splitlines()
    assert {command.split()[1]: command.endswith("--import 'my parts.py'") for command in offered} == {
        "info": True,
        "plot": False,
        "translate": True,
        "score": True,
    }
    registry._registered.pop("my_gelu")
    info = next(shlex.split(command)[1:] for command in offered if " info " in command)
    assert sixfold(*info)[0] == 0
