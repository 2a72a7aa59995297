"""The index that `sixfold list` reads in the place of the registry says the same, and needs no torch."""

import json
import subprocess
import sys

from sixfold.modifications import _index, _pages


def test_it_is_what_is_registered_or_make_docs_was_forgotten():
    assert _index.FILE.read_text(encoding="utf-8") == _index.as_text(_pages.own_entries())
    assert _index.entries() == _pages.own_entries()


def test_it_is_not_believed_where_a_module_was_added(monkeypatch, sixfold):
    monkeypatch.setattr(_index, "_modules", lambda: ["of_tomorrow"])
    assert _index.entries() is None
    code, said, _ = sixfold("list", "--json")
    assert code == 0
    assert "rotary" in [each["name"] for each in json.loads(said)]


def test_list_does_not_import_torch():
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('sixfold', run_name='__main__')\n"
        "except SystemExit as left: assert not left.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, "list", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [each["name"] for each in json.loads(done.stdout)] == list(_index.entries())
