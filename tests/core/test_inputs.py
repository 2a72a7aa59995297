"""Whatever is wrong with the data is said where they enter, in words."""

from __future__ import annotations

import pytest
import torch

import sixfold
from sixfold.core.memory import Memory
from sixfold.models.build import MODELS

SIZES = {"d_model": 8, "d_ff": 12, "heads": 2, "encoder_layers": 1, "decoder_layers": 2, "dropout": 0.0}
IDS = torch.tensor([[3, 4, 5], [6, 7, 0]])


@pytest.fixture(scope="module")
def models():
    """One of each kind, with 11 words."""
    return {kind: sixfold.build(sixfold.Sizes(**SIZES, vocab=11), model=kind, seed=1) for kind in MODELS}


@pytest.fixture(scope="module")
def translator(models):
    return models["encoder_decoder"]


@pytest.fixture(scope="module")
def classifier():
    return sixfold.build(sixfold.Sizes(**SIZES, vocab=11, classes=4), model="encoder_only", seed=1)


def refused(function, *names: str) -> None:
    """Calling it is a ValueError whose message contains all the names."""
    with pytest.raises(ValueError) as error:
        function()
    for name in names:
        assert name in str(error.value)


BAD_IDS = {
    "no_tokens": (torch.zeros(2, 0, dtype=torch.long), "empty", "(2, 0)"),
    "no_rows": (torch.zeros(0, 3, dtype=torch.long), "empty", "(0, 3)"),
    "beyond_the_vocabulary": (torch.tensor([[3, 11]]), "11", "vocabulary of 11", "0 to 10"),
    "far_beyond": (torch.tensor([[3, 2**40]]), str(2**40), "vocabulary of 11"),
    "negative": (torch.tensor([[-1, 3]]), "-1", "vocabulary of 11"),
    "float": (torch.ones(2, 3), "whole numbers", "torch.float32"),
    "bool": (torch.ones(2, 3, dtype=torch.bool), "whole numbers", "torch.bool"),
    "complex": (torch.ones(2, 3, dtype=torch.complex64), "whole numbers", "torch.complex64"),
    "int16": (torch.ones(2, 3, dtype=torch.int16), "torch.long", "torch.int16"),
    "one_dimension": (torch.tensor([3, 4]), "(rows, length)", "(2,)"),
    "three_dimensions": (torch.ones(1, 2, 3, dtype=torch.long), "(rows, length)", "(1, 2, 3)"),
    "list": ([[3, 4]], "tensor", "list"),
    "none": (None, "tensor", "NoneType"),
}
ALL_BAD_IDS = pytest.mark.parametrize(("ids", "names"), [(bad[0], bad[1:]) for bad in BAD_IDS.values()], ids=BAD_IDS)


@ALL_BAD_IDS
def test_bad_source_ids_are_refused(translator, ids, names):
    refused(lambda: translator.encode(ids), "source ids", *names)
    refused(lambda: translator(sixfold.Batch(ids, IDS, IDS)), "source ids", *names)


@ALL_BAD_IDS
def test_bad_target_ids_are_refused(translator, ids, names):
    memory = translator.encode(IDS)
    refused(lambda: translator.decode(ids, memory), "target ids", *names)
    refused(lambda: translator.decode(ids, cache=sixfold.Cache(memory)), "target ids", *names)
    refused(lambda: translator(sixfold.Batch(IDS, ids, IDS)), "target ids", *names)


@ALL_BAD_IDS
def test_bad_targets_are_refused(models, ids, names):
    for model in models.values():
        refused(lambda model=model: model(sixfold.Batch(IDS, IDS, ids)), "targets", *names)


@ALL_BAD_IDS
def test_bad_ids_of_one_stack_are_refused(models, ids, names):
    refused(lambda: models["decoder_only"].decode(ids), *names)
    refused(lambda: models["encoder_only"].encode(ids), *names)


def test_ids_of_a_separate_vocabulary_are_held_against_it():
    model = sixfold.build(sixfold.Sizes(**SIZES, source_vocab=20, target_vocab=11), seed=1)
    memory = model.encode(torch.tensor([[19]]))
    refused(lambda: model.encode(torch.tensor([[20]])), "source ids", "20", "vocabulary of 20")
    refused(lambda: model.decode(torch.tensor([[11]]), memory), "target ids", "11", "vocabulary of 11")


BAD_MASKS = {
    "too_long": (torch.ones(2, 4, dtype=torch.bool), "(2, 3)", "(2, 4)"),
    "too_few_rows": (torch.ones(1, 3, dtype=torch.bool), "(2, 3)", "(1, 3)"),
    "one_dimension": (torch.ones(3, dtype=torch.bool), "(2, 3)", "(3,)"),
    "attention_mask": (torch.ones(2, 1, 1, 3, dtype=torch.bool), "(2, 3)", "(2, 1, 1, 3)"),
    "float": (torch.ones(2, 3), "boolean", "torch.float32"),
    "long": (torch.ones(2, 3, dtype=torch.long), "boolean", "torch.int64"),
    "list": ([[True] * 3] * 2, "boolean", "list"),
}


@pytest.mark.parametrize(("real", "names"), [(bad[0], bad[1:]) for bad in BAD_MASKS.values()], ids=BAD_MASKS)
def test_bad_masks_are_refused(models, translator, classifier, real, names):
    refused(lambda: translator.encode(IDS, real), "mask of the source ids", *names)
    refused(lambda: translator.decode(IDS, translator.encode(IDS), real), "mask of the target ids", *names)
    refused(lambda: models["decoder_only"].decode(IDS, real), "mask", *names)
    refused(lambda: models["encoder_only"].encode(IDS, real), "mask", *names)
    refused(lambda: classifier.classify(IDS, real), "mask", *names)


@pytest.mark.parametrize(
    "targets", [IDS[:, :2], IDS[:1], IDS.T.contiguous(), IDS.view(1, 6)], ids=lambda t: str(tuple(t.shape))
)
def test_targets_of_another_shape_than_inputs_are_refused(models, targets):
    for model in models.values():
        refused(lambda model=model: model(sixfold.Batch(IDS, IDS, targets)), "(2, 3)", str(tuple(targets.shape)))


def test_memory_of_other_rows_is_refused(translator):
    memory = translator.encode(IDS)
    refused(lambda: translator.decode(IDS[:1], memory), "target has 1 rows", "memory 2")
    refused(lambda: translator.decode(IDS.repeat(2, 1), memory), "target has 4 rows", "memory 2")
    refused(lambda: translator(sixfold.Batch(IDS[:1], IDS, IDS)), "target has 2 rows", "memory 1")


def test_memory_for_another_number_of_layers_is_refused(translator):
    memory = translator.encode(IDS)
    refused(lambda: translator.decode(IDS, Memory(memory.states[:1], memory.real)), "1", "2 layers")


def test_memory_with_a_mask_of_another_shape_is_refused(translator):
    states = translator.encode(IDS).states
    refused(lambda: translator.decode(IDS, Memory(states, torch.ones(2, 9, dtype=torch.bool))), "(2, 9)", "(2, 3)")


def test_states_in_the_place_of_a_memory_are_refused(translator):
    states = translator.encode(IDS).states[-1]
    refused(lambda: translator.decode(IDS, states), "memory", "Tensor")


def test_a_cache_of_other_rows_is_refused(models, translator):
    cache = sixfold.Cache(translator.encode(IDS))
    refused(lambda: translator.decode(IDS[:1], cache=cache), "1 rows", "2 hypotheses")
    refused(lambda: models["decoder_only"].decode(IDS, cache=sixfold.Cache(rows=3)), "2 rows", "3 hypotheses")


def test_a_refused_chunk_leaves_the_cache_as_it_was(translator):
    cache = sixfold.Cache(translator.encode(IDS))
    translator.decode(IDS[:, :1], cache=cache)
    refused(lambda: translator.decode(torch.tensor([[11], [3]]), cache=cache), "11")
    refused(lambda: translator.decode(IDS[:1, :1], cache=cache), "1 rows")
    assert cache.lengths.tolist() == [1, 1]
    whole = translator.decode(IDS[:, :2], translator.encode(IDS))
    torch.testing.assert_close(translator.decode(IDS[:, 1:2], cache=cache), whole[:, 1:])


def test_decode_needs_a_memory_or_a_cache_not_both(translator):
    memory = translator.encode(IDS)
    refused(lambda: translator.decode(IDS), "memory", "cache")
    refused(lambda: translator.decode(IDS, memory, cache=sixfold.Cache(memory)), "memory", "cache")


def test_a_cache_without_memory_does_not_serve_an_encoder_decoder(translator):
    refused(lambda: translator.decode(IDS, cache=sixfold.Cache(rows=2)), "no memory", "Cache(memory)")


def test_a_cache_needs_a_memory_or_rows():
    refused(lambda: sixfold.Cache(), "memory", "rows")


@pytest.mark.parametrize("kind", ["decoder_only", "encoder_only"])
def test_a_model_of_one_stack_has_one_vocabulary(kind):
    sizes = sixfold.Sizes(**SIZES, source_vocab=9, target_vocab=7)
    refused(lambda: sixfold.build(sizes, model=kind), "one vocabulary", "source_vocab", "target_vocab")


def test_a_model_without_classes_does_not_classify(models):
    refused(lambda: models["encoder_only"].classify(IDS), "predicts words", "classes")


def test_a_model_with_classes_does_not_predict_words(classifier):
    refused(lambda: classifier.log_probs(classifier.encode(IDS)), "class")


BAD_CLASSES = {
    "for_each_token": (IDS, "one class for each row", "(2, 3)"),
    "too_many": (torch.tensor([0, 1, 2]), "2 rows", "3"),
    "too_few": (torch.tensor([0]), "2 rows", "1"),
    "unknown_class": (torch.tensor([0, 4]), "classes", "4"),
    "negative": (torch.tensor([0, -1]), "classes", "-1"),
    "float": (torch.tensor([0.0, 1.0]), "classes", "torch.float32"),
    "list": ([0, 1], "one class for each row", "list"),
    "none": (None, "one class for each row", "NoneType"),
}


@pytest.mark.parametrize(("targets", "names"), [(bad[0], bad[1:]) for bad in BAD_CLASSES.values()], ids=BAD_CLASSES)
def test_bad_classes_are_refused(classifier, targets, names):
    refused(lambda: classifier(sixfold.Batch(IDS, targets=targets)), *names)


def test_what_is_longer_than_learned_positions_is_refused():
    model = sixfold.build(sixfold.Sizes(**SIZES, vocab=11), ["learned_positions:length=2"], seed=1)
    memory = model.encode(IDS[:, :2])
    refused(lambda: model.encode(IDS), "3 positions", "only 2")
    refused(lambda: model.decode(IDS, memory), "3 positions", "only 2")
    cache = sixfold.Cache(memory)
    model.decode(IDS[:, :2], cache=cache)
    refused(lambda: model.decode(IDS[:, :1], cache=cache), "3 positions", "only 2")


def test_gates_of_a_part_that_is_not_there_are_refused(translator):
    off = torch.zeros(1, 2)
    memory = translator.encode(IDS)
    refused(lambda: translator.decode(IDS, memory, gates={"decoder.7.cross": off}), "decoder.7.cross")


@pytest.mark.parametrize("shape", [(2,), (1, 3), (3, 2), (2, 1)], ids=str)
def test_gates_of_the_wrong_shape_are_refused(translator, shape):
    memory = translator.encode(IDS)
    refused(lambda: translator.decode(IDS, memory, gates={"decoder.1.cross": torch.ones(shape)}), str(shape))


def test_what_is_no_cache_no_rows_no_tap_and_no_model_is_refused(translator):
    memory = translator.encode(IDS)
    refused(lambda: sixfold.Cache(2), "int")
    refused(lambda: sixfold.Cache(memory).select([0, 1]), "[0, 1]")
    refused(lambda: translator.decode(IDS, memory, tap="decoder.*"), "Tap", "str")
    refused(lambda: sixfold.build(translator.sizes, model=None), "None")
    refused(lambda: sixfold.build(sixfold.Sizes(vocab=9, classes=3)), "classes", "encoder_only")


def test_a_memory_of_another_width_is_refused(translator):
    memory = translator.encode(IDS)
    narrow = memory._replace(states=tuple(s[..., :3] for s in memory.states))
    refused(lambda: translator.decode(IDS, narrow), "width 3")


@pytest.mark.parametrize("smoothing", [-0.1, 1.5])
def test_smoothing_must_be_a_share(translator, smoothing):
    refused(lambda: translator(sixfold.Batch(IDS, IDS, IDS), smoothing=smoothing), "smoothing", str(smoothing))
