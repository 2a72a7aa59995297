"""Sizes, modifications and what assembling them refuses; users' own modifications."""

from __future__ import annotations

import os
import sys
import typing
from dataclasses import replace
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sixfold
from sixfold import transformer
from sixfold.models.build import MODELS
from sixfold.spec import registry
from sixfold.spec.registry import Chosen, choose, modification
from sixfold.spec.spec import SLOTS, Spec
from tests.support.architectures import registered
from tests.support.covering import covering
from tests.support.small import small_sizes

SIZES = sixfold.Sizes(d_model=8, d_ff=12, heads=2, encoder_layers=2, decoder_layers=2, vocab=11, dropout=0.0)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


def refused(*names: str, modifications: typing.Any, model: str = "encoder_decoder") -> None:
    """Assembling these is a ValueError whose message contains all the names."""
    with pytest.raises(ValueError) as error:
        sixfold.build(SIZES, modifications, model, device="meta")
    for name in names:
        assert name in str(error.value)


# Sizes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({"d_model": 100, "heads": 7, "vocab": 9}, ["d_model 100", "7 heads", "d_head"]),
        ({"encoder_layers": 0, "vocab": 9}, ["encoder_layers", "at least 1", "got 0"]),
        ({"decoder_layers": -2, "vocab": 9}, ["decoder_layers", "at least 1", "got -2"]),
        ({"d_model": 512.0, "vocab": 9}, ["d_model", "whole number", "512.0"]),
        ({"heads": True, "vocab": 9}, ["heads", "whole number", "True"]),
        ({"vocab": "9"}, ["vocab", "whole number", "'9'"]),
        ({"vocab": -1}, ["vocab", "got -1"]),
        ({"vocab": 9, "source_vocab": 7}, ["vocab 9", "source_vocab 7"]),
        ({"vocab": 9, "target_vocab": 7}, ["vocab 9", "target_vocab 7"]),
        ({}, ["vocab", "source_vocab", "target_vocab"]),
        ({"source_vocab": 7}, ["source_vocab", "target_vocab"]),
        ({"vocab": 9, "dropout": 1}, ["dropout", "less than 1", "got 1"]),
        ({"vocab": 9, "dropout": -0.1}, ["dropout", "at least 0", "got -0.1"]),
        ({"vocab": 9, "dropout": float("nan")}, ["dropout", "nan"]),
        ({"vocab": 9, "dropout": "0.1"}, ["dropout", "0.1"]),
    ],
    ids=str,
)
def test_impossible_sizes_are_refused(sizes, names):
    with pytest.raises(ValueError) as error:
        sixfold.Sizes(**sizes)
    for name in names:
        assert name in str(error.value)


def test_the_width_of_a_head_is_worked_out_or_free():
    assert sixfold.Sizes(vocab=9, d_model=512, heads=8).d_head == 64
    assert sixfold.Sizes(vocab=9, d_model=100, heads=7, d_head=3).d_head == 3


def test_vocabularies_are_joint_or_separate():
    joint, separate = sixfold.Sizes(vocab=9), sixfold.Sizes(source_vocab=7, target_vocab=8)
    assert (joint.joint, joint.vocabulary("encoder"), joint.vocabulary("decoder")) == (True, 9, 9)
    assert (separate.joint, separate.vocabulary("encoder"), separate.vocabulary("decoder")) == (False, 7, 8)


# What assemble refuses --------------------------------------------------------------------------------


def test_two_modifications_may_not_fill_one_slot():
    refused("'rotary'", "'t5_bias'", "'position'", modifications=["rotary", "t5_bias"])


@pytest.mark.parametrize("name", ["rotary", "no_positions", "post_norm"])
def test_a_modification_may_not_be_listed_twice(name):
    refused(repr(name), modifications=[name, name])


@pytest.mark.parametrize(("wrong", "right"), [("rotari", "rotary"), ("t5-bias", "t5_bias"), ("postnorm", "post_norm")])
def test_a_misspelt_modification_is_told_the_near_one(wrong, right):
    refused(repr(wrong), f"did you mean {right!r}", modifications=[wrong])


def test_a_name_like_no_other_gets_no_suggestion():
    with pytest.raises(ValueError, match="'xyzzy'") as error:
        choose("xyzzy")
    assert "did you mean" not in str(error.value)


def test_a_modification_that_is_not_here_may_have_to_be_imported():
    refused("'mine'", "imported first (--import FILE", modifications=["mine"])


def test_a_misspelt_option_is_told_the_near_one():
    refused("'t5_bias'", "'bukets'", "did you mean 'buckets'", modifications=["t5_bias:bukets=16"])


def test_an_option_where_there_are_none_is_refused():
    refused("'post_norm'", "'depth'", "it has none", modifications=["post_norm:depth=2"])


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        ("t5_bias:buckets=many", ["'buckets'", "'t5_bias'", "a whole number", "'many'"]),
        ("t5_bias:buckets=16.5", ["'buckets'", "a whole number", "'16.5'"]),
        (("t5_bias", {"buckets": 16.0}), ["'buckets'", "a whole number", "16.0"]),
        (("t5_bias", {"buckets": True}), ["'buckets'", "a whole number", "True"]),
        ("t5_bias:per_layer=yes", ["'per_layer'", "true or false", "'yes'"]),
        (("t5_bias", {"per_layer": 1}), ["'per_layer'", "true or false", "1"]),
        ("rotary:base=big", ["'base'", "'rotary'", "a number", "'big'"]),
        ("rotary:base", ["'rotary:base'", "key=value", "'base'"]),
    ],
    ids=str,
)
def test_an_option_of_the_wrong_type_is_refused(wish, names):
    refused(*names, modifications=[wish])


@pytest.mark.parametrize(
    "wish", [7, None, {}, {"rotary": {}, "shaw": {}}, ("rotary", {}, {}), {"t5_bias": 16}, ("t5_bias", [16])], ids=str
)
def test_a_wish_in_no_known_form_is_refused(wish):
    with pytest.raises(ValueError) as error:
        choose(wish)
    assert str(wish) in str(error.value) or "t5_bias" in str(error.value)


@pytest.mark.parametrize(
    ("wish", "names"),
    [
        ("t5_bias:buckets=6", ["t5_bias", "buckets", "6"]),
        ("t5_bias:buckets=32,max_distance=16", ["t5_bias", "max_distance", "16", "32"]),
        ("shaw:distance=0", ["shaw", "distance", "0"]),
        ("learned_positions:length=0", ["learned_positions", "length", "0"]),
    ],
)
def test_an_option_out_of_range_is_refused(wish, names):
    refused(*names, modifications=[wish])


def test_rotary_refuses_an_odd_head():
    sizes = replace(SIZES, heads=2, d_head=3)
    with pytest.raises(ValueError, match=r"rotary.*d_head must be even, got 3"):
        sixfold.build(sizes, ["rotary"], device="meta")


def test_a_slot_that_nothing_reads_names_the_part_that_ignores_it():
    class Plain(nn.Linear):
        def __init__(self, spec, place):
            super().__init__(spec.sizes.d_model, spec.sizes.d_model)

        def forward(self, x, call):
            return super().forward(x)

    @modification()
    def plain_layer(spec: Spec) -> Spec:
        return replace(spec, feed_forward=Plain)

    @modification()
    def users_gelu(spec: Spec) -> Spec:
        return replace(spec, activation=F.gelu)

    for order in (["plain_layer", "users_gelu"], ["users_gelu", "plain_layer"]):
        refused("'users_gelu'", "'activation'", "Plain", "'plain_layer'", "'feed_forward'", modifications=order)
    sixfold.build(SIZES, ["users_gelu"], device="meta")
    sixfold.build(SIZES, ["plain_layer"], device="meta")


class OtherCross(transformer.CrossAttention):
    pass


def other_cross(spec: Spec) -> Spec:
    return replace(spec, cross=OtherCross)


@pytest.mark.parametrize(("kind", "name"), [("decoder_only", "DecoderOnly"), ("encoder_only", "EncoderOnly")])
def test_cross_attention_has_no_use_in_a_model_of_one_stack(kind, name):
    modification()(other_cross)
    refused("'other_cross'", "'cross'", name, modifications=["other_cross"], model=kind)
    sixfold.build(SIZES, ["other_cross"], device="meta")


def test_a_position_that_rotates_needs_an_attention_that_asks():
    class Average(nn.Module):
        def __init__(self, spec, place):
            super().__init__()

        def forward(self, x, call):
            return x.mean(1, keepdim=True).expand_as(x)

    @modification()
    def average(spec: Spec) -> Spec:
        return replace(spec, attention=Average)

    refused("'rotary'", "'rotate'", "'average'", modifications=["rotary", "average"])
    refused("'t5_bias'", "'bias'", "'average'", modifications=["t5_bias", "average"])
    sixfold.build(
        SIZES, ["average", "learned_positions"], device="meta"
    )  # acts on the embedding, which is always asked


def test_a_modification_may_not_change_sizes():
    @modification()
    def wider(spec: Spec) -> Spec:
        return replace(spec, sizes=replace(spec.sizes, d_ff=99))

    refused("'wider'", "sizes", modifications=["wider"])


def test_a_modification_must_return_a_spec():
    @modification()
    def forgetful(spec: Spec) -> Spec:
        replace(spec, activation=F.gelu)

    refused("'forgetful'", "Spec", "NoneType", modifications=["forgetful"])


def test_options_of_a_modification_need_a_type_and_a_default():
    with pytest.raises(ValueError, match=r"'strength'.*'untyped'"):

        @modification()
        def untyped(spec: Spec, *, strength=2) -> Spec:
            return spec

    with pytest.raises(ValueError, match=r"'strength'.*'required'"):

        @modification()
        def required(spec: Spec, *, strength: int) -> Spec:
            return spec


def test_modification_wants_parentheses():
    with pytest.raises(TypeError, match="parentheses"):

        @modification
        def bare(spec: Spec) -> Spec:
            return spec


def test_unknown_models_and_other_sizes_are_refused():
    refused("'decoder-only'", "did you mean 'decoder_only'", modifications=[], model="decoder-only")
    with pytest.raises(ValueError, match=r"sixfold\.Sizes, got dict"):
        sixfold.build({"vocab": 9})


def test_options_of_modifications_given_as_one_mapping_are_not_lost():
    """{name: options, …} is how one would write it in YAML."""
    model = sixfold.build(SIZES, {"t5_bias": {"buckets": 16}, "post_norm": {}}, device="meta")
    assert model.assembly.modifications == (Chosen("t5_bias", {"buckets": 16}), Chosen("post_norm"))


def test_a_part_may_build_another_from_a_changed_spec():
    """A Spec is a value: a stack may want other feed-forwards in its first layer."""

    class FirstIsTanh(transformer.EncoderLayer):
        def __init__(self, spec, place):
            super().__init__(replace(spec, activation=torch.tanh) if place.layer == 0 else spec, place)

    @modification()
    def first_is_tanh(spec: Spec) -> Spec:
        return replace(spec, encoder_layer=FirstIsTanh)

    model = sixfold.build(SIZES, ["first_is_tanh"], device="meta")
    assert [layer.feed_forward.activation for layer in model.encoder.layers] == [torch.tanh, torch.relu]


# How a modification is asked for ----------------------------------------------------------------------


def test_all_ways_to_choose_mean_the_same():
    wanted = Chosen("t5_bias", {"buckets": 16, "per_layer": True})
    assert choose("t5_bias:buckets=16,per_layer=true") == wanted
    assert choose(" t5_bias : buckets = 16 , per_layer = True ") == wanted
    assert choose(("t5_bias", {"buckets": 16, "per_layer": True})) == wanted
    assert choose({"t5_bias": {"buckets": "16", "per_layer": "true"}}) == wanted
    assert choose(wanted) == wanted
    assert choose("t5_bias") == choose({"t5_bias": None}) == choose(("t5_bias", {})) == Chosen("t5_bias")
    assert choose("rotary:base=500") == choose(("rotary", {"base": 500})) == Chosen("rotary", {"base": 500.0})


def test_one_modification_may_be_given_as_bare_text():
    model = sixfold.build(SIZES, "t5_bias:buckets=16", device="meta")
    assert model.assembly.modifications == (Chosen("t5_bias", {"buckets": 16}),)


def every_type(
    spec: Spec,
    *,
    whole: int = 1,
    real: float = 1.0,
    switch: bool = False,
    text: str = "a",
    perhaps: int | None = None,
    several: tuple[int, ...] = (1,),
    one_of: typing.Literal["near", "far"] = "near",
    one_number_of: typing.Literal[2, 4] = 2,
) -> Spec:
    return spec


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"whole": -3},
        {"real": 1e-05},
        {"real": 0.1},
        {"switch": True},
        {"switch": False},
        {"text": "b c"},
        {"perhaps": 7},
        {"perhaps": None},
        {"several": (3, 4, 5)},
        {"one_of": "far"},
        {"one_number_of": 4},
        {"whole": 2, "real": 0.5, "switch": True, "several": (9,)},
    ],
    ids=str,
)
def test_what_was_chosen_reads_back_from_its_text(options):
    modification()(every_type)
    chosen = choose(("every_type", options))
    assert chosen.options == options
    assert choose(str(chosen)) == chosen


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"one_of": "middle"}, ["'one_of'", "near, far", "'middle'"]),
        ({"perhaps": "x"}, ["'perhaps'", "a whole number", "'x'"]),
        ({"several": "1/x"}, ["'several'", "a whole number", "'x'"]),
        ({"several": 5}, ["'several'", "5"]),
        ({"text": 5}, ["'text'", "text", "5"]),
    ],
    ids=str,
)
def test_values_of_composed_types_are_checked(options, names):
    modification()(every_type)
    with pytest.raises(ValueError) as error:
        choose(("every_type", options))
    for name in [*names, "'every_type'"]:
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("learned_positions", ("position",)),
        ("no_positions", ("position",)),
        ("post_norm", ("final", "residual")),
        ("rotary", ("position",)),
        ("shaw", ("position",)),
        ("t5_bias", ("position",)),
    ],
)
def test_slots_that_a_modification_fills(name, slots):
    assert tuple(sorted(registry.all_modifications()[name].slots)) == slots


def test_modifications_can_be_listed_again_and_again():
    sixfold.build(SIZES, ["rotary"], device="meta")
    for _ in range(2):
        assert {"rotary", "post_norm", "t5_bias"} <= set(sixfold.all_modifications())


@pytest.mark.parametrize("name", registry.all_modifications())
def test_every_modification_fills_a_slot_and_says_what_it_is(name):
    known = registry.all_modifications()[name]
    assert known.slots
    assert set(known.slots) <= set(SLOTS)
    assert known.summary.endswith(".")
    assert len(known.summary) < 120


# Users' own modifications -----------------------------------------------------------------------------

USERS_FILE = '''
from dataclasses import replace
from functools import cache
import torch
from sixfold import Spec, modification

@modification()
def users_swish(spec: Spec, *, beta: float = 1.0) -> Spec:
    """x · sigmoid(beta x)."""
    return replace(spec, activation=lambda h: h * torch.sigmoid(beta * h))
'''


@pytest.fixture
def users_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(USERS_FILE)
    return path


def test_a_users_file_registers_its_modification_and_build_uses_it(users_file):
    assert "users_swish" not in registry.all_modifications()
    sixfold.import_file(users_file)
    assert registry.all_modifications()["users_swish"].summary == "x · sigmoid(beta x)."
    model = sixfold.build(SIZES, ["users_swish:beta=2"], seed=1)
    h = torch.tensor([-1.0, 0.0, 3.0])
    torch.testing.assert_close(model.encoder.layers[1].feed_forward.activation(h), h * torch.sigmoid(2 * h))


def test_a_users_file_may_be_run_again(users_file):
    sixfold.import_file(users_file)
    sixfold.import_file(str(users_file))
    assert "users_swish" in registry.all_modifications()


def test_a_users_file_that_was_edited_is_read_anew(users_file, monkeypatch):
    """Even if the edit came within the file system's tick: bytecode of before must not be taken for it."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    sixfold.import_file(users_file)
    then = users_file.stat().st_mtime_ns
    users_file.write_text(USERS_FILE.replace("x · sigmoid", "h · sigmoid"))
    os.utime(users_file, ns=(then, then))
    sixfold.import_file(users_file)
    assert registry.all_modifications()["users_swish"].summary == "h · sigmoid(beta x)."


def test_another_file_may_not_take_the_name(users_file, tmp_path):
    sixfold.import_file(users_file)
    other = tmp_path / "other.py"
    other.write_text(USERS_FILE)
    with pytest.raises(ValueError, match="'users_swish'") as error:
        sixfold.import_file(other)
    assert str(users_file) in str(error.value)
    assert str(other) in str(error.value)


def test_a_users_file_may_not_take_the_name_of_a_known_modification(users_file):
    users_file.write_text(USERS_FILE.replace("users_swish", "rotary"))
    with pytest.raises(ValueError, match=r"'rotary'.*rotary\.py"):
        sixfold.import_file(users_file)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("def broken(", "SyntaxError"),
        ("import no_such_module_anywhere", "no_such_module_anywhere"),
    ],
)
def test_a_file_with_an_error_is_named(tmp_path, text, what):
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        sixfold.import_file(path)
    assert str(path) in str(error.value)
    assert what in str(error.value)


def test_a_file_with_an_error_registers_nothing(tmp_path):
    path = tmp_path / "half.py"
    path.write_text(USERS_FILE + "\n1 / 0\n")
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        sixfold.import_file(path)
    assert "users_swish" not in registry.all_modifications()


def test_a_missing_file_and_one_that_is_not_python_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.py"):
        sixfold.import_file(tmp_path / "nowhere.py")
    (tmp_path / "notes.txt").write_text(USERS_FILE)
    with pytest.raises(ValueError, match=r"notes\.txt"):
        sixfold.import_file(tmp_path / "notes.txt")


# Auxiliary losses -------------------------------------------------------------------------------------


class Sparing(transformer.FeedForward):
    """Asks for small activations: adds Σ h²."""

    def forward(self, x: Tensor, call) -> Tensor:
        h = self.activation(self.inner(x))
        if call.losses is not None:
            call.losses.append((h**2).sum())
        return self.outer(h)


def sparing(spec: Spec) -> Spec:
    return replace(spec, feed_forward=Sparing)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_auxiliary_losses_come_out_with_their_gradients(kind, recompute):
    modification()(sparing)
    model = sixfold.build(SIZES, ["sparing"], kind, seed=1)
    ids = torch.tensor([[3, 4, 5], [6, 7, 0]])
    hidden: list[Tensor] = []
    hooks = [
        m.outer.register_forward_pre_hook(lambda module, args: hidden.append(args[0]))
        for m in model.modules()
        if isinstance(m, Sparing)
    ]
    plain = model(sixfold.Batch(ids, ids, ids))
    by_hand = sum((h**2).sum() for h in hidden)
    assert len(hooks) == (4 if kind == "encoder_decoder" else 2)
    torch.testing.assert_close(plain.auxiliary, by_hand)
    its = torch.autograd.grad(plain.sum + 0.1 * by_hand, list(model.parameters()))
    for hook in hooks:
        hook.remove()

    losses = model(sixfold.Batch(ids, ids, ids), recompute=recompute)
    torch.testing.assert_close(losses.auxiliary, by_hand)
    (losses.sum + 0.1 * losses.auxiliary).backward()
    for p, grad in zip(model.parameters(), its, strict=True):
        torch.testing.assert_close(p.grad, grad)


@pytest.mark.parametrize("kind", MODELS)
def test_without_auxiliary_losses_there_is_a_zero(kind):
    ids = torch.tensor([[3, 4, 5]])
    losses = sixfold.build(SIZES, model=kind)(sixfold.Batch(ids, ids, ids))
    assert losses.auxiliary.shape == ()
    assert losses.auxiliary == 0


# What FSDP2 and the optimiser need --------------------------------------------------------------------


every_model = covering(registered(*MODELS))


@cache
def empty(kind: str, modifications: tuple[str, ...]) -> nn.Module:
    return sixfold.build(small_sizes(), modifications, kind, device="meta")


@every_model
def test_no_parameter_is_a_scalar(kind, modifications):
    model = empty(kind, modifications)
    assert [name for name, p in model.named_parameters() if p.dim() == 0] == []


@every_model
def test_no_module_is_listed_twice(kind, modifications):
    model = empty(kind, modifications)
    modules = [m for _, m in model.named_modules(remove_duplicate=False)]
    assert len(modules) == len({id(m) for m in modules})


@every_model
def test_no_parameter_is_listed_twice(kind, modifications):
    model = empty(kind, modifications)
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert len(names) == len(list(model.parameters())) == len(model.state_dict()) - len(list(model.buffers()))


@every_model
def test_every_parameter_is_in_one_group(kind, modifications):
    model = empty(kind, modifications)
    grouped = [id(p) for group in model.groups() for p in group.parameters]
    assert sorted(grouped) == sorted(id(p) for p in model.parameters())
    assert len({group.name for group in model.groups()}) == len(model.groups())


def test_matrices_decay_and_vectors_and_tables_do_not():
    model = sixfold.build(SIZES, device="meta")
    decays = {id(p): group.decay for group in model.groups() for p in group.parameters}
    for name, p in model.named_parameters():
        assert decays[id(p)] == (p.dim() == 2 and not name.startswith("tables")), name
