"""A user's own modifications: those of the documentation, how options may be written, and names that are taken."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sixfold
from sixfold import ModelPart, Spec, modification
from sixfold.decoding.cpu.step import make_step
from sixfold.decoding.search.beam import Beam
from sixfold.spec import registry
from sixfold.spec.registry import Chosen, choose, import_file
from sixfold.transformer import Attention
from sixfold.verify.contract.part import CHECKS
from tests.support.company import assert_same, found
from tests.support.own_parts import fills
from tests.support.small import assert_close, moved_model, random_ids, seeded, small_model
from tests.support.stage import attention_in, call_for, padded_call

PAGE = (Path(__file__).parents[2] / "docs" / "writing-a-modification.md").read_text(encoding="utf-8")
# name → program of the page
PROGRAMS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE, re.DOTALL))
HEAD = "from sixfold import Spec, modification\n\n\n@modification()\n"


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


# The programs of docs/writing-a-modification.md ---------------------------------------------------------------


@pytest.fixture(name="documented")
def _documented(tmp_path):
    """Import a program of the page. → the name of its modification"""

    def imported(name):
        (tmp_path / f"{name}.py").write_text(PROGRAMS[name], encoding="utf-8")
        import_file(tmp_path / f"{name}.py")
        return name

    return imported


ALL = ("encoder_decoder", "decoder_only", "encoder_only")
LOOKED_AT = {"tap_weights", "tap_on_beams", "gate_of_zero", "gates_on_beams"}


# name → the kinds of models in which it is checked, and some checks that must not be left out
DOCUMENTED = {
    "powered_relu": (ALL[:1], {"fast_step"}),
    "layer_scale": (ALL[:1], {"dropout"}),
    "cosine_attention": (ALL, LOOKED_AT | {"positions", "beams"}),
    "additive_cross": (ALL[:1], LOOKED_AT | {"source_padding", "beams"}),
    "running_mean": (ALL, {"ragged_prompts", "beams", "joins"}),
    "bottleneck": (ALL[1:2], {"declared_weights"}),
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_modification_keeps_the_contract(documented, name):
    kinds, holds = DOCUMENTED[name]
    report = sixfold.check_part(documented(name), kinds=kinds)
    assert holds <= {each.check for each in report.findings if each.result == "pass"}


def test_every_program_of_the_page_is_tried():
    assert DOCUMENTED.keys() == PROGRAMS.keys()
    assert PAGE.count("\n@modification(") == len(PROGRAMS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("cosine_attention", "encoder_decoder"), ("additive_cross", "encoder_decoder"), ("running_mean", "decoder_only")],
)
def test_a_documented_attention_is_searched_with_a_beam(documented, name, kind):
    step = make_step(moved_model(kind, (documented(name),), vocab=12))
    together = found(step, Beam(3, n_best=3), range(8), kind)
    assert len({texts[0].tokens for texts in together.values()}) > 1
    for number in range(8):
        assert_same(found(step, Beam(3, n_best=3), [number], kind), together, [number])


def test_the_documented_activation_by_hand(documented):
    plain, powered = small_model(), small_model(modifications=(f"{documented('powered_relu')}:power=3",))
    h = torch.tensor([-1.0, 2.0])
    functions = [model.encoder.layers[0].feed_forward.activation for model in (plain, powered)]
    assert [function(h).tolist() for function in functions] == [[0, 2], [0, 8]]


def test_the_documented_mean_by_hand(documented):
    part = attention_in(documented("running_mean"), causal=True, d_model=2, heads=1)
    torch.nn.init.eye_(part.output.weight)
    x = torch.tensor([[[1.0, 0], [3, 0], [8, 6]]], dtype=torch.float64)
    assert_close(part(x, call_for(x, causal=True)), torch.tensor([[[1.0, 0], [2, 0], [4, 2]]], dtype=torch.float64))
    padded = part(x, padded_call(torch.tensor([[True, False, True]]), causal=True))
    assert padded[0, 2].tolist() == [4.5, 3]


def test_the_page_lists_the_checks_as_they_are():
    table = PAGE.split("## What `check_part` checks")[1]
    assert re.findall(r"\| `(\w+)` \| (.*) \|", table) == [(each.name, each.promise.rstrip(".")) for each in CHECKS]


def test_the_command_of_the_page_says_what_the_page_says(tmp_path, request):
    command = request.getfixturevalue("sixfold")
    undropped = PROGRAMS["layer_scale"].replace("self.gain * self.dropout(y)", "self.gain * y")
    (tmp_path / "layer_scale.py").write_text(undropped, encoding="utf-8")
    code, out, _ = command("list", "layer_scale", "--import", "layer_scale.py", "--check")
    _, message = PAGE.split("its dropout, that is\n\n")
    assert code == 1
    assert out.endswith(re.sub(r"^    ", "", message.split("\n\n|")[0] + "\n", flags=re.MULTILINE))


# What `assemble` says of a part that declares too much or too little --------------------------------------------


class Own(Attention):
    """An attention with a forward of its own, which calls nothing."""

    def forward(self, x, call):
        return self.output(self.qkv(x).chunk(3, -1)[0])


class Silent(ModelPart):
    """It declares, and does not say where it is."""

    def __init__(self, spec, place):
        super().__init__()

    def forward(self, x, call):
        return x


class SilentMap(Silent):
    map = "softmax"


class SilentHeads(Silent):
    heads = 2


class SilentLimit(Silent):
    limit = 3


class Unpositioned(Silent):
    position_places = ("rotate", "bias")


def test_a_forward_of_its_own_inherits_neither_positions_nor_a_map():
    assert (Own.position_places, Own.map) == ((), "none")
    assert (Attention.position_places, Attention.map) == (("rotate", "bias", "values"), "softmax")
    assert small_model(modifications=(fills(attention=Own),)).maps.keys() == {"decoder.0.cross", "decoder.1.cross"}


def test_a_position_that_an_own_attention_does_not_declare_is_refused_with_what_to_do():
    with pytest.raises(ValueError) as error:
        small_model(modifications=(fills(attention=Own), "rotary"))
    assert str(error.value) == (
        "'rotary' acts by 'rotate', but the attention of 'mine' never calls that; "
        "choose another position or attention. If its forward calls self.position.rotate, declare that in its class: "
        "position_places = ('rotate',); a class with a forward of its own does not inherit it"
    )
    with pytest.raises(ValueError, match=r"choose another position or attention$"):
        small_model(modifications=("lightweight_convolution", "rotary"))


@pytest.mark.parametrize(("part", "what"), [(SilentMap, "a map"), (SilentHeads, "heads"), (SilentLimit, "a limit")])
def test_a_declaration_needs_a_place(part, what):
    with pytest.raises(ValueError, match=f"{part.__name__} declares {what}, .* set self.place = place in its constr"):
        small_model(modifications=(fills(attention=part),))


def test_places_of_a_position_need_a_position():
    with pytest.raises(
        ValueError, match=r"Unpositioned declares .* self\.position = spec\.position\(spec, place\) .* rotate, bias"
    ):
        small_model(modifications=(fills(attention=Unpositioned),))


def test_a_gate_of_heads_that_are_never_gated_is_an_error():
    model, ids = small_model("decoder_only", (fills(attention=Own),)), random_ids(1, 3, seeded(1))
    gates = {"only.0.attention": torch.zeros(1, 2, dtype=torch.float64)}
    with pytest.raises(ValueError, match=r"the gate of 'only\.0\.attention' had no effect: .* never calls call\.gate"):
        model.decode(ids, gates=gates)


# Options and names -------------------------------------------------------------------------------------------


def define(folder, line, name="mine.py"):
    """Import a file with one modification. → its path"""
    file = folder / name
    file.write_text(f"{HEAD}{line}\n    return spec\n")
    import_file(file)
    return file


@pytest.mark.parametrize("bar", ["", "*, "])
def test_options_may_be_positional_or_keyword_only(tmp_path, bar):
    define(tmp_path, f"def powered(spec: Spec, {bar}power: int = 2, wide: bool = False):")
    assert choose("powered:power=3,wide=true") == Chosen("powered", {"power": 3, "wide": True})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def powered(spec, power=2):", "option 'power' of modification 'powered' needs a type and a default"),
        ("def powered(spec, power=2):", "as in power: int = 2"),
        ("def powered(spec, wide=True):", "as in wide: bool = True"),
        ("def powered(spec, limit=None):", "as in limit: int | None = None"),
        ("def powered(spec, power: int):", "as in power: int = 2"),
        ("def powered(spec, **options):", "can't have **options"),
        ("def powered(spec, *options):", "can't have *options"),
        ("def powered():", "takes no spec: write def powered(spec: Spec) -> Spec"),
        ("def powered(*, power: int = 2):", "takes no spec"),
    ],
)
def test_an_option_that_could_not_be_given_is_refused_at_once(tmp_path, line, words):
    with pytest.raises(ValueError) as error:
        define(tmp_path, line)
    assert words in str(error.value)


def test_a_name_that_is_taken_names_both_files():
    def rotary(spec: Spec) -> Spec:
        return spec

    with pytest.raises(ValueError) as error:
        modification()(rotary)
    assert __file__ in str(error.value)
    assert registry.find("rotary").change.__code__.co_filename in str(error.value)


def test_a_name_that_is_taken_is_refused_by_a_process_that_has_used_none_before(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"{HEAD}def rotary(spec: Spec):\n    return spec\n")
    code = f"""
import sixfold
try:
    sixfold.import_file({str(file)!r})
except ValueError as error:
    print(error)
    print(sixfold.all_modifications()["rotary"].change.__code__.co_filename)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    said, kept = done.stdout.splitlines()
    assert f"modification 'rotary' of {file} has the name of one in {kept}" in said
    assert kept == registry.find("rotary").change.__code__.co_filename


def test_a_file_that_leaves_the_program_is_an_error(tmp_path):
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(ValueError, match=r"leaves\.py could not be imported: SystemExit: 0"):
        import_file(tmp_path / "leaves.py")
