"""`train --from RUN`: which tensors are taken, what is said of it, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import fully_shard

from sixfold.config.files import read_config
from sixfold.core.place import Sizes
from sixfold.core.sharded_tensors import is_cut, whole_tensors
from sixfold.models.build import build
from sixfold.runs import model_files
from sixfold.runs.run import Run
from sixfold.text.tokenizer import Tokenizers
from sixfold.training.preflight import check
from sixfold.training.runner import resume
from sixfold.training.start_from import compare, inherit, outline, patterns, take
from tests.support import tiny
from tests.support.begun_runs import adapted, first_weights, start_of
from tests.support.breaking_off import Listener

LEGACY = Path(__file__).parents[1] / "data" / "legacy"


def fresh_model(run):
    """A new model like a run's."""
    config = run.read_config()
    sizes = config.sizes_with(Tokenizers.load(run.directory))
    return build(sizes, config.model.modifications, config.model.kind, seed=config.training.seed)


def taken_and_fresh(new, old):
    """The first weights of a run by where they must have come from."""
    mine, its, fresh = first_weights(new), load_file(old / "model.safetensors"), fresh_model(new).state_dict()
    assert mine.keys() == fresh.keys()
    taken = {name for name in mine if name in its and its[name].shape == fresh[name].shape}
    assert all(torch.equal(tensor, (its if name in taken else fresh)[name]) for name, tensor in mine.items())
    return taken, mine.keys() - taken, its.keys() - taken


def test_a_deeper_model_has_fresh_layers_above_those_of_the_run(made, tmp_path):
    new, words = adapted(made / "plain", tmp_path / "new", {"data.train": str(made / "train"), "model.layers": 2})
    taken, fresh, left = taken_and_fresh(new, made / "plain")
    assert {name.rpartition("layers.1.")[0] for name in fresh} == {"encoder.", "decoder."}
    assert len(fresh) == 10 + 15  # of an encoder's and a decoder's layer
    assert not left
    assert start_of(new) == {
        "taken": ["tables.*", "encoder.0.*", "encoder.final.*", "decoder.0.*", "decoder.final.*"],
        "fresh": ["encoder.1.*", "decoder.1.*"],
        "left": [],
    }
    counts = {name: tensor.numel() for name, tensor in first_weights(new).items()}
    share = sum(counts[name] for name in taken) / sum(counts.values())
    assert words[-3:] == [
        f"{int(100 * share)} % of this model's parameters (31 of 56 tensors) are taken from {made / 'plain'}",
        "  differs: its encoder_layers is 1, here 2; its decoder_layers is 1, here 2",
        "  starts fresh: encoder.1.*, decoder.1.*",
    ]


def test_of_a_deeper_run_the_upper_layers_are_left_behind(made, tmp_path):
    settings = {"data.train": str(made / "train"), "model.layers": 1}
    new, words = adapted(made / "unequal", tmp_path / "new", settings)
    _, fresh, left = taken_and_fresh(new, made / "unequal")
    assert not fresh
    assert {name.split("layers.")[1][0] for name in left} == {"1"}
    assert words[-2:] == ["  differs: its encoder_layers is 2, here 1", "  not taken: encoder.1.*"]


def test_other_modifications_take_what_has_the_same_name_and_shape(made, tmp_path):
    settings = {"data.train": str(made / "train"), "model.modifications": ["rms_norm", "swiglu", "learned_positions"]}
    new, words = adapted(made / "plain", tmp_path / "new", settings)
    taken, _, left = taken_and_fresh(new, made / "plain")
    assert "encoder.layers.0.around_attention.norm.weight" in taken
    assert "encoder.layers.0.around_attention.norm.bias" in left
    assert start_of(new)["fresh"] == [
        "encoder_input.*",
        "encoder.0.feed_forward.inner.*",
        "decoder_input.*",
        "decoder.0.feed_forward.inner.*",
    ]
    assert "  differs: its modifications are none, here rms_norm, swiglu, learned_positions" in words


def test_what_has_no_tensors_of_its_own_is_named_though_all_is_taken(made, tmp_path):
    """More heads of less width have the same matrices, but attend otherwise."""
    settings = {"data.train": str(made / "train"), "model.heads": 4, "model.modifications": ["rotary", "gelu"]}
    new, words = adapted(made / "plain", tmp_path / "new", settings)
    _, fresh, left = taken_and_fresh(new, made / "plain")
    assert not fresh
    assert not left
    assert words[-2:] == [
        "  differs: its heads is 2, here 4; its modifications are none, here rotary, gelu",
        "  warning: encoder.0.attention has 2 heads there, and 4 here: its matrices are taken, but each head now has "
        "other columns of them than in training",
    ]


# Which roles share a table, and for each new table the one that it is taken from.
SHARING = {
    "all": [["source", "target", "output"]],
    "untied": [["source"], ["target"], ["output"]],
    "tied_inputs": [["source", "target"], ["output"]],
    "tied_decoder": [["source"], ["target", "output"]],
}


@pytest.mark.parametrize(
    ("old", "new", "taken"),
    [
        ("all", "untied", {0: 0, 1: 0, 2: 0}),
        ("all", "tied_inputs", {0: 0, 1: 0}),
        ("untied", "all", {}),
        ("untied", "tied_inputs", {1: 2}),  # tables.1 writes here, and there it reads the target
        ("untied", "tied_decoder", {0: 0}),
        ("tied_inputs", "untied", {0: 0, 1: 0, 2: 1}),
        ("tied_inputs", "tied_decoder", {0: 0}),
        ("tied_decoder", "tied_inputs", {1: 1}),
        ("tied_decoder", "untied", {0: 0, 1: 1, 2: 1}),
    ],
)
def test_a_table_is_taken_from_the_one_with_its_roles(old, new, taken):
    """Not from the one with its number: a table without a counterpart of all its roles begins fresh."""
    sizes = Sizes(vocab=9, d_model=4, d_ff=4, heads=2, encoder_layers=1, decoder_layers=1)
    models = [build(sizes, [] if name == "all" else [name], device="meta") for name in (new, old)]
    for model, name in zip(models, (new, old), strict=True):
        assert [[r for r, t in model.roles.items() if t is table] for table in model.tables] == SHARING[name]
    fit = compare(*models)
    found = {name: its for name, its in fit.taken.items() if name.startswith("tables.")}
    assert found == {f"tables.{mine}.weight": f"tables.{its}.weight" for mine, its in taken.items()}
    assert set(fit.fresh) == {f"tables.{mine}.weight" for mine in range(len(SHARING[new])) if mine not in taken}
    unused = set(range(len(SHARING[old]))).difference(taken.values())
    assert set(fit.left) == {f"tables.{index}.weight" for index in unused}


def test_tables_of_separate_vocabularies_are_taken_by_role(made, tmp_path):
    """A run whose target table reads and writes begins one that writes with a table of its own."""
    settings = {"data.train": str(made / "train"), "model.modifications": ["untied"]}
    new, _ = adapted(made / "plain", tmp_path / "new", settings)
    mine, its = first_weights(new), load_file(made / "plain" / "model.safetensors")
    assert [f"tables.{index}.weight" in its for index in range(3)] == [True, True, False]
    for index, there in enumerate((0, 1, 1)):
        assert torch.equal(mine[f"tables.{index}.weight"], its[f"tables.{there}.weight"])
    assert not start_of(new)["fresh"]


def test_a_table_that_only_read_may_write_where_nothing_wrote(made):
    """A classifier has no output table; masked words after it begin with the table that it reads by."""
    _, model = classifier(made)
    masked = build(replace(model.sizes, classes=0), [], model.kind, device="meta")
    assert compare(masked, model).taken["tables.0.weight"] == "tables.0.weight"


def test_a_language_model_begins_with_a_masked_word_encoder(made, tmp_path):
    text = {"data.train": str(made / "train.txt"), "model.kind": "decoder_only"}
    new, words = adapted(made / "mlm", tmp_path / "new", text)
    taken, fresh, left = taken_and_fresh(new, made / "mlm")
    assert taken == load_file(made / "mlm" / "model.safetensors").keys()
    assert not fresh
    assert not left
    assert new.read_config().data.context == 16
    assert words[-1] == "  differs: its model.kind is encoder_only, here decoder_only"


def classifier(made, **settings):
    """A model of three classes that begins with masked words: a new configuration, and a fresh model of it."""
    given = read_config(None, {"data.train": "x", "model.classes": 3, **settings})
    config = inherit(given, Run(made / "mlm"))
    return config, build(config.sizes(), config.model.modifications, config.model.kind, seed=1)


def test_a_classifier_begins_with_a_masked_word_encoder(made):
    config, model = classifier(made)
    fresh = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    listener, old = Listener(), Run(made / "mlm")
    assert outline(config, old).sizes.classes == 3
    told = take(model, config, old, listener)
    its = load_file(made / "mlm" / "model.safetensors")
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, (fresh if name.startswith("classifier.") else its)[name])
    assert told["start"]["fresh"] == ["classifier.*"]
    assert listener.words[1:] == ["  starts fresh: classifier.*"]


def test_a_head_that_the_new_model_has_not_is_left_behind(made):
    _, model = classifier(made)
    masked = build(replace(model.sizes, classes=0), ["mixture_of_softmaxes"], model.kind)
    fit = compare(model, masked)
    assert fit.body == 1
    assert {name.partition(".")[0] for name in fit.left} == {"head"}
    assert fit.patterns()["left"] == ["head.*"]


def test_a_model_that_is_cut_up_among_processes_takes_the_same(made, alone):
    config, model = classifier(made)
    for layer in model.stack.layers:
        fully_shard(layer)
    fully_shard(model)
    assert all(map(is_cut, model.state_dict().values()))
    fresh = {name: tensor.clone() for name, tensor in whole_tensors(model.state_dict()).items()}
    take(model, config, Run(made / "mlm"), Listener())
    its = load_file(made / "mlm" / "model.safetensors")
    for name, tensor in whole_tensors(model.state_dict()).items():
        assert torch.equal(tensor, (fresh if name.startswith("classifier.") else its)[name])


@pytest.mark.parametrize("name", ["encoder_decoder", "funnel_study", "language_model"])
def test_a_run_of_the_first_format_is_taken_whole(tmp_path, name):
    text = LEGACY / "corpus" / ("train.en" if name == "language_model" else "train")
    new, words = adapted(LEGACY / name, tmp_path / "new", {"data.train": str(text)})
    mine, its = first_weights(new), load_file(LEGACY / name / "model.safetensors")
    assert mine.keys() == its.keys()
    assert all(torch.equal(mine[key], its[key]) for key in its)
    described = json.loads((new.directory / "model.json").read_text())
    assert described["format"] == "sixfold-model-2"
    assert described["sizes"] == json.loads((LEGACY / name / "model.json").read_text())["sizes"]
    assert not any("differs" in word for word in words)


def test_what_began_with_another_run_can_be_resumed(made, tmp_path):
    constant = {"training.schedule": "constant", "training.warmup": 1, "training.learning_rate": 0.001}
    settings = {"data.train": str(made / "train"), "model.layers": 2, **constant}
    whole, _ = adapted(made / "plain", tmp_path / "whole", {**settings, "training.steps": 4})
    broken, _ = adapted(made / "plain", tmp_path / "broken", {**settings, "training.steps": 2})
    about = json.loads(broken.about.read_text())
    resume(broken.directory, {"training.steps": 4}, display=Listener())
    assert tiny.bytes_of(broken)["model.safetensors"] == tiny.bytes_of(whole)["model.safetensors"]
    after = json.loads(broken.about.read_text())
    assert after["from"] == about["from"] == str((made / "plain").resolve())
    assert after["start"] == about["start"]


# What is refused


def refusal(run, **settings):
    with pytest.raises(ValueError) as error:
        check(read_config(None, {"data.train": "x", **settings}), run)
    return str(error.value)


def test_half_of_the_body_is_enough_and_less_is_an_error_that_says_what_differs(made):
    """Here a layer of both stacks has 2,160 and 3,216 parameters, and their last norms have 32 each."""
    run = Run(made / "plain")
    outlined = outline(inherit(read_config(None, {"model.layers": 2}), run), run)
    found = compare(outlined, model_files.skeleton(run.directory)).body
    assert found == (2160 + 3216 + 64) / (2 * (2160 + 3216) + 64)
    least = "fit, and at least half must"
    last = "leave out the settings that differ, or train without --from"
    assert refusal(run, **{"model.layers": 3}) == (  # 5,440 of 16,192
        f"--from {run.directory}: only 33 % of the parameters in this model's layers {least}: "
        f"its encoder_layers is 1, here 3; its decoder_layers is 1, here 3; {last}"
    )
    assert refusal(run, **{"model.d_ff": 64}) == (  # 3,328 of 7,552
        f"--from {run.directory}: only 44 % of the parameters in this model's layers {least}: "
        f"its d_ff is 32, here 64; {last}"
    )
    assert refusal(run, **{"model.d_model": 32, "model.d_head": 8, "model.modifications": "[rms_norm]"}) == (
        f"--from {run.directory}: only 0 % of the parameters in this model's layers {least}: "
        f"its d_model is 16, here 32; its d_head is d_model / heads, here 8; "
        f"its modifications are none, here rms_norm; {last}"
    )


def test_tables_inputs_and_heads_are_not_the_body(made):
    """All tables fit, and they are nearly all parameters: that is not enough."""
    assert "only 0 %" in refusal(Run(made / "joint"), **{"model.kind": "decoder_only", "model.modifications": "[]"})


def test_a_kind_that_has_its_layers_under_other_names_is_refused(made):
    run = Run(made / "joint")
    assert refusal(run, **{"model.kind": "encoder_only", "model.modifications": "[]"}) == (
        f"--from {run.directory}: only 0 % of the parameters in this model's layers fit, and at least half "
        f"must: its model.kind is encoder_decoder, here encoder_only; its modifications are t5_bias:buckets=8, "
        f"untied, transparent_attention, here none; leave out the settings that differ, or train without --from"
    )


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        (
            "unequal",
            {"model.modifications": ["rotary", "t5_bias"]},
            "'rotary' and 't5_bias' both fill the slot 'position'; choose one of them; "
            "its modifications are rotary, swiglu, here rotary, t5_bias",
        ),
        (
            "plain",
            {"model.heads": 3},
            "d_model 16 does not divide into 3 heads; choose a number of heads that divides it, or give d_head; "
            "its heads is 2, here 3",
        ),
        (
            "plain",
            {"model.kind": "decoder_only"},
            "a model with one stack has one vocabulary: give vocab, not source_vocab and target_vocab; "
            "its model.kind is encoder_decoder, here decoder_only",
        ),
    ],
)
def test_a_model_that_cannot_be_built_names_what_is_not_the_runs(made, name, settings, words):
    assert refusal(Run(made / name), **settings) == f"--from {made / name}: {words}"


# How it is told

TWELVE = " ".join(f"s.layers.{layer}.{part}" for layer in range(12) for part in "xy")


@pytest.mark.parametrize(
    ("names", "among", "told"),
    [
        ("a.b a.c", "a.b a.c d", "a.*"),
        ("a.b", "a.b a.c d", "a.b"),
        ("d a.b a.c", "a.b a.c d", "d a.*"),
        ("s.layers.4.x s.layers.4.y", "s.layers.4.x s.layers.4.y s.layers.3.x s.final", "s.4.*"),
        ("s.layers.0.x s.layers.1.x", "s.layers.0.x s.layers.1.x s.final", "s.layers.*"),
        ("s.layers.0.x s.layers.1.x", "s.layers.0.x s.layers.0.y s.layers.1.x s.layers.1.y", "s.0-1.x"),
        ("s.layers.10.x s.layers.9.x s.layers.0.x", TWELVE, "s.0,9-10.x"),
        ("s.layers.0.layers.1.x", "s.layers.0.layers.1.x s.layers.0.layers.0.x", "s.0.layers.1.*"),
        ("", "a b", ""),
    ],
)
def test_names_are_told_by_patterns(names, among, told):
    assert patterns(names.split(), among.split()) == told.split()


def test_many_patterns_are_cut_short_on_the_display_and_not_in_the_run(made, tmp_path):
    settings = {"data.train": str(made / "train"), "model.modifications": ["rms_norm"]}
    new, words = adapted(made / "unequal", tmp_path / "new", settings)
    left = start_of(new)["left"]
    assert len(left) == 2 + 2 + 3 + 2  # inner matrices, and biases of norms: of the encoder, of the decoder, the last
    (line,) = [word for word in words if word.startswith("  not taken")]
    assert line == f"  not taken: {', '.join(left[:8])} and {len(left) - 8} more, see run.json"
