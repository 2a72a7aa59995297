"""`train --from RUN`: what the new configuration inherits, and what is told of it."""

import pytest
import torch
from safetensors.torch import load_file

from sixfold.config.files import read_config
from sixfold.config.schema import Config
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.preflight import check
from sixfold.training.runner import train
from sixfold.training.start_from import add_modifications, compare, differences, inherit, outline
from tests.support.architectures import KINDS, registered
from tests.support.begun_runs import ONE_STEP, RUNS, adapted, first_weights, start_of
from tests.support.breaking_off import Listener
from tests.support.covering import covering
from tests.support.plain_text import recipe
from tests.support.small import small_model
from tests.support.small_runs import SYMBOLS


@pytest.mark.parametrize("name", RUNS)
def test_with_nothing_but_text_the_new_run_is_like_the_old_one(made, tmp_path, name):
    old = Run(made / name)
    new, words = adapted(old.directory, tmp_path / "new", {"data.train": str(made / "train")})
    model, was = new.read_config(), old.read_config()
    assert model_files.describe(model_files.skeleton(new.directory)) == model_files.describe(
        model_files.skeleton(old.directory)
    )
    assert model.decoding == was.decoding
    for key in ("source", "target", "tokenizer", "max_length", "context"):
        assert getattr(model.data, key) == getattr(was.data, key)
    assert model.training.label_smoothing == was.training.label_smoothing
    mine, its = first_weights(new), load_file(old.directory / "model.safetensors")
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[key], its[key]) for key in its)
    assert start_of(new)["fresh"] == start_of(new)["left"] == []
    assert (
        f"100 % of this model's parameters ({len(its)} of {len(its)} tensors) are taken from {old.directory}" in words
    )


@covering(registered(*KINDS))
def test_a_run_with_any_modification_is_inherited_whole(tmp_path, kind, modifications):
    run, model = Run(tmp_path), small_model(kind, modifications, dtype=torch.float32, vocab=len(SYMBOLS))
    run.begin(Config(), {})
    model_files.save(model, run.directory)
    Tokenizers(SYMBOLS, SYMBOLS).save(run.directory)
    new = outline(inherit(read_config(None, {"data.train": "x"}), run), run)
    assert model_files.describe(new) == model_files.describe(model)
    assert compare(new, model).taken == {name: name for name in model.state_dict()}


def test_the_new_configuration_says_all_that_was_inherited(made, tmp_path):
    new, words = adapted(made / "unequal", tmp_path / "new", {"data.train": str(made / "train")})
    sizes = model_files.skeleton(made / "unequal").sizes
    assert new.read_config().model.model_dump() == {
        "kind": "encoder_decoder",
        "d_model": 16,
        "d_ff": 32,
        "heads": 2,
        "d_head": None,
        "layers": None,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "classes": 0,
        "dropout": 0.3,
        "modifications": ["rotary", "swiglu"],
    }
    assert words[0] == (
        f"from {made / 'unequal'}: data.source w; data.target r; data.tokenizer source characters, target symbols; "
        f"data.vocabulary source {sizes.source_vocab}, target {sizes.target_vocab}; data.max_length 30; "
        f"model.d_model 16; model.d_ff 32; model.heads 2; model.encoder_layers 2; model.decoder_layers 1; "
        f"model.dropout 0.3; model.modifications rotary, swiglu; training.label_smoothing 0.05; "
        f"training.metric loss; "
        f"decoding.max_length 4; decoding.beam_size 2"
    )


def test_the_optimiser_and_the_schedule_are_not_inherited(made):
    unvalidated = {**ONE_STEP, "data.train": "x", "data.held_out": 0}
    training = check(read_config(None, unvalidated), Run(made / "unequal"))[0].training
    inherited = Config().training.model_copy(update={"label_smoothing": 0.05})
    given = {key: getattr(training, key) for key in ("steps", "batch_tokens", "device")}
    assert training == inherited.model_copy(update=given)


def test_the_metric_is_inherited_where_it_can_be_measured(made):
    run = Run(made / "plain")  # whose metric is the loss
    text = {"data.train": "x", "data.valid": "y"}
    assert check(read_config(None, {"data.train": "x", "data.held_out": 0}), run)[0].training.metric == "auto"
    assert check(read_config(None, {"data.train": "x"}), run)[0].training.metric == "loss"
    assert check(read_config(None, text), run)[0].training.metric == "loss"
    assert check(read_config(None, {**text, "training.metric": "chrf"}), run)[0].training.metric == "chrf"
    assert check(read_config(None, text), Run(made / "unequal"))[0].training.label_smoothing == 0.05
    other_kind = read_config(None, {**text, "model.kind": "decoder_only"})
    assert inherit(other_kind, run).training.metric == "auto"


def test_what_is_given_wins_wherever_it_was_given(made, tmp_path):
    (tmp_path / "mine.yaml").write_text("model: {dropout: 0.0, d_head: null}\ndata: {max_length: 7, source: null}\n")
    settings = {"data.train": "x", "data.target": "z", "model.modifications": [], "decoding.beam_size": 3}
    config, _ = check(read_config(tmp_path / "mine.yaml", settings), Run(made / "unequal"))
    assert (config.model.dropout, config.data.max_length, config.decoding.beam_size) == (0.0, 7, 3)
    assert (config.data.source, config.data.target) == ("w", "z")  # null says nothing
    assert config.model.modifications == []
    assert config.model.encoder_layers == 2


def test_one_depth_is_given_for_both_stacks_or_for_one(made):
    run = Run(made / "unequal")  # 2 and 1
    assert depths(run, layers=2) == (2, 2)
    assert depths(run, decoder_layers=2) == (2, 2)
    assert depths(run, encoder_layers=1) == (1, 1)
    assert depths(run, layers=1, encoder_layers=3) == (3, 1)


def depths(run, **given):
    settings = {"data.train": "x", **{f"model.{key}": value for key, value in given.items()}}
    sizes = inherit(read_config(None, settings), run).sizes()
    return sizes.encoder_layers, sizes.decoder_layers


def test_settings_of_decoding_that_conflict_with_given_ones_give_way(made):
    config = read_config(None, {"data.train": "x", "decoding.sample": True, "decoding.n_best": 3})
    decoding = inherit(config, Run(made / "unequal")).decoding  # which has a beam of 2
    assert (decoding.sample, decoding.n_best, decoding.beam_size, decoding.max_length) == (True, 3, 1, 4)


def test_to_inherit_twice_is_to_inherit_once(made):
    for name in (*RUNS, "mlm"):
        once = inherit(read_config(None, {"data.train": "x"}), Run(made / name))
        assert inherit(once, Run(made / name)) == once


def test_another_tokenizer_is_refused(made):
    run = Run(made / "plain")
    sizes = model_files.skeleton(run.directory).sizes
    for key, said, has in (
        ("tokenizer", "bpe", "source characters, target symbols"),
        ("vocabulary", 2000, f"source {sizes.source_vocab}, target {sizes.target_vocab}"),
    ):
        with pytest.raises(ValueError) as error:
            check(read_config(None, {"data.train": "x", f"data.{key}": said}), run)
        assert str(error.value) == (
            f"data.{key} is {said}, but the tokenizer of --from {run.directory} has {has}; "
            f"give the same, or leave it out"
        )


def test_more_modifications_are_added_to_the_runs_unless_the_recipe_gives_some(made):
    run, nothing = Run(made / "joint"), read_config(None, {"data.train": "x"})
    own = read_config(None, {"data.train": "x", "model.modifications": ["rms_norm"]})

    def names(config, *more):
        return inherit(add_modifications(config, more, run), run).model.modifications

    had = [{"t5_bias": {"buckets": 8}}, "untied", "transparent_attention"]
    assert names(nothing) == had
    assert names(nothing, "swiglu") == [*had, "swiglu"]
    assert names(nothing, "t5_bias:buckets=4", "swiglu") == ["t5_bias:buckets=4", *had[1:], "swiglu"]
    assert names(own) == ["rms_norm"]
    assert names(own, "swiglu") == ["rms_norm", "swiglu"]


def test_the_depth_of_an_only_stack_is_that_of_both(tmp_path):
    """A language model has as many layers as its decoder_layers say, and encoder_layers mean nothing."""
    config = recipe(tmp_path, "lm", training__steps="1", model__layers="null", model__decoder_layers="2")
    train(config, tmp_path / "run", display=Listener())
    masked = inherit(read_config(None, {"model.kind": "encoder_only"}), Run(tmp_path / "run"))
    assert (masked.model.encoder_layers, masked.model.decoder_layers) == (2, 2)
    shallow = {"model.layers": 1, "model.kind": "encoder_only"}
    masked = inherit(read_config(None, shallow), Run(tmp_path / "run"))
    assert differences(masked.model, inherit(Config(), Run(tmp_path / "run")).model) == [
        "its model.kind is decoder_only, here encoder_only",
        "its encoder_layers is 2, here 1",
    ]


def test_a_task_that_was_inherited_is_said_and_one_that_was_given_is_not(made, tmp_path):
    text = {"data.train": str(made / "train.w")}
    run, said = adapted(made / "mlm", tmp_path / "same", text)
    assert run.read_config().task == Run(made / "mlm").read_config().task
    assert said[0].startswith(f"from {made / 'mlm'}: task masked_words; ")
    for key, given in {"task": "masked_words:masked=0.5", "model.kind": "encoder_only"}.items():
        _, said = adapted(made / "mlm", tmp_path / key, {**text, key: given})
        assert "task" not in said[0]
