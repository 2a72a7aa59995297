"""The command line, as a person or a script would use it."""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest
import typer

from sixfold.cli import app, load_verbs, main
from sixfold.config.files import read_config
from sixfold.config.schema import keys
from sixfold.spec import registry

load_verbs()
VERBS = typer.main.get_command(app).commands
OWN_PART = """
from dataclasses import replace
import torch.nn.functional as F
from sixfold import Spec, modification

@modification()
def my_gelu(spec: Spec, *, exact: bool = True) -> Spec:
    '''GeLU, as an example.'''
    return replace(spec, activation=F.gelu)
"""


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def sixfold(monkeypatch, capsys):
    """Run the command in this process: importing torch once is enough."""
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["sixfold", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture
def counted(sixfold):
    def run(*arguments):
        done = sixfold("count", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def squeezed(text):
    """Without spaces and the sign that keeps lines: where a line of the help is broken depends on the terminal."""
    return "".join(text.replace("\b", "").split())


def test_paths_of_one_model(counted):
    """No vocabulary is needed: how far tokens are apart does not depend on it."""
    found = counted("--paths", "--modify", "rnn", "--model.kind", "decoder_only", "--model.layers", "1")["decoder"]
    assert [at["length"] for at in found["at"]] == [8, 16, 32]
    assert (found["chain"], found["distance"], found["reach"]) == ("3 per token", "3 per token", "all tokens")
    assert found["work"] == [2 * 512**2, 0]


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_every_verb_explains_it_and_all_its_options(sixfold, verb):
    command, done = VERBS[verb], sixfold(verb, "--help")
    shown = squeezed(done.stdout)
    assert done.returncode == 0
    assert squeezed(f"Usage: sixfold {verb}") in shown
    assert len(command.help) > 10
    assert squeezed(command.help) in shown
    for parameter in command.params:
        assert parameter.opts[0] in shown or parameter.make_metavar(typer.Context(command)).strip("[].") in shown
        assert squeezed(parameter.help) in shown, parameter.name
        assert len(parameter.help) > 5, parameter.name


def test_help_names_every_verb_and_begins_to_explain_it(sixfold):
    shown = squeezed(sixfold("--help").stdout)
    assert {"train", "translate", "score", "verify", "bench"} <= set(VERBS)
    for verb, command in VERBS.items():
        assert squeezed(verb + command.help.partition(".")[0])[: len(verb) + 15] in shown, "later it may be cut"


def test_help_knows_every_key_of_the_configuration_by_section(sixfold):
    _, *sections = sixfold("train", "--help").stdout.split("Configuration: ")
    for text in sections:
        section = text.partition(":")[0]
        known = {key for key, _ in keys() if key.startswith(f"{section}.")}
        assert {word.removeprefix("--") for word in text.split() if word.startswith("--")} >= known
    assert len(sections) == len({key.partition(".")[0] for key, _ in keys()})


def test_count_takes_only_what_matters_to_it(sixfold):
    help_text = sixfold("count", "--help").stdout
    shown = {key for key, _ in keys() if f"--{key} " in help_text}
    assert shown == {"data.vocabulary", *(key for key, _ in keys() if key.startswith("model."))}


def test_list_shows_every_modification_with_slot_and_paper(sixfold):
    lines = sixfold("list").stdout.splitlines()
    (shaw,) = (line for line in lines if line.startswith("shaw"))
    assert "position" in shaw
    assert "1803.02155" in shaw
    assert {row["name"] for row in json.loads(sixfold("list", "--json").stdout)} >= {"rotary", "post_norm", "t5_bias"}


def test_list_of_one_shows_its_page_with_formula_and_options(sixfold):
    page = sixfold("list", "t5_bias").stdout
    assert "b[h, bucket(j − i)]" in page
    assert "`buckets` = 32" in page


def test_count_gives_the_published_sizes(counted):
    assert counted("transformer-base")["parameters"] == 63_045_632
    assert counted("transformer-big")["parameters"] == 214_171_648
    assert counted("study-vanilla")["parameters"] == 223_043_328


def test_count_operations_equal_the_arithmetic_of_the_study(counted):
    """The products for one pair of 512 source and 114 target tokens; look-ups are none."""
    d, ff, layers, words, n, m = 768, 3072, 12, 32128, 512, 114
    attention, feed_forward = 4 * d * d, 2 * d * ff
    by_hand = layers * (attention + feed_forward) * n + layers * 2 * d * d * n
    by_hand += layers * (attention + feed_forward + 2 * d * d) * m
    by_hand += layers * 2 * d * (n * n + m * m + n * m) + words * d * m
    result = counted("study-vanilla", "--source-length", str(n), "--target-length", str(m))
    assert result["operations"] == by_hand == sum(result["operations_by_part"].values())


def test_settings_win_over_the_recipe_and_modify_adds(counted):
    plain = counted("transformer-base", "--model.heads", "4", "--model.d_head", "32")
    assert plain["parameters_by_part"]["encoder.attention"] == 6 * 4 * 512 * 4 * 32
    learned = counted("transformer-base", "--modify", "learned_positions:length=100")
    assert learned["parameters"] - 63_045_632 == 2 * 100 * 512


def test_over_a_billion_parameters_are_counted(counted):
    wide = ["--model.d_model", "2048", "--model.d_ff", "8192", "--model.layers", "10", "--data.vocabulary", "32000"]
    assert counted(*wide)["parameters"] > 1_100_000_000


def test_a_modification_of_ones_own_is_imported(sixfold, counted, tmp_path):
    file = tmp_path / "my_parts.py"
    file.write_text(OWN_PART)
    assert "GeLU, as an example." in sixfold("list", "my_gelu", "--import", str(file)).stdout
    assert (
        counted("transformer-base", "--import", str(file), "--modify", "my_gelu:exact=false")["parameters"]
        == 63_045_632
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["count", "transformer-bas"], ["transformer-bas", "did you mean 'transformer-base'"]),
        (["count"], ["--data.vocabulary"]),
        (["count", "transformer-base", "--modify", "rotery"], ["rotery", "did you mean 'rotary'"]),
        (["count", "transformer-base", "--modify", "t5_bias:bukets=3"], ["bukets", "did you mean 'buckets'"]),
        (["count", "transformer-base", "--modify", "t5_bias:buckets"], ["key=value"]),
        (["count", "transformer-base", "--modify", "t5_bias:buckets=many"], ["buckets", "whole number", "many"]),
        (["count", "transformer-base", "--modify", "rotary", "--modify", "shaw"], ["rotary", "shaw", "position"]),
        (["count", "transformer-base", "--model.heads", "7"], ["512", "7 heads"]),
        (["count", "transformer-base", "--model.heads", "seven"], ["model.heads", "seven"]),
        (["count", "transformer-base", "--import", "nowhere.py"], ["nowhere.py"]),
        (["list", "rezeroo"], ["rezeroo", "did you mean 'rezero'"]),
        (["count", "transformer-base", "--model.layers", "0"], ["encoder_layers", "at least 1", "0"]),
        (["count", "transformer-base", "--model.classes", "3"], ["classes", "encoder_only"]),
        (["count", "transformer-base", "--modify", "learned_positions:length=10"], ["32 positions", "10"]),
        (["count", "transformer-base", "--modify", "rotary:base=0"], ["base", "0"]),
    ],
)
def test_a_mistake_gets_one_line_that_names_it(sixfold, arguments, words):
    done = sixfold(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in words), done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model:\n  hedas: 4\n", ["model.hedas", "did you mean 'model.heads'"]),
        ("modle:\n  heads: 4\n", ["modle", "did you mean 'model'"]),
        ("model: 4\n", ["model", "4"]),
        ("model:\n  heads: four\n", ["model.heads", "four"]),
        ("model:\n  dropout: yes\n", ["model.dropout", "yes"]),
        ("model: {heads: 1\n", ["line"]),
        ("- model\n", ["sections"]),
        ("model:\n  heads: 4\n  heads: 8\n", ["heads"]),
    ],
)
def test_a_mistake_in_a_recipe_names_file_and_key(tmp_path, text, words):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_config(recipe)
    assert all(word in str(caught.value) for word in ["mine.yaml", *words]), caught.value


def test_yaml_numbers_are_numbers():
    assert read_config(settings={"model.dropout": "3e-1"}).model.dropout == 0.3
    assert read_config(settings={"data.vocabulary": "{source: 5, target: 6}"}).sizes().source_vocab == 5


def test_text_of_a_user_cannot_drive_the_terminal(sixfold):
    done = sixfold("count", "\x1b[31mred")
    assert "\x1b" not in done.stderr
    assert "\\x1b[31mred" in done.stderr


def test_a_reader_that_has_enough_is_no_error():
    command = f"{sys.executable} -m sixfold list | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("transformer-base",), "RECIPE"),
        (("--modify", "rotary"), "--modify"),
        (("--model.heads", "4"), "--model.heads"),
    ],
)
def test_the_study_counts_its_own_rows_and_nothing_else(sixfold, given, named):
    done = sixfold("count", "--study", *given)
    assert done.returncode == 2
    assert named in done.stderr
