"""Options have two styles: names of the configuration have underscores, options of a verb have hyphens."""

import re

import pytest

from sixfold.cli.app import VERBS
from sixfold.config.schema import keys
from tests.support import runs


def options_of(out):
    return set(re.findall(r"^  (--[\w.-]+)(?:,? (--[\w.-]+))*", out, re.MULTILINE))


@pytest.mark.parametrize("verb", VERBS)
def test_an_option_is_shown_under_one_name_in_one_of_two_styles(sixfold, verb):
    code, out, _ = sixfold(verb, "--help")
    assert code == 0
    names = {key for key, _ in keys()} | {key.partition(".")[2] for key, _ in keys()}
    for name, other in options_of(out):
        assert not other
        assert name[2:] in names or re.fullmatch(r"--[a-z]+(-[a-z]+)*", name), name


@pytest.mark.parametrize("option", ["--beam_size", "--beam-size", "--decoding.beam_size", "--decoding.beam-size"])
def test_other_spellings_are_understood(sixfold, tmp_path, option):
    run = runs.translating(tmp_path / "run")
    (tmp_path / "in").write_text("a b c\n")
    code, _, err = sixfold("translate", run, tmp_path / "in", f"{option}=0", "--device", "cpu")
    assert code == 2
    assert "decoding.beam_size: input should be greater than 0, got 0" in err


def test_a_hyphen_in_a_text_is_not_touched(sixfold):
    code, _, err = sixfold("score", "--hyp", "no-such-file", "--ref", "other_file")
    assert code == 2
    assert "'no-such-file'" in err


def test_an_option_of_another_section_is_not_one_of_the_verb(sixfold, tmp_path):
    code, _, err = sixfold("translate", runs.translating(tmp_path / "run"), "--training.device", "cpu")
    assert code == 2
    assert "--training.device" in err
