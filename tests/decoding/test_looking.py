"""Taps, gates and traces of translations: what they show is true, and looking changes nothing."""

import copy
from dataclasses import replace

import pytest
import torch

import sixfold
from sixfold import EOS, Tap
from sixfold.decoding.cpu.int8 import quantised
from sixfold.decoding.cpu.step import FusedStep, make_step
from sixfold.decoding.engine import Engine
from sixfold.decoding.ensemble import Ensemble
from sixfold.decoding.job import Job
from sixfold.decoding.search.beam import Beam
from sixfold.decoding.step import ModelStep
from sixfold.decoding.translator import Translator
from tests.support import trained_runs
from tests.support.company import METHODS as SEARCHES
from tests.support.company import SOURCES, Shuffled, made
from tests.support.generators import small_writer
from tests.support.translators import LINES, assert_same, small_translator

METHODS = {
    "greedy": {},
    "beam": {"beam_size": 3, "n_best": 2},
    "groups": {"beam_size": 4, "beam_groups": 2, "diversity": 0.5},
    "sample": {"sample": True, "n_best": 2},
}
WAYS = pytest.mark.parametrize("keys", METHODS.values(), ids=METHODS)
OFF = torch.tensor([[1.0, 0.0]])  # the second of two heads
NAMES = ("encoder.0.attention", "decoder.0.attention", "decoder.1.cross")


def ones(model):
    return {name: torch.ones(1, heads) for name, heads in model.attentions.items()}


def without_head(model, name, head=1):
    """The model with zeros where the output matrix reads a head."""
    stack, depth, part = name.split(".")
    cut = copy.deepcopy(model)
    with torch.no_grad():
        attention = getattr(getattr(cut, stack).layers[int(depth)], part)
        attention.output.weight.unflatten(1, (attention.heads, -1))[:, head] = 0
    return cut


# Looking changes nothing ----------------------------------------------------------------------------------------------


@WAYS
def test_an_untrained_model_says_the_same(keys):
    translator = small_translator(max_length=9)
    plain = translator.translate(LINES, **keys)
    assert plain[0].trace is None
    for way in ({"trace": True}, {"tap": Tap()}, {"gates": ones(translator.model)}):
        assert_same(translator.translate(LINES, **way, **keys), plain)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = trained_runs.directory(tmp_path_factory.mktemp("runs") / "trained", max_length=12)
    return sixfold.load(run, device="cpu")


@WAYS
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_fast_step_of_a_trained_model_is_traced_bit_for_bit(keys, precision, trained):
    lines, keys = trained_runs.lines(12), {**keys, "precision": precision}
    assert isinstance(trained.session(trace=True, **keys).step, FusedStep)
    for one, other in zip(trained.translate(lines, trace=True, **keys), trained.translate(lines, **keys), strict=True):
        assert (one.text, one.score, one.log_probs) == (other.text, other.score, other.log_probs)
        assert tuple(each.log_prob for each in one.trace.path(one.tokens)) == one.log_probs


@WAYS
def test_the_ordinary_step_of_a_trained_model_says_what_the_fast_step_says(keys, trained):
    lines, everything = trained_runs.lines(12), {"tap": Tap(), "gates": ones(trained.model), "trace": True}
    assert isinstance(trained.session(**everything, **keys).step, ModelStep)
    for one, other in zip(
        trained.translate(lines, **everything, **keys), trained.translate(lines, **keys), strict=True
    ):
        assert one.text == other.text
        assert one.score == pytest.approx(other.score, abs=1e-4)


@WAYS
def test_int8_has_gates_and_taps_in_the_ordinary_step(keys, trained):
    """It keeps keys and values in floating point, and so is compared with itself."""
    lines, keys = trained_runs.lines(12), {**keys, "precision": "int8"}
    gated, tapped = (
        trained.translate(lines, **way, **keys) for way in ({"gates": ones(trained.model)}, {"tap": Tap()})
    )
    assert_same(gated, tapped)


@WAYS
def test_a_language_model_says_the_same(keys):
    writer, prompts = small_writer(), ["the", "how now", ""]
    plain = writer.generate(prompts, **keys)
    everything = {"trace": True, "tap": Tap("only.*"), "gates": ones(writer.model)}
    for one, other in zip(writer.generate(prompts, **everything, **keys), plain, strict=True):
        assert [each.text for each in one.n_best] == [each.text for each in other.n_best]
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-9)
        assert one.trace.steps[0].tap["only.1.attention"].shape[:2] == (keys.get("beam_size", len(one.n_best)), 2)


def test_a_stream_can_be_looked_into():
    writer = small_writer(sample=False)
    *_, (_, whole) = writer.follow("the", trace=True, gates={"only.0.attention": OFF})
    assert whole.text == writer.generate(["the"], gates={"only.0.attention": OFF})[0].text
    assert whole.trace.path(whole.tokens)


# Gates ----------------------------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("name", NAMES)
def test_a_head_that_is_switched_off_is_as_if_it_were_not_there(name, keys):
    translator = small_translator(max_length=9)
    cut = Translator(without_head(translator.model, name), translator.tokenizers, translator.decoding)
    expected = cut.translate(LINES, attention=True, **keys)
    found = translator.translate(LINES, gates={name: OFF}, attention=True, **keys)
    assert_same(found, expected)
    for one, other in zip(found, expected, strict=True):
        assert one.attention is other.attention is None or torch.equal(one.attention, other.attention)
    plain = translator.translate(LINES, **keys)
    assert [each.score for each in plain] != [each.score for each in found]


@pytest.mark.parametrize("method", SEARCHES.values(), ids=SEARCHES)
def test_the_gates_of_a_job_are_for_its_own_hypotheses(method):
    """Jobs with other gates, or none, run in one batch, join late, and leave early; each says what it says alone."""
    step = Shuffled(ModelStep(made("encoder_decoder", ())))
    gates = [None, {"decoder.1.cross": OFF}, {"encoder.0.attention": OFF, "decoder.0.attention": OFF}, None]
    jobs = [
        Job(source=[*SOURCES[number], EOS], limit=limit, seed=number, gates=gates[number % 4])
        for number, limit in enumerate((2, 9, 4, 9, 9, 3, 9, 9))
    ]
    together = Engine(step, method)
    tickets = [together.submit(job) for job in jobs[:5]]
    together.step()
    together.step()
    tickets += [together.submit(job) for job in jobs[5:]]
    while together.busy:
        together.step()
    changed = 0
    for ticket in tickets:
        alone, ungated = (_alone(step, method, job) for job in (ticket.job, replace(ticket.job, gates=None)))
        for one, other in zip(ticket.found, alone, strict=True):
            assert one.tokens == other.tokens
            assert one.log_probs == pytest.approx(other.log_probs, abs=1e-9)
        changed += alone[0].log_probs != ungated[0].log_probs
    assert changed == 4


def _alone(step, method, job):
    engine = Engine(step, method)
    ticket = engine.submit(job)
    while engine.busy:
        engine.step()
    return ticket.found


def test_gates_apply_to_every_member_of_an_ensemble():
    one, other = small_translator(seed=0, max_length=9), small_translator(seed=7, max_length=9)
    models = one.model, other.model
    cut = [without_head(model, "decoder.1.cross") for model in models]
    found = Translator(models, one.tokenizers, one.decoding).translate(LINES, gates={"decoder.1.cross": OFF})
    assert_same(found, Translator(cut, one.tokenizers, one.decoding).translate(LINES))


def test_gates_of_any_number_format_fit_the_model():
    translator = small_translator(max_length=9)
    exact = translator.translate(LINES, gates={"decoder.1.cross": OFF.double()})
    assert_same(translator.translate(LINES, gates={"decoder.1.cross": OFF.long()}), exact)
    half = Translator(copy.deepcopy(translator.model).bfloat16(), translator.tokenizers, translator.decoding)
    assert half.translate(["a b"], gates={"decoder.1.cross": OFF})[0].tokens


def test_sources_that_are_read_by_the_part_have_their_own_gates(monkeypatch):
    model = made("encoder_decoder", ())
    gates = {"encoder.1.attention": torch.rand(6, 2, dtype=torch.float64)}
    whole = ModelStep(model).begin(SOURCES[:6], gates).memory
    monkeypatch.setattr("sixfold.decoding.step.PART", 8)
    parts = ModelStep(model).begin(SOURCES[:6], gates).memory
    assert torch.allclose(parts.states[0][parts.real], whole.states[0][whole.real], atol=1e-12)


# Taps -----------------------------------------------------------------------------------------------------------------


def test_a_tap_sees_the_encoder_and_every_step():
    passes = []

    class Counting(Tap):
        def __call__(self, name, field, tensor):
            if field == "weights":
                passes.append((name, tuple(tensor.shape)))

    tap = Counting("encoder.0.attention", "decoder.1.cross")
    (found,) = small_translator(max_length=5, min_length=5).translate(["a b c"], beam_size=2, tap=tap)
    assert passes == [("encoder.0.attention", (1, 2, 4, 4)), *[("decoder.1.cross", (2, 2, 1, 4))] * 6]
    assert len(found.tokens) == 5


def test_a_tap_and_a_rule_that_needs_attention_share_a_step():
    translator, keys = small_translator(max_length=9), {"beam_size": 3, "coverage_penalty": 0.3}
    tap = Tap("decoder.*.attention")
    assert_same(translator.translate(LINES, tap=tap, **keys), translator.translate(LINES, **keys))
    assert list(tap) == ["decoder.0.attention", "decoder.1.attention"]  # and not the one that the rule watches


# Mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gates": {"decoder.1.crosss": OFF}}, "no heads 'decoder.1.crosss' to gate .did you mean 'decoder.1.cross'"),
        (
            {"gates": {"decoder.1.cross": torch.ones(1, 3)}},
            r"the gate of 'decoder.1.cross' must have .* got .*\(1, 3\)",
        ),
        ({"gates": {"decoder.1.cross": torch.ones(2, 2)}}, r"must have shape \(1, 2\), got shape \(2, 2\)"),
        ({"gates": {"decoder.1.cross": [[1, 0]]}}, "must have shape .* got list"),
        ({"gates": [OFF]}, "gates are a mapping such as .* got list"),
        ({"tap": "decoder.1.cross"}, r"tap must be a sixfold\.Tap, got str"),
        ({"tap": Tap("decoder.9.*")}, r"no attention is named decoder\.9\.\*; there are encoder\.0\.attention, "),
        ({"trace": True, "workers": 2}, "tap, gates, trace and attention work in this process only"),
    ],
)
def test_mistakes_are_named_before_a_line_is_read(options, message):
    def lines():
        raise AssertionError("a line was read")
        yield

    with pytest.raises(ValueError, match=message):
        small_translator().stream(lines(), **options)


def test_a_tap_is_for_one_model():
    one = small_translator()
    both = Translator([one.model, one.model], one.tokenizers)
    for look in (both.translate, lambda _, **how: both.session(**how)):
        with pytest.raises(ValueError, match="a tap looks into one model, and this is an ensemble of 2"):
            look(LINES, tap=Tap())


def test_a_step_that_has_no_gates_refuses_them_when_a_job_is_submitted():
    model, gates = made("encoder_decoder", (), torch.float32), {"decoder.1.cross": OFF}
    job = Job(source=[5, EOS], limit=3, gates=gates)
    for step in (make_step(model), Ensemble([ModelStep(model), make_step(quantised(model))])):
        with pytest.raises(ValueError, match="FusedStep can't gate heads: make the step with make_step"):
            Engine(step, Beam(2)).submit(job)
    engine = Engine(make_step(model, gated=True), Beam(2))
    with pytest.raises(ValueError, match=r"no heads 'decoder\.9\.cross'"):
        engine.submit(replace(job, gates={"decoder.9.cross": OFF}))
    ticket = engine.submit(job)
    engine.step()
    assert ticket.error is None
