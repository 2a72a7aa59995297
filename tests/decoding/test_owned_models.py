"""Whoever changes a model gets outputs of the changed model; otherwise int8 copies and steps are kept."""

import gc
import weakref

import pytest
import torch

import sixfold
from sixfold.decoding import owned_models
from sixfold.decoding.owned_models import Contents, frozen
from sixfold.decoding.translator import Translator
from tests.support import runs
from tests.support.classifiers import small_classifier
from tests.support.generators import small_writer
from tests.support.translators import small_translator

LINES = ["a b", "c"]
PRECISIONS = pytest.mark.parametrize("precision", ["float32", "int8"])


def owner(**keys):
    """A translator whose model is frozen, as `sixfold.load` gives it, and decodes by the fused step."""
    translator = small_translator(**keys)
    translator.model.float().requires_grad_(False)
    return translator


def log_probs(translator, **keys):
    return [each.log_probs for each in translator.translate(LINES, **keys)]


@pytest.fixture
def made(monkeypatch):
    """The steps that were made."""
    found, make = [], owned_models.make_step
    monkeypatch.setattr(owned_models, "make_step", lambda *how, **more: found.append(make(*how, **more)) or found[-1])
    return found


@PRECISIONS
def test_a_step_is_kept_for_calls_of_any_kind(made, precision):
    translator = owner(precision=precision)
    first = log_probs(translator)
    assert log_probs(translator) == first
    translator.translate(LINES, beam_size=2, n_best=2, stop=lambda: False)
    translator.translate(LINES, alignment=True, terms=[["A"], []])
    assert len(made) == 1
    translator.translate(LINES, beam_size=2, coverage_penalty=0.1)  # it needs attention weights
    translator.translate(LINES, gates={"decoder.0.cross": torch.ones(1, 2)})
    assert len(made) == 3
    assert log_probs(translator) == first
    assert len(made) == 3
    for _ in range(2):
        translator.translate(LINES, tap=sixfold.Tap())  # each step has the tap of its call
    assert len(made) == 5


def linear(model):
    """A part whose weights a step copies."""
    return model.decoder.layers[0].feed_forward.inner


def inplace(model):
    with torch.no_grad():
        linear(model).weight.mul_(-1)


def loaded(model):
    model.load_state_dict({name: -tensor for name, tensor in model.state_dict().items()})


def assigned(model):
    model.load_state_dict({name: -tensor for name, tensor in model.state_dict().items()}, assign=True)
    model.requires_grad_(False)


def replaced(model):
    linear(model).weight = torch.nn.Parameter(-linear(model).weight, requires_grad=False)


def other_memory(model):
    linear(model).weight.data = -linear(model).weight.data


def converted(model):
    model.double()
    inplace(model)


class Negated(torch.nn.Linear):
    def forward(self, x):
        return -super().forward(x)


def other_part(model):
    """With the same weights."""
    part = Negated(1, 1)
    part.weight, part.bias = linear(model).weight, linear(model).bias
    model.decoder.layers[0].feed_forward.inner = part


def hooked(model):
    model.decoder.layers[0].feed_forward.register_forward_hook(lambda part, args, y: -y)


@PRECISIONS
@pytest.mark.parametrize("change", [inplace, loaded, assigned, replaced, other_memory, converted, other_part, hooked])
def test_a_change_is_seen(change, precision):
    translator, fresh = owner(precision=precision), owner(precision=precision)
    before = log_probs(translator)
    change(translator.model)
    change(fresh.model)
    assert log_probs(translator) == log_probs(fresh) != before


@PRECISIONS
@pytest.mark.parametrize("frozen_at_once", [True, False])
def test_a_model_that_is_not_frozen_may_be_trained_between_two_calls(precision, frozen_at_once):
    """torch does not count the changes of a fused optimiser."""
    translator = owner(precision=precision)
    model = translator.model.requires_grad_(True)
    before, weight = log_probs(translator), linear(model).weight
    optimizer, count = torch.optim.SGD([weight], lr=2.0, fused=True), weight._version
    weight.grad = weight.detach().clone()
    optimizer.step()
    assert weight._version == count
    after = log_probs(Translator(model, translator.tokenizers, translator.decoding))
    if not frozen_at_once:
        assert log_probs(translator) == after != before
    model.requires_grad_(False)
    translator.changed()
    assert log_probs(translator) == after != before


def through_data(model):
    linear(model).weight.data.neg_()


def attribute(model):
    model.decoder.layers[0].feed_forward.activation = torch.tanh


@PRECISIONS
@pytest.mark.parametrize("change", [through_data, attribute])
def test_other_changes_must_be_announced(made, precision, change):
    translator, fresh = owner(precision=precision), owner(precision=precision)
    before = log_probs(translator)
    change(translator.model)
    log_probs(translator)
    assert len(made) == 1, "the step was kept"
    translator.changed()
    change(fresh.model)
    assert log_probs(translator) == log_probs(fresh) != before


def test_weights_without_a_count_of_changes_are_not_kept():
    translator = owner()
    with torch.inference_mode():
        part = linear(translator.model)
        part.weight = torch.nn.Parameter(part.weight.clone(), requires_grad=False)
        assert Contents.of(translator.models) is None
        before = log_probs(translator)
        part.weight.neg_()
        assert log_probs(translator) != before


def test_a_change_during_a_stream_is_seen_by_the_next_call():
    translator, fresh = owner(), owner()
    given = translator.stream(LINES, window=1)
    next(given)
    inplace(translator.model)
    list(given)  # and its step is given back
    inplace(fresh.model)
    assert log_probs(translator) == log_probs(fresh)


def test_two_streams_at_a_time_have_a_step_each(made):
    translator = owner()
    both = [translator.stream(LINES, window=1), translator.stream(LINES, window=1)]
    assert [one.log_probs == other.log_probs for one, other in zip(*both, strict=True)] == [True] * 2
    assert len(made) == 2
    assert log_probs(translator)
    assert len(made) == 2


def test_an_ensemble_sees_a_change_of_any_member():
    members = [owner(seed=seed) for seed in (0, 1)]
    both = Translator([each.model for each in members], members[0].tokenizers, members[0].decoding)
    before = log_probs(both)
    assert log_probs(both) == before
    inplace(members[1].model)
    assert log_probs(both) != before


def test_generators_and_classifiers_own_their_models_too(monkeypatch):
    copies, quantise = [], owned_models.quantised
    monkeypatch.setattr(owned_models, "quantised", lambda model: copies.append(model) or quantise(model))
    for user, ask in (
        (small_writer(precision="int8"), lambda user: user.generate(["the"])[0].log_probs),
        (small_classifier(precision="int8"), lambda user: user.classify(["a b"])[0].probability),
    ):
        user.model.float().requires_grad_(False)
        first = ask(user)
        assert (ask(user), len(copies)) == (first, 1)
        with torch.no_grad():
            for parameter in user.model.parameters():
                parameter.mul_(1.5)
        assert ask(user) != first
        user.changed()
        ask(user)
        assert len(copies) == 3
        copies.clear()


def test_what_is_loaded_is_frozen(tmp_path):
    translator = sixfold.load(runs.translating(tmp_path / "run"), device="cpu")
    assert not any(parameter.requires_grad for parameter in translator.model.parameters())
    assert Contents.of(translator.models) is not None


def test_a_model_is_frozen_for_a_while():
    model = small_translator().model
    model.decoder.final.weight.requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.parameters()]
    with frozen(model):
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == before


def test_a_model_is_not_held_by_what_was_computed_from_it():
    translator = owner(precision="int8")
    translator.translate(LINES)
    model = weakref.ref(translator.model)
    del translator
    gc.collect()
    assert model() is None
