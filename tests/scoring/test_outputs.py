"""Statistics of outputs, each of which can be counted by hand."""

import pytest

from sixfold.scoring.outputs import output_statistics, repeated_ngrams
from sixfold.text.preparation import Reference


def statistics(*triples):
    """Of (source, target, output)."""
    references = [Reference(source, (target,)) for source, target, _ in triples]
    return {
        name[7:]: value for name, value in output_statistics([output for *_, output in triples], references).items()
    }


def test_lengths_are_summed_in_characters():
    assert statistics(("a", "1234", "12"), ("b", "1234", "1234"))["length"] == 6 / 8


def test_of_several_references_the_nearest_in_length_counts():
    found = output_statistics(["12345"], [Reference("a", ("123456789", "1234", "12"))])
    assert found["output_length"] == 5 / 4


def test_empty_outputs_and_copies_are_shares():
    found = statistics(("a", "x", " "), ("b", "y", "b"), ("c", "c", "c"), ("d", "z", "z"))
    assert (found["empty"], found["copied"]) == (0.25, 0.25)  # a name may be the same in both languages


@pytest.mark.parametrize(
    ("text", "repeated"),
    [("the cat sat on", 0), ("a b c d a b c d", 1), ("no no no no no no", 2), ("abcdabcd", 1), ("", 0), ("ab", 0)],
)
def test_phrases_that_occurred_before_are_counted(text, repeated):
    assert repeated_ngrams(text) == repeated


def test_an_output_may_repeat_what_its_reference_repeats():
    song = "la la la la la"
    assert statistics(("x", song, song))["repeating"] == 0
    assert statistics(("x", song, song + " la"), ("y", "one", "two"))["repeating"] == 0.5


def test_no_outputs_have_no_statistics():
    assert output_statistics([], []) == {}
