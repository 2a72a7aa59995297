"""What is said while a run is planned."""

import pytest

from sixfold.training import planning
from sixfold.training.planning import warning_of_slow_preparation


@pytest.mark.parametrize(("minutes", "said_at"), [(5, 151), (10, None), (None, None)])
def test_preparation_that_takes_half_of_the_time_is_said_once_and_at_once(monkeypatch, minutes, said_at):
    now, told, said = [100.0], [], []
    monkeypatch.setattr(planning.time, "monotonic", lambda: now[0])
    progress = warning_of_slow_preparation(
        lambda *work: told.append(work), lambda words: said.append((now[0] - 100, words)), minutes, 100.0
    )
    for second in (1, 149, 151, 200):
        now[0] = 100.0 + second
        progress("reading", second, None)
    assert len(told) == 4
    assert [at for at, _ in said] == ([] if said_at is None else [said_at])
    assert all("already taken 50% of the 5 minutes" in words for _, words in said)
