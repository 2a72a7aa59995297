"""Whether one system is better than another, or only luckier with these texts.

Both systems wrote about the same sources and are scored against the same references; d is the second's score less the
first's. All metrics are functions of sums over the texts, so a trial adds up rows of numbers and reads no text.

Paired bootstrap (Koehn 2004): draw as many texts as there are, with replacement, and score both systems on the draw.
    interval   from the 2.5th to the 97.5th of 100 parts of the d that were drawn (and so for each system's score)
    p          2 · (1 + how often d ≤ 0, or how often d ≥ 0, whichever is less) / (1 + draws), at most 1

Approximate randomisation (Noreen 1989; Riezler and Maxwell 2005): if the systems were alike, it would not matter which
of them wrote a text. So toss a coin for each text, and exchange the two where it falls on heads.
    p          (1 + how often |d| is at least what it really is) / (1 + trials)

Both are two-sided, and the ones that are added count what was really seen as one of the trials, without which p could
be 0. Where all ways to exchange are no more than the trials, each of them is tried once, and p is exact.

Letters: N texts, K numbers of each, T trials.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sixfold.scoring.error_rates import Hypotheses, References, check
from sixfold.scoring.metric import Metric

Values = NDArray[Any]

_CELLS = 1 << 22  # of T × N numbers that exist at one time
_EQUAL = 1e-9  # per cent: less than this is rounding


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Two systems by one metric."""

    metric: str
    higher_is_better: bool
    signature: str
    texts: int
    first: Estimate
    second: Estimate
    difference: Estimate  # second − first
    p_bootstrap: float
    p_randomisation: float
    resamples: int
    trials: int  # 2^texts if `exact`
    exact: bool  # every way to exchange texts was tried
    seed: int

    @property
    def better(self) -> str:
        """ "first", "second" or "neither": whose score is better, be it by chance."""
        if abs(self.difference.value) <= _EQUAL:
            return "neither"
        return "second" if (self.difference.value > 0) == self.higher_is_better else "first"

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "better": self.better}


def compare(
    first: Hypotheses,
    second: Hypotheses,
    references: References,
    metric: Metric,
    *,
    resamples: int = 1000,
    trials: int = 10_000,
    seed: int = 1,
) -> Comparison:
    """Both tests of two systems' texts; for metrics with several numbers, of the one that bears their name."""
    if min(resamples, trials) < 1:
        raise ValueError(f"a test needs at least one trial, got {resamples} resamples and {trials} trials")
    table_2NK, values = _statistics(first, second, references, metric)
    generator, exact = np.random.default_rng(seed), 2 ** len(first) <= trials
    drawn_2T = _gather(bootstrap_scores(table_2NK, metric, w) for w in resampled(len(first), resamples, generator))
    coins = every_exchange(len(first)) if exact else exchanges(len(first), trials, generator)
    exchanged_2T = _gather(exchanged_scores(table_2NK, metric, coin) for coin in coins)
    estimates = [
        Estimate(float(value), *map(float, np.quantile(scores, (0.025, 0.975))))
        for value, scores in zip(_with_difference(values), _with_difference(drawn_2T), strict=True)
    ]
    return Comparison(
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        signature=metric.signature(references),
        texts=len(first),
        first=estimates[0],
        second=estimates[1],
        difference=estimates[2],
        p_bootstrap=p_of_draws(drawn_2T[1] - drawn_2T[0]),
        p_randomisation=p_of_exchanges(exchanged_2T[1] - exchanged_2T[0], estimates[2].value, exact),
        resamples=resamples,
        trials=exchanged_2T.shape[1],
        exact=exact,
        seed=seed,
    )


def _statistics(first: Hypotheses, second: Hypotheses, references: References, metric: Metric) -> tuple[Values, Values]:
    """Of each system: a row for each text (2, N, K), and the score (2,)."""
    for texts in (first, second):
        check(texts, references)
    rows = [metric.statistics(texts, references) for texts in (first, second)]
    return np.array(rows, np.float64), np.array([metric.total(each) for each in rows])


def _gather(parts: Iterator[Values]) -> Values:
    return np.concatenate([*parts], axis=1)


def _with_difference(pair: Values) -> tuple[Values, Values, Values]:
    return pair[0], pair[1], pair[1] - pair[0]


def resampled(texts: int, number: int, generator: np.random.Generator) -> Iterator[Values]:
    """How often each text is in each draw: (T, N), some draws at a time."""
    for rows in _portions(texts, number):
        drawn = generator.integers(texts, size=(rows, texts))
        cells = drawn + texts * np.arange(rows)[:, None]
        yield np.bincount(cells.ravel(), minlength=rows * texts).reshape(rows, texts).astype(np.float64)


def exchanges(texts: int, number: int, generator: np.random.Generator) -> Iterator[Values]:
    """For each trial, which texts are exchanged (1) and which are not (0): (T, N), some trials at a time."""
    for rows in _portions(texts, number):
        yield generator.integers(2, size=(rows, texts), dtype=np.uint8).astype(np.float64)


def every_exchange(texts: int) -> Iterator[Values]:
    """All 2^N of them."""
    for rows in np.array_split(np.arange(2**texts), -(-(2**texts) * texts // _CELLS)):
        yield (rows[:, None] >> np.arange(texts) & 1).astype(np.float64)


def _portions(texts: int, number: int) -> Iterator[int]:
    most = max(1, _CELLS // texts)
    for done in range(0, number, most):
        yield min(most, number - done)


def bootstrap_scores(table_2NK: Values, metric: Metric, times_TN: Values) -> Values:
    """Both systems' scores (2, T) where each text counts so many times."""
    return np.array([_totals(metric, times_TN @ table_NK) for table_NK in table_2NK])


def exchanged_scores(table_2NK: Values, metric: Metric, coins_TN: Values) -> Values:
    """The scores (2, T) of the two after exchanging the texts whose coin is 1."""
    moved_TK = coins_TN @ (table_2NK[1] - table_2NK[0])
    first_K, second_K = table_2NK.sum(1)
    return np.array([_totals(metric, first_K + moved_TK), _totals(metric, second_K - moved_TK)])


def _totals(metric: Metric, sums_TK: Values) -> list[float]:
    return [metric.total([row]) for row in sums_TK.tolist()]


def p_of_draws(differences_T: Values) -> float:
    """How surprising it is that these are not around 0."""
    rarer = min(int((differences_T <= _EQUAL).sum()), int((differences_T >= -_EQUAL).sum()))
    return min(1.0, 2 * (1 + rarer) / (1 + len(differences_T)))


def p_of_exchanges(differences_T: Values, real: float, exact: bool) -> float:
    """How surprising a difference is, if these are what chance alone makes."""
    as_large = int((np.abs(differences_T) >= abs(real) - _EQUAL).sum())
    return as_large / len(differences_T) if exact else (1 + as_large) / (1 + len(differences_T))
