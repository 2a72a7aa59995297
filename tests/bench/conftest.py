"""No pauses: what is tested here is not how long anything takes."""

import pytest


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr("sixfold.bench.decoding.PAUSE", 0.0)
