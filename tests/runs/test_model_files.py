"""Saving and loading: bit for bit, whole or not at all, and nothing damaged gets in."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import sixfold
from sixfold.spec.registry import Chosen

SIZES = sixfold.Sizes(d_model=16, d_ff=20, heads=3, d_head=4, encoder_layers=1, decoder_layers=2, vocab=13)
SOURCE, TARGET = torch.tensor([[3, 4, 5, 2], [6, 2, 0, 0]]), torch.tensor([[1, 7, 8], [1, 9, 0]])


def log_probs(model) -> torch.Tensor:
    with torch.no_grad():
        return model.log_probs(model.decode(TARGET, model.encode(SOURCE)))


def same(a, b) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def model():
    return sixfold.build(SIZES, ["t5_bias:buckets=8"], seed=1).eval()


@pytest.fixture
def saved(model, tmp_path) -> Path:
    sixfold.save(model, tmp_path / "model")
    return tmp_path / "model"


def refused(directory: Path, *names: object) -> None:
    """Loading is a ValueError whose message contains all the names."""
    with pytest.raises(ValueError) as error:
        sixfold.load_model(directory)
    for name in names:
        assert str(name) in str(error.value)


def rewrite_description(directory: Path, **changes: object) -> None:
    path = directory / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rewrite_weights(directory: Path, change) -> None:
    path = directory / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path)


# Round trips ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "modifications",
    [
        [],
        ["post_norm", "rotary:base=500"],
        ["t5_bias:buckets=8,max_distance=20,per_layer=true"],
        ["shaw:distance=2,per_head=true"],
        ["learned_positions:length=9"],
    ],
    ids=str,
)
def test_a_loaded_model_is_the_saved_one_bit_for_bit(tmp_path, modifications):
    model = sixfold.build(SIZES, modifications, seed=1).eval()
    sixfold.save(model, tmp_path)
    loaded = sixfold.load_model(tmp_path)
    assert same(model, loaded)
    assert torch.equal(log_probs(model), log_probs(loaded))
    assert loaded.assembly.modifications == model.assembly.modifications
    assert loaded.sizes == SIZES
    assert loaded.limits == model.limits


@pytest.mark.parametrize("kind", ["decoder_only", "encoder_only"])
def test_models_of_one_stack_come_back(tmp_path, kind):
    model = sixfold.build(replace(SIZES, classes=3 if kind == "encoder_only" else 0), model=kind, seed=1)
    sixfold.save(model, tmp_path)
    loaded = sixfold.load_model(tmp_path)
    assert type(loaded) is type(model)
    assert same(model, loaded)


def test_half_precision_stays_half(tmp_path, model):
    sixfold.save(model.bfloat16(), tmp_path)
    loaded = sixfold.load_model(tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {torch.bfloat16}
    assert same(model, loaded)


def test_a_loaded_model_is_ready_for_use_and_for_training(saved):
    loaded = sixfold.load_model(saved)
    assert not loaded.training
    assert all(p.requires_grad for p in loaded.parameters())
    loaded.train()(sixfold.Batch(SOURCE, TARGET, TARGET)).sum.backward()
    assert all(p.grad is not None for p in loaded.parameters())


def test_the_description_says_what_the_model_is(saved):
    said = json.loads((saved / "model.json").read_text())
    assert said["model"] == "encoder_decoder"
    assert said["sizes"]["d_head"] == 4
    assert said["modifications"] == [{"t5_bias": {"buckets": 8}}]
    assert said["versions"]["torch"] == torch.__version__


def test_a_saved_model_is_two_files(saved):
    assert sorted(path.name for path in saved.iterdir()) == ["model.json", "model.safetensors"]


def test_saving_again_gives_the_same_bytes(model, saved, tmp_path):
    sixfold.save(sixfold.load_model(saved), tmp_path / "again")
    for name in ("model.json", "model.safetensors"):
        assert (saved / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_what_is_shared_is_stored_once_and_shared_again(saved, model):
    stored = safetensors.torch.load_file(saved / "model.safetensors")
    assert sum(t.numel() for t in stored.values()) == sum(p.numel() for p in model.parameters())
    assert [name for name, t in stored.items() if t.shape == (13, 16)] == ["tables.0.weight"]
    loaded = sixfold.load_model(saved)
    assert loaded.roles["source"] is loaded.roles["target"] is loaded.roles["output"] is loaded.tables[0]
    with torch.no_grad():
        loaded.tables[0].weight.zero_()
    assert torch.allclose(log_probs(loaded), torch.full((), 1 / 13).log())


def test_separate_vocabularies_come_back(tmp_path):
    sizes = replace(SIZES, vocab=0, source_vocab=9, target_vocab=13)
    model = sixfold.build(sizes, seed=1).eval()
    sixfold.save(model, tmp_path)
    assert torch.equal(log_probs(model), log_probs(sixfold.load_model(tmp_path)))


# Overwriting, and what a failure leaves ----------------------------------------------------------------


def test_an_existing_model_is_only_replaced_on_request(saved, model):
    other = sixfold.build(SIZES, ["rotary"], seed=2)
    with pytest.raises(ValueError, match="overwrite=True") as error:
        sixfold.save(other, saved)
    assert str(saved) in str(error.value)
    assert same(sixfold.load_model(saved), model)
    sixfold.save(other, saved, overwrite=True)
    loaded = sixfold.load_model(saved)
    assert same(loaded, other)
    assert loaded.assembly.modifications == (Chosen("rotary"),)


def fail(*args: object, **kwargs: object) -> None:
    raise OSError("disk full")


def test_a_failed_save_leaves_nothing_in_a_new_directory(model, tmp_path, monkeypatch):
    monkeypatch.setattr(safetensors.torch, "save_file", fail)
    with pytest.raises(OSError, match="disk full"):
        sixfold.save(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_save_leaves_the_old_model(saved, model, monkeypatch):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", fail)
        with pytest.raises(OSError, match="disk full"):
            sixfold.save(sixfold.build(SIZES, seed=2), saved, overwrite=True)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert same(sixfold.load_model(saved), model)


def test_a_save_that_fails_half_way_never_gives_a_mixture(model, tmp_path, monkeypatch):
    """New weights beside an old description of the same shapes must not load as if nothing were wrong."""
    old, new = (sixfold.build(SIZES, [wish], seed=1).eval() for wish in ("rotary:base=100", "rotary:base=7"))
    sixfold.save(old, tmp_path)
    with torch.no_grad():
        new.tables[0].weight += 1
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail)
        with pytest.raises(OSError, match="disk full"):
            sixfold.save(new, tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    try:
        loaded = sixfold.load_model(tmp_path)
    except ValueError:
        return  # refusing is honest too
    which = old if loaded.assembly.modifications == old.assembly.modifications else new
    assert same(loaded, which)


def test_a_compiled_model_is_saved_as_what_it_wraps(model, tmp_path):
    sixfold.save(torch.compile(model), tmp_path / "compiled")
    assert same(sixfold.load_model(tmp_path / "compiled"), model)


def test_what_would_not_load_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="Linear"):
        sixfold.save(torch.nn.Linear(2, 2), tmp_path)
    model = sixfold.build(SIZES, seed=1)
    model.encoder.register_buffer("forgotten", torch.zeros(1), persistent=False)
    with pytest.raises(ValueError, match=r"encoder\.forgotten"):
        sixfold.save(model, tmp_path)
    assert not list(tmp_path.iterdir())


# What is refused ---------------------------------------------------------------------------------------


def test_a_directory_without_a_model_is_named(tmp_path):
    refused(tmp_path, tmp_path, "model.json")
    refused(tmp_path / "nowhere", "nowhere", "model.json")


@pytest.mark.parametrize(
    "text", ["{", "", "not json", "\udcff", "[" * 200_000], ids=["cut", "empty", "text", "bytes", "deep"]
)
def test_a_description_that_is_not_json_is_named(saved, text):
    (saved / "model.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(saved, saved / "model.json", "not JSON")


def test_an_unknown_format_is_named(saved):
    rewrite_description(saved, format="sixfold-model-99")
    refused(saved, saved / "model.json", "'sixfold-model-99'", "'sixfold-model-1'")


@pytest.mark.parametrize("text", ["[]", "3", '"sixfold-model-1"', "{}", "null"])
def test_json_of_another_kind_is_no_description(saved, text):
    (saved / "model.json").write_text(text)
    refused(saved, saved / "model.json", "format")


def test_a_huge_description_is_not_read(saved):
    (saved / "model.json").write_text(" " * (1 << 20) + "{}")
    refused(saved, saved / "model.json", "1,048,578 bytes")


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"sizes": {"vocab": 13, "depth": 3}}, ["depth"]),
        ({"sizes": {"vocab": 13, "heads": 0}}, ["heads", "0"]),
        ({"sizes": {"vocab": 13, "heads": 1, "d_model": 10**15}}, []),
        ({"sizes": {"vocab": 10**30}}, []),
        ({"sizes": None}, ["damaged"]),
        ({"sizes": [1]}, ["damaged"]),
        ({"model": "encoder"}, ["'encoder'"]),
        ({"model": ["encoder_only"]}, ["no model"]),
        ({"modifications": 3}, ["damaged"]),
        ({"modifications": ["rotary"]}, ["damaged"]),
        ({"modifications": [{"rotary": 3}]}, ["damaged"]),
        ({"modifications": [{"rotary": {"base": "big"}}]}, ["'base'", "'rotary'", "'big'"]),
        ({"modifications": [{"rotary": {"bass": 3.0}}]}, ["'bass'", "'rotary'", "'base'"]),
        ({"modifications": [{"my_own": {}}]}, ["'my_own'", "import_file"]),
        ({"modifications": [{"rotary": {}}, {"shaw": {}}]}, ["'rotary'", "'shaw'"]),
    ],
    ids=str,
)
def test_a_description_that_describes_nothing_is_refused(saved, changes, names):
    rewrite_description(saved, **changes)
    refused(saved, saved / "model.json", *names)


@pytest.mark.parametrize("missing", ["sizes", "model", "modifications"])
def test_a_description_that_lacks_something_says_what(saved, missing):
    path = saved / "model.json"
    said = json.loads(path.read_text())
    del said[missing]
    path.write_text(json.dumps(said))
    refused(saved, path, missing)


def test_missing_weights_are_named(saved):
    (saved / "model.safetensors").unlink()
    refused(saved, saved, "model.safetensors")


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(saved, kept):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    refused(saved, path, "damaged")


def test_nothing_is_unpickled(saved, tmp_path):
    class Trap:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "executed",))

    path = saved / "model.safetensors"
    path.write_bytes(pickle.dumps(Trap()))
    refused(saved, path, "damaged")
    torch.save({"weight": Trap()}, path)
    refused(saved, path, "damaged")
    assert not (tmp_path / "executed").exists()


def test_a_tensor_of_the_wrong_shape_is_named(saved):
    rewrite_weights(saved, lambda t: t.update({"tables.0.weight": torch.zeros(13, 17)}))
    refused(saved, saved / "model.safetensors", "tables.0.weight", "(13, 17)", "(13, 16)")


def test_a_missing_tensor_is_named(saved):
    rewrite_weights(saved, lambda t: t.pop("encoder.final.weight"))
    refused(saved, saved / "model.safetensors", "lacks encoder.final.weight")


def test_a_tensor_too_many_is_named(saved):
    rewrite_weights(saved, lambda t: t.update({"surprise": torch.zeros(2)}))
    refused(saved, saved / "model.safetensors", "surprise")


def test_a_tensor_of_whole_numbers_is_named(saved):
    rewrite_weights(saved, lambda t: t.update({"tables.0.weight": torch.zeros(13, 16, dtype=torch.int64)}))
    refused(saved, saved / "model.safetensors", "tables.0.weight", "I64")
