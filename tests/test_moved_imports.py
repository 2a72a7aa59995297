"""Files of parts that were written for version 0.1: they run, or one sentence says what to import instead."""

import pytest

import sixfold
from sixfold.spec import registry

OLD = """
from dataclasses import replace
from sixfold import modification, Spec
from {module} import {name}

@modification()
def old_fashioned(spec: Spec) -> Spec:
    return spec
"""


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("sixfold.call", "Call", "sixfold.core.call"),
        ("sixfold.initial", "normal", "sixfold.core.init"),
        ("sixfold.spec", "Place", r"sixfold \(Spec, Place, Sizes\)"),
        ("sixfold.models", "Model", r"sixfold \(build, Batch, Losses\)"),
        ("sixfold.transformer", "Memory", r"sixfold.core.memory \(Memory\)"),
    ],
)
def test_an_import_of_version_0_1_says_where_it_is_now(tmp_path, module, name, now):
    file = tmp_path / "parts.py"
    file.write_text(OLD.format(module=module, name=name))
    with pytest.raises(ValueError, match=rf"parts\.py could not be imported: .*since version 0\.2 .*{now}"):
        sixfold.import_file(file)


def test_an_import_that_never_existed_gets_no_such_advice(tmp_path):
    file = tmp_path / "parts.py"
    file.write_text(OLD.format(module="sixfold.core.call", name="Coll"))
    with pytest.raises(ValueError) as refused:
        sixfold.import_file(file)
    assert "since version 0.2" not in str(refused.value)


def test_what_stayed_is_imported_as_before(tmp_path):
    file = tmp_path / "parts.py"
    file.write_text(
        OLD.format(module="sixfold.transformer", name="Attention, PreNorm, FeedForward, split_heads, Sight")
    )
    sixfold.import_file(file)
    assert "old_fashioned" in sixfold.all_modifications()
