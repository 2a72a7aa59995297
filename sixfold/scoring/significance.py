"""Tests of significance: is one system better than another, or only luckier on these texts?

Both systems read the same sources and are scored against the same references; d is the second system's score
minus the first's. All metrics are functions of sums over the texts. So each text is scored once, as a row of summands,
and a trial only adds up rows.

Paired bootstrap (Koehn 2004): draw N of the N texts with replacement, and score both systems on the draw.
    interval   from the 2.5th to the 97.5th percentile of d over the draws (likewise for each system's score)
    p          2 · (1 + min(draws with d ≤ 0, draws with d ≥ 0)) / (1 + draws), at most 1

Approximate randomisation (Noreen 1989; Riezler and Maxwell 2005): under the null hypothesis it does not matter which
system wrote a text. So exchange the two systems' texts at random, each with probability ½.
    p          (1 + trials with |d| at least the observed |d|) / (1 + trials)

Both are two-sided. The added 1 counts the observation itself as a trial; without it p could be 0. If there are no more
ways to exchange (2^N) than trials, each way is tried once, and p is exact.

Letters: N texts, K numbers for each text, T trials.
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

_CELLS = 1 << 22  # largest T × N of a chunk of trials
_EQUAL = 1e-9  # per cent: smaller differences are rounding errors


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """The comparison of two systems by one metric."""

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
    exact: bool  # whether every way to exchange texts was tried
    seed: int

    @property
    def better(self) -> str:
        """ "first", "second" or "neither": whose score is better, significantly or not."""
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
    """Test the difference between two systems' scores in both ways.

    If a metric reports several numbers, the test is about the one that has the metric's name.
    """
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
    """For each system a row per text (2, N, K), and the score (2,)."""
    for texts in (first, second):
        check(texts, references)
    rows = [metric.statistics(texts, references) for texts in (first, second)]
    return np.array(rows, np.float64), np.array([metric.total(each) for each in rows])


def _gather(parts: Iterator[Values]) -> Values:
    return np.concatenate([*parts], axis=1)


def _with_difference(pair: Values) -> tuple[Values, Values, Values]:
    return pair[0], pair[1], pair[1] - pair[0]


def resampled(texts: int, number: int, generator: np.random.Generator) -> Iterator[Values]:
    """How often each text is in each draw: (T, N), in chunks of draws."""
    for rows in _portions(texts, number):
        drawn = generator.integers(texts, size=(rows, texts))
        cells = drawn + texts * np.arange(rows)[:, None]
        yield np.bincount(cells.ravel(), minlength=rows * texts).reshape(rows, texts).astype(np.float64)


def exchanges(texts: int, number: int, generator: np.random.Generator) -> Iterator[Values]:
    """For each trial, which texts are exchanged (1) and which are not (0): (T, N), in chunks of trials."""
    for rows in _portions(texts, number):
        yield generator.integers(2, size=(rows, texts), dtype=np.uint8).astype(np.float64)


def every_exchange(texts: int) -> Iterator[Values]:
    """All 2^N ways to exchange texts: (T, N), in chunks."""
    for rows in np.array_split(np.arange(2**texts), -(-(2**texts) * texts // _CELLS)):
        yield (rows[:, None] >> np.arange(texts) & 1).astype(np.float64)


def _portions(texts: int, number: int) -> Iterator[int]:
    most = max(1, _CELLS // texts)
    for done in range(0, number, most):
        yield min(most, number - done)


def bootstrap_scores(table_2NK: Values, metric: Metric, times_TN: Values) -> Values:
    """Both systems' scores (2, T), where text n of trial t counts times_TN[t, n] times."""
    return np.array([_totals(metric, times_TN @ table_NK) for table_NK in table_2NK])


def exchanged_scores(table_2NK: Values, metric: Metric, coins_TN: Values) -> Values:
    """Both systems' scores (2, T) after exchanging the texts whose coin is 1."""
    moved_TK = coins_TN @ (table_2NK[1] - table_2NK[0])
    first_K, second_K = table_2NK.sum(1)
    return np.array([_totals(metric, first_K + moved_TK), _totals(metric, second_K - moved_TK)])


def _totals(metric: Metric, sums_TK: Values) -> list[float]:
    return [metric.total([row]) for row in sums_TK.tolist()]


def p_of_draws(differences_T: Values) -> float:
    """The two-sided p-value of the paired bootstrap."""
    rarer = min(int((differences_T <= _EQUAL).sum()), int((differences_T >= -_EQUAL).sum()))
    return min(1.0, 2 * (1 + rarer) / (1 + len(differences_T)))


def p_of_exchanges(differences_T: Values, observed: float, exact: bool) -> float:
    """The two-sided p-value of approximate randomisation: `observed` against the differences after exchanges."""
    as_large = int((np.abs(differences_T) >= abs(observed) - _EQUAL).sum())
    return as_large / len(differences_T) if exact else (1 + as_large) / (1 + len(differences_T))
