"""Verbs, each in a file of its own; and those that do not exist."""

import pytest

from sixfold.cli import app, load_verbs
from sixfold.cli.app import VERBS


def test_each_verb_lies_in_a_file_of_its_name():
    load_verbs()
    verbs = [(command.name or command.callback.__name__, command) for command in app.registered_commands]
    for group in app.registered_groups:
        verbs += [(group.name, command) for command in group.typer_instance.registered_commands]
    assert len(verbs) > 10
    for verb, command in verbs:
        assert command.callback.__module__ == f"sixfold.cli.{verb}"


@pytest.mark.parametrize("verb", VERBS)
def test_the_first_line_of_its_help_is_that_of_the_list_of_verbs(sixfold, verb):
    _, listed, _ = sixfold("--help")
    assert f" {VERBS[verb]} " in f" {' '.join(listed.split())} "
    _, own, _ = sixfold(verb, "--help")
    assert f" {VERBS[verb]} " in f" {' '.join(own.split())} "


@pytest.mark.parametrize("verb", ["serve", "import", "explore", "study", "evaluate"])
def test_a_verb_that_does_not_exist_is_answered_by_those_that_do(sixfold, verb):
    code, out, err = sixfold(verb)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert f"there is no verb {verb!r}; there are " in err
    existing = err.partition("there are ")[2].strip().split(", ")
    assert len(existing) == len(VERBS)
    assert {"train", "translate", "score", "prepare"} < {*existing}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["transalte"], "translate"),
        (["scroe"], "score"),
        (["trian"], "train"),
        (["prepare", "libreofice"], "libreoffice"),
    ],
)
def test_a_typo_is_answered_by_the_verb_that_was_meant(sixfold, typed, meant):
    code, _, err = sixfold(*typed)
    assert code == 2
    assert f"did you mean {meant!r}?" in err
