"""`check_part`: what it is given, what it says, and what it leaves alone."""

import warnings
from dataclasses import replace

import pytest
import torch

import sixfold
from sixfold import Sizes, Spec, modification
from sixfold.spec import registry
from sixfold.transformer import FeedForward, PreNorm
from sixfold.verify.contract.part import CHECKS
from sixfold.verify.contract.subject import SMALL
from tests.support.own_parts import fills

QUICKLY = [each.name for each in CHECKS if each.name not in ("causality", "dropout")]  # left out here


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


def results(report):
    return {(each.check, each.kind): each.result for each in report.findings}


class NoDropout(PreNorm):
    def after(self, x, y):
        return x + y


class Crashes(FeedForward):
    def forward(self, x, call):
        return x @ x


class CrashesAtOnce(FeedForward):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        self.first = self.inner.weight.sum().item()


class Sums(torch.nn.Module):
    """The sum of a text's states."""

    def forward(self, x, real):
        return x.sum(1) if real is None else (x * real[..., None]).sum(1)


class Refuses(FeedForward):
    def __init__(self, spec, place):
        super().__init__(spec, place)
        if place.causal:
            raise ValueError("it sees the future")


def test_a_report_of_each_kind():
    report = sixfold.check_part("gelu", without=QUICKLY)
    kinds = ("encoder_decoder", "decoder_only", "encoder_only")
    expected = {(check, kind): "pass" for check in ("built", "causality", "dropout") for kind in kinds}
    del expected["causality", "encoder_only"]  # it has no later tokens
    assert results(report) == expected
    assert str(report) == "gelu: all 8 checks hold"


def test_what_fails_is_raised_in_one_message_or_returned():
    name = fills(residual=NoDropout)
    with pytest.raises(ValueError) as error:
        sixfold.check_part(name, kinds=["encoder_only", "decoder_only"], without=QUICKLY)
    report = sixfold.check_part(name, kinds=["encoder_only", "decoder_only"], without=QUICKLY, raises=False)
    assert str(error.value) == str(report)
    first, _, what, must, do = str(report).splitlines()
    assert first == "mine: 2 of 5 checks do not hold"
    assert what == "dropout (encoder_only, decoder_only): no dropout acts on the output of stack.layers.0.attention"
    assert must.startswith("    What must hold: In training, dropout acts")
    assert do.startswith("    What to do: a residual applies Dropout(spec.sizes.dropout)")
    assert [each.check for each in report.failures] == ["dropout", "dropout"]


def test_dropout_that_is_left_out_on_purpose():
    assert not sixfold.check_part(fills(residual=NoDropout), without=[*QUICKLY, "dropout"]).failures


@pytest.mark.parametrize("part", [Crashes, CrashesAtOnce])
def test_a_part_that_does_not_run_is_reported_once_with_its_line(part):
    report = sixfold.check_part(fills(feed_forward=part), kinds=["decoder_only"], raises=False)
    (finding,) = report.findings
    assert (finding.check, finding.result) == ("built", "fail")
    assert "RuntimeError: " in finding.note
    line = part.__init__ if part is CrashesAtOnce else part.forward
    last = line.__code__.co_firstlineno + (2 if part is CrashesAtOnce else 1)
    assert finding.note.endswith(f"(test_part.py, line {last})")


def test_a_kind_that_is_refused_is_left_out_unless_it_was_named():
    name = fills(feed_forward=Refuses)
    report = sixfold.check_part(name, without=QUICKLY)
    refused = {kind for (check, kind), result in results(report).items() if check == "refused"}
    assert refused == {"encoder_decoder", "decoder_only"}
    with pytest.raises(ValueError, match=r"refused \(decoder_only\): it sees the future \(test_part\.py, line \d+\)"):
        sixfold.check_part(name, kinds=["decoder_only"], without=QUICKLY)


def test_what_every_kind_refuses_fails():
    with pytest.raises(ValueError, match="both fill the slot 'activation'"):
        sixfold.check_part(["gelu", "elu"])


def test_a_function_or_several_or_options_or_sizes_may_be_given():
    @modification()
    def louder(spec: Spec, by: int = 2) -> Spec:
        return replace(spec, activation=lambda h: by * torch.relu(h))

    few = {"kinds": ["encoder_only"], "without": QUICKLY}
    assert sixfold.check_part(louder, **few).part == "louder"
    assert sixfold.check_part(["louder:by=3", "post_norm"], **few).part == "louder:by=3 + post_norm"
    sizes = Sizes(d_model=12, heads=3, d_ff=8, encoder_layers=1, vocab=60)
    assert not sixfold.check_part(louder, sizes=sizes, **few).failures


def test_a_pool_is_checked_in_a_classifier():
    def sums(spec, place):
        return Sums()

    report = sixfold.check_part(fills(pool=sums), sizes=replace(SMALL, classes=3))
    assert {each.kind for each in report.findings if each.result == "pass"} == {"encoder_only"}
    assert results(report)["class_in_a_batch", "encoder_only"] == "pass"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("louder",), "there is no modification 'louder'"),
        ((lambda spec: spec,), "is not registered: put @sixfold.modification"),
        (("gelu", {"without": ["droput"]}), "there is no check 'droput'; did you mean 'dropout'"),
        (("gelu", {"kinds": ["decoder"]}), "there is no model 'decoder'"),
        (("gelu", {"sizes": Sizes(vocab=10)}), "at least 50 words"),
    ],
)
def test_what_can_not_be_checked(arguments, words):
    name, keywords = (*arguments, {})[:2]
    with pytest.raises(ValueError, match=words):
        sixfold.check_part(name, **keywords)


def test_the_state_of_torch_is_left_as_it_was():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        sixfold.check_part("gelu", kinds=["encoder_only"])
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert not said


def test_the_command_line_needs_a_name(request):
    code, _, err = request.getfixturevalue("sixfold")("list", "--check")
    assert (code, "--check needs the NAME of a modification" in err) == (2, True)
