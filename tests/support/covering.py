"""A covering design: every part meets every test, but not in every form it has; `pytest --all` tries all forms.

A part (a modification, a position, some modifications together) can be tried in several forms: in a model of each kind,
pre-norm or post-norm, with padding at the left or right. These are axes. A test names its parts and its own axes:

    @covering(architectures(*KINDS), side=SIDES)
    def test_padding_does_not_change_the_real_states(kind, modifications, side): ...

Of the product of the axes each part gets one form. Which one is a matter of its name and of the test's number in its
module, so that from test to test a part goes through its forms:

                    kind ×          side        the first test        the second
    rotary          3 kinds         left right  decoder_only, left    encoder_only, left
    gelu            3 kinds         left right  encoder_only, right   encoder_decoder, left
    transparent …   encoder_decoder left right  encoder_decoder, left encoder_decoder, right

Axes named in `every` are not rotated: `every="kind"` tries each part in every kind that it serves, from kind to kind in
another form of the rest. A part that is one in three takes part in every third test.
A test without parts meets every value of every axis at least once.
"""

from collections import Counter
from itertools import product
from typing import NamedTuple
from zlib import crc32

import pytest

OPTION = "--all"
_numbers = Counter()  # of a module's tests in a covering design so far


class Part(NamedTuple):
    """What is tested: its name, its axes, {name of an argument: {label: value}}, and in one of how many tests."""

    name: str
    axes: dict
    one_in: int = 1


def covering(parts=(), /, *, besides=(), every=(), **axes):
    """Parametrise a test by parts and axes; an axis is {label: value}, or values that are their own labels.

    Parts that are given `besides` take part only when all is tried.
    """

    def decorate(test):
        number = _numbers[test.__module__]
        _numbers[test.__module__] += 1
        fixed = {every} if isinstance(every, str) else set(every)
        return pytest.mark.covering(parts, besides, fixed, axes, number)(test)

    return decorate


def parametrize(metafunc):
    """For pytest_generate_tests: give a marked test its arguments."""
    for mark in metafunc.definition.iter_markers("covering"):
        parts, besides, every, axes, number = mark.args
        whole = metafunc.config.getoption(OPTION)
        cases = forms([*parts, *besides] if whole else parts, every, axes, number, whole)
        names = list(cases[0][1])
        metafunc.parametrize(names, [pytest.param(*case.values(), id=label) for label, case in cases])


def forms(parts, every, axes, number, whole):
    """[(label, {argument: value})]: all forms of all parts, or the chosen ones."""
    axes = {name: _labelled(values) for name, values in axes.items()}
    if not parts:
        return _named(product(*axes.values()) if whole else _each_value(axes), axes)
    found = []
    for part in parts:
        own = {**{name: _labelled(values) for name, values in part.axes.items()}, **axes}
        turn = crc32(part.name.encode()) + number
        if whole:
            found += _named(product(*own.values()), own)
        elif turn % part.one_in == 0:
            found += _named(_rotated(own, every, turn // part.one_in), own)
    return found


def _labelled(values):
    return values if isinstance(values, dict) else {str(value): value for value in values}


def _rotated(axes, every, turn):
    """Labels of one value of each axis, for each combination of those of `every`."""
    rotating = {name: list(values) for name, values in axes.items() if name not in every}
    for number, fixed in enumerate(product(*(axes[name] for name in axes if name in every))):
        chosen = iter(fixed)
        digits = _digits(turn + number, [len(values) for values in rotating.values()])
        yield [rotating[name][next(digits)] if name in rotating else next(chosen) for name in axes]


def _digits(number, bases):
    """A number in a system where each place has a base of its own, the smallest place first."""
    for base in bases:
        number, digit = divmod(number, base)
        yield digit


def _each_value(axes):
    """As few combinations of labels as there are labels on the longest axis."""
    most = max(len(values) for values in axes.values())
    return [[list(values)[i % len(values)] for values in axes.values()] for i in range(most)]


def _named(combinations, axes):
    return [
        ("-".join(labels), {name: axes[name][label] for name, label in zip(axes, labels, strict=True)})
        for labels in combinations
    ]
