"""`sixfold align`: the picture that the demo draws, for any sentence."""

import pytest

from tests.support import runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return runs.translating(tmp_path_factory.mktemp("runs") / "mine")


def test_it_draws_a_row_for_each_piece_of_the_translation(sixfold, run):
    code, out, _ = sixfold("align", str(run), "a b c", "--target", "A B", "--layer", "1")
    assert code == 0
    about, empty, *picture = out.splitlines()
    assert about.startswith("cross-attention of decoder layer 1 of ")
    assert about.endswith("mean of its heads: source above, output at the left")
    assert not empty
    assert [row.split()[0] for row in picture[-3:]] == ["A", "B", "</s>"]


def test_without_a_target_it_draws_its_own_translation(sixfold, run):
    _, translated, _ = sixfold("align", str(run), "a b c")
    assert translated.splitlines()[1].startswith("cross-attention")


@pytest.mark.parametrize(("option", "value"), [("--layer", "99"), ("--head", "99")])
def test_a_layer_or_head_that_does_not_exist_is_named(sixfold, run, option, value):
    code, _, err = sixfold("align", str(run), "a b", "--target", "c", option, value)
    assert code != 0
    assert f"there is no {option.removeprefix('--')} 99: the decoder has " in err
