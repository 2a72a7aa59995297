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


def test_it_writes_a_dictionary_of_the_training_text_without_what_was_held_out(sixfold, tmp_path, monkeypatch):
    """Of 40 pairs, each of which occurs twice, 10 are held out: of those there is no word."""
    words = [f"w{number}" for number in range(20)]
    (tmp_path / "train.tsv").write_text("".join(f"{word}\tA\n" for word in words) * 2)
    run = runs.translating(tmp_path / "mine", **{"data.train": str(tmp_path / "train.tsv"), "data.held_out": "10"})
    code, _, err = sixfold("align", str(run), "--dictionary", str(tmp_path / "words.tsv"))
    assert (code, err.splitlines()[-1]) == (0, f"15 words are in {tmp_path / 'words.tsv'}")
    lines = (tmp_path / "words.tsv").read_text().splitlines()
    assert lines == sorted(f"{word}\tA" for word in words if f"{word}\tA" in lines)
    options = ("--replace_unknown", "true", "--dictionary", str(tmp_path / "words.tsv"))
    (tmp_path / "in.txt").write_text("a b\n")
    assert sixfold("translate", str(run), str(tmp_path / "in.txt"), *options)[0] == 0


def test_it_draws_or_writes_and_needs_a_text_to_draw(sixfold, run, tmp_path):
    code, _, err = sixfold("align", str(run), "a b", "--head", "1", "--dictionary", str(tmp_path / "words.tsv"))
    assert (code, err) == (2, "sixfold: --head, TEXT can't be given with --dictionary\n")
    code, _, err = sixfold("align", str(run))
    assert (code, err) == (2, "sixfold: give the text to translate, or --dictionary FILE\n")
    code, _, err = sixfold("align", str(run), "--dictionary", str(tmp_path / "words.tsv"))
    assert (code, err) == (2, f"sixfold: {run} does not say which text it was trained on\n")


def test_a_dictionary_that_can_not_be_written_is_refused_before_the_work(sixfold, run, tmp_path):
    code, _, err = sixfold("align", str(run), "--dictionary", str(tmp_path / "no" / "words.tsv"))
    assert (code, err) == (
        2,
        f"sixfold: --dictionary: there is no directory {tmp_path / 'no'} for words.tsv; create it first\n",
    )
    code, _, err = sixfold("align", str(run), "--dictionary", str(tmp_path))
    assert (code, err) == (2, f"sixfold: --dictionary: {tmp_path} is a directory; give a file in it\n")
