"""Runs to verify: one trained for a second, of which each test may have a copy."""

import shutil

import pytest

from tests.support.verified import trained_run


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    return trained_run(tmp_path_factory.mktemp("verified"))


@pytest.fixture
def run(original, tmp_path):
    """A copy to break; its text files are those of the original."""
    return shutil.copytree(original, tmp_path / "run")
