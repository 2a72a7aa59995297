"""Verbs that need a package of an extra say in one sentence what to install."""

import sys

import pytest

from tests.support import runs


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("matplotlib", "plot", ["plot", "run"]),
        ("ctranslate2", "export", ["export", "run", "--to", "ctranslate2", "--out", "new"]),
    ],
)
def test_a_missing_package_is_named_with_its_extra(sixfold, tmp_path, monkeypatch, package, extra, words):
    runs.translating(tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").write_text('{"kind": "train", "step": 1, "loss": 2.0}\n')
    monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    code, out, err = sixfold(*words)
    assert (code, out) == (2, "")
    assert f"{package}: pip install -c constraints.txt -e '.[{extra}]' in " in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "new").exists()
