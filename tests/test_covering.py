"""The covering design of the tests: nothing is left out, and over the tests every form has its turn."""

from collections import Counter

from tests.support.architectures import KINDS, architectures
from tests.support.covering import Part, forms
from tests.support.small import MODIFICATIONS

PARTS = [Part(name, {"kind": kinds, "part": [name]}) for name, kinds in (("a", KINDS), ("b", KINDS[:1]), ("c", KINDS))]
SIDES = {"side": ("left", "right")}


def test_the_whole_product_is_every_part_in_every_form():
    found = forms(PARTS, set(), SIDES, number=0, whole=True)
    assert len({label for label, _ in found}) == len(found) == (3 + 1 + 3) * 2
    assert found[0] == ("encoder_decoder-a-left", {"kind": "encoder_decoder", "part": "a", "side": "left"})


def test_otherwise_each_part_has_one_form_and_goes_through_all_of_them_from_test_to_test():
    chosen = [tuple(label for label, _ in forms(PARTS, set(), SIDES, number, whole=False)) for number in range(6)]
    assert all(len(labels) == len(PARTS) for labels in chosen)
    for mine, expected in zip(zip(*chosen, strict=True), (6, 2, 6), strict=True):
        assert len(set(mine)) == expected
    assert {labels[0].partition("-")[0] for labels in chosen[:3]} == set(KINDS), "the first axis in the first tests"


def test_an_axis_that_is_not_rotated_is_tried_whole():
    for number in range(4):
        found = [case for _, case in forms(PARTS, {"kind"}, SIDES, number, whole=False)]
        assert [case["kind"] for case in found] == [*KINDS, KINDS[0], *KINDS]
        assert {case["side"] for case in found[:3]} == {"left", "right"}, "the rest rotates with it"


def test_one_in_three_takes_part_in_every_third_test():
    part = Part("a", {"kind": KINDS}, one_in=3)
    found = [[case["kind"] for _, case in forms([part], set(), {}, number, whole=False)] for number in range(9)]
    assert sorted(map(len, found)) == [0] * 6 + [1] * 3
    assert {kind for kinds in found for kind in kinds} == set(KINDS)
    assert len(forms([part], set(), {}, 0, whole=True)) == 3


def test_without_parts_every_value_is_met():
    axes = {"average": {"none": None, "last": 3, "ema": 0.9}, "stop_at": (1, 5, 6, 8)}
    found = [case for _, case in forms((), set(), axes, number=0, whole=False)]
    assert len(found) == 4
    assert {case["average"] for case in found} == {None, 3, 0.9}
    assert {case["stop_at"] for case in found} == {1, 5, 6, 8}
    assert len(forms((), set(), axes, number=0, whole=True)) == 12


def test_every_modification_is_met_alone_by_every_test_of_all_architectures():
    for number in range(3):
        found = [case for _, case in forms(architectures("encoder_decoder"), set(), {}, number, whole=False)]
        met = {wish for case in found if len(case["modifications"]) < 3 for wish in case["modifications"]}
        assert met >= set(MODIFICATIONS)
        assert () in {case["modifications"] for case in found}, "nor is the plain model left out"


def test_the_forms_are_about_equally_often_chosen():
    counts = Counter(
        case["kind"]
        for number in range(12)
        for part in architectures(*KINDS)
        if len(part.axes["kind"]) == 3
        for _, case in forms([part], set(), SIDES, number, whole=False)
    )
    assert max(counts.values()) == min(counts.values()), "twelve tests are a multiple of three kinds"
