"""Every number has a largest value, which is checked before anything is built; too little memory is a sentence."""

import json
from typing import get_args

import pytest

import sixfold as package
from sixfold.config.files import read_config
from sixfold.config.schema import Config, change_decoding, keys
from sixfold.core import machine_memory
from sixfold.core.bounds import LARGEST
from sixfold.models.build import MODELS
from sixfold.spec.registry import all_modifications, choose, find
from sixfold.spec.spec import Spec
from tests.support.runs import translating

HUGE = 10**13


@pytest.fixture
def no_building(monkeypatch):
    """Building a single module is a failure."""

    def fail(*_, **__):
        raise AssertionError("a model was built")

    for model in MODELS.values():
        monkeypatch.setattr(model, "__init__", fail)


@pytest.mark.parametrize("size", LARGEST)
def test_every_size_has_a_largest_value(size, no_building):
    sizes = {"vocab": 9, "d_head": 4, size: LARGEST[size]}
    sizes = {**sizes, "vocab": 0, "source_vocab": 5, "target_vocab": 5, size: LARGEST[size]} if "_v" in size else sizes
    package.Sizes(**sizes)
    with pytest.raises(ValueError, match=rf"^{size} must be at most {LARGEST[size]:,}, got {LARGEST[size] + 1}$"):
        package.Sizes(**{**sizes, size: LARGEST[size] + 1})


def _holds_numbers(annotation):
    return annotation in (int, float) or any(_holds_numbers(each) for each in get_args(annotation))


NUMBERS = [key for key, field in keys() if _holds_numbers(field.annotation)]


def test_these_keys_are_the_numbers():
    assert {"data.vocabulary", "model.d_model", "training.betas", "training.average", "decoding.n_best"} <= {*NUMBERS}
    assert not {"data.train", "model.kind", "training.compile"} & {*NUMBERS}


@pytest.mark.parametrize("value", [HUGE, 2**63 - 1, 10**400])
@pytest.mark.parametrize("key", NUMBERS)
def test_every_number_of_the_configuration_is_bounded(key, value):
    text = f"[{value}, {value}]" if key == "training.betas" else str(value)
    with pytest.raises(ValueError, match=rf"^{key}|^decoding: a length_penalty is from -10 to 10"):
        read_config(None, {key: text})


@pytest.mark.parametrize("key", ["training.validate_every", "training.checkpoint_every"])
@pytest.mark.parametrize("value", ["0", "-1", "0 %", "100 %", "1.0"])
def test_an_interval_is_a_step_at_least_or_a_share(key, value):
    with pytest.raises(ValueError, match=rf"^{key}: .*give steps \(1 to 1,000,000,000\) or a share of the run"):
        read_config(None, {key: value})


def test_vocabularies_apart_are_bounded():
    with pytest.raises(ValueError, match=r"data\.vocabulary\.target: input should be less than or equal to 10000000"):
        read_config(None, {"data.vocabulary": f"{{source: 9, target: {HUGE}}}"})


def test_the_bounds_leave_room_for_what_recipes_ask_for():
    assert Config().model.d_model * 8 <= LARGEST["d_model"]


def test_python_is_refused_the_same():
    with pytest.raises(ValueError, match=r"decoding\.beam_size: input should be less than or equal to 10000"):
        change_decoding(Config().decoding, {"beam_size": HUGE})


def test_a_batch_is_not_divided_into_less_than_a_token():
    read_config(None, {"training.accumulate": "100", "training.batch_tokens": "100"})
    with pytest.raises(ValueError, match="accumulate 101 is more than batch_tokens 100"):
        read_config(None, {"training.accumulate": "101", "training.batch_tokens": "100"})


def _numeric(option):
    return option.annotation not in ("bool", "str") and "Literal" not in option.annotation


OPTIONS = [
    f"{name}:{key}" for name, each in all_modifications().items() for key, o in each.options.items() if _numeric(o)
]


@pytest.mark.parametrize("option", OPTIONS)
def test_every_number_of_a_modification_is_bounded(option):
    def change(chosen):
        return find(chosen.name).change(Spec(sizes=package.Sizes(vocab=9)), **chosen.options)

    with pytest.raises(ValueError, match=r"at most|less than"):
        change(choose(f"{option}={HUGE}"))


def test_an_option_takes_no_more_than_a_thousand_values(no_building):
    many = tuple(range(1, 100_001))
    with pytest.raises(ValueError, match=r"'cutoffs' of modification 'adaptive_input' can have at most 1,000 values"):
        package.build(package.Sizes(vocab=1_000_000), [("adaptive_input", {"cutoffs": many})])
    with pytest.raises(ValueError, match="at most 1,000 values, got 100,000"):
        package.build(package.Sizes(vocab=1_000_000), [f"adaptive_softmax:cutoffs={'/'.join(map(str, many))}"])


def test_a_model_takes_no_more_than_a_hundred_modifications(no_building):
    with pytest.raises(ValueError, match="at most 100 modifications"):
        package.build(package.Sizes(vocab=9), ["rotary"] * 100_000)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sizes": {"encoder_layers": 100_000_000}}, "encoder_layers must be at most 1,000, got 100000000"),
        ({"sizes": {"heads": 100_000_000, "d_head": 1}}, "heads must be at most 4,096"),
        ({"modifications": [{"universal": {"steps": 100_000_000}}]}, "must be at most 1,000, got 100000000"),
        ({"modifications": [{"adaptive_input": {"cutoffs": list(range(1, 100_001))}}]}, "at most 1,000 values"),
        ({"modifications": [{"rotary": {}}] * 20_000}, "at most 100 modifications"),
        (
            {"sizes": {"d_model": [[1] * 1000] * 50}},
            "d_model must be a whole number, got [[1, 1, 1, 1, 1, 1, 1, 1, ...",
        ),
    ],
)
def test_a_model_description_is_refused_before_a_module_is_made(tmp_path, sixfold, no_building, change, said):
    run = translating_before(tmp_path / "run", change)
    code, _, err = sixfold("translate", run, "-")
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


def translating_before(folder, change):
    """The files of a run whose description was changed; nothing is built."""
    folder.mkdir()
    sizes = {"d_model": 8, "d_ff": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab": 9, "dropout": 0.0}
    described = {"format": "sixfold-model-1", "model": "encoder_decoder", "sizes": sizes, "modifications": []}
    changed = {**described, **change, "sizes": {**sizes, **change.get("sizes", {})}}
    (folder / "model.json").write_text(json.dumps(changed))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        ("count", "transformer-base", "--model.encoder_layers", "100000000"),
        ("count", "transformer-base", "--model.d_model", "1000000"),
        ("count", "transformer-base", "--modify", "universal:steps=100000000"),
        ("count", "transformer-base", "--modify", f"adaptive_softmax:cutoffs={'/'.join(map(str, range(9_999)))}"),
        ("count", "transformer-base", "--source-length", "1000000000000"),
        ("train", "--training.accumulate", "1000000000000"),
        ("train", "--model.d_model", "1000000"),
        ("translate", "run", "-", "--beam_size", "1000000000000"),
        ("translate", "run", "-", "--n_best", "9223372036854775807"),
        ("translate", "run", "-", "--n_best", "9223372036854775807", "--sample", "true"),
        ("translate", "run", "-", "--workers", "1000000"),
        ("translate", "run", "-", "--window", "1000000000000"),
        ("export", "run", "--to", "torch", "--out", "e", "--lines", "1000000000000"),
        ("bench", "run", "--rounds", "1000000000000"),
        ("bench", "run", "--threads", "1000000"),
        ("bench", "run", "--sentences", "1000000000000"),
        ("bench", "run", "--steps", "1000000000000"),
        ("bench", "run", "--beams", "1,1000000000000"),
        ("bench", "run", "--seconds", "1e300"),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_no_verb_takes_endless_numbers(tmp_path, sixfold, arguments):
    translating(tmp_path / "run")
    code, out, err = sixfold(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert "runs" not in {path.name for path in tmp_path.iterdir()}  # nothing was begun


# Memory -------------------------------------------------------------------------------------------------------------


def test_weights_that_do_not_fit_are_refused_before_memory_is_taken(monkeypatch, tmp_path):
    sizes = package.Sizes(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1, vocab=9)
    built = package.build(sizes, seed=1)
    needed = sum(p.numel() * p.element_size() for p in built.parameters())
    package.save(built, tmp_path)
    monkeypatch.setattr(machine_memory, "machine_memory", lambda: needed)
    package.build(sizes)
    package.load_model(tmp_path)
    monkeypatch.setattr(machine_memory, "machine_memory", lambda: needed - 1)
    package.build(sizes, device="meta")
    for act in (lambda: package.build(sizes), lambda: package.load_model(tmp_path)):
        with pytest.raises(ValueError, match=r"the weights of this model take 0\.0 GiB, but this machine has 0\.0 GiB"):
            act()


def test_the_machine_has_memory():
    assert 1 << 28 < machine_memory.machine_memory() < 1 << 50


def test_a_container_may_have_less(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine_memory, "_CONTAINER", limit)
    whole = machine_memory.machine_memory()
    limit.write_text("max\n")
    assert machine_memory.machine_memory() == whole
    limit.write_text("1000000\n")
    assert machine_memory.machine_memory() == 1_000_000


TORCH = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "68719476736 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (MemoryError(), ""),
        (MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"), "7.45 GiB"),
        (RuntimeError(TORCH), "68719476736 bytes"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total of …"), "20.00 GiB"),
        (RuntimeError("Storage size calculation overflowed with sizes=[9223372036854775807]"), ""),
    ],
)
def test_too_little_memory_is_a_sentence(monkeypatch, sixfold, error, asked):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("sixfold.cli.count.read_config", fail)
    code, out, err = sixfold("count", "transformer-base")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(
        "sixfold: out of memory" + (f" (a single allocation of {asked} failed)" if asked else ": use")
    )


def test_other_runtime_errors_are_ours(monkeypatch, sixfold):
    def fail(*_, **__):
        raise RuntimeError("a shape does not fit")

    monkeypatch.setattr("sixfold.cli.count.read_config", fail)
    with pytest.raises(RuntimeError, match="a shape does not fit"):
        sixfold("count", "transformer-base")
