"""Files of parts that were written for version 0.1: they run, or one sentence says what to import instead."""

import importlib.util
import re
from pathlib import Path

import pytest

import sixfold
from sixfold.spec import moved, registry

ROOT = Path(__file__).parents[1]

OLD = """
from dataclasses import replace
from sixfold import modification, Spec
from {module} import {name}

@modification()
def old_fashioned(spec: Spec) -> Spec:
    return spec
"""


@pytest.fixture(name="sixfold_command")
def _sixfold_command(sixfold):
    return sixfold  # the name is taken by the module


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("sixfold.call", "Call", "sixfold.core.call"),
        ("sixfold.config", "Config", r"sixfold \(read_config\), sixfold\.config\.schema"),
        ("sixfold.export.usage", "readme", r"sixfold\.foreign\.export"),
        ("sixfold.decoding.search", "Job", r"sixfold\.decoding\.engine"),
        ("sixfold.initial", "normal", "sixfold.core.init"),
        ("sixfold.spec", "Place", r"sixfold \(Spec, Place, Sizes\)"),
        ("sixfold.models", "Model", r"sixfold \(build, Batch, Losses\)"),
        ("sixfold.training.display", "Display", r"sixfold\.training\.observers\.display"),
        ("sixfold.training.log", "Log", r"sixfold\.training\.observers\.log"),
        ("sixfold.training.tensorboard", "Board", r"sixfold\.training\.observers\.tensorboard"),
        ("sixfold.text.corpus", "references", r"sixfold\.text\.forms \(references\)"),
        ("sixfold.transformer", "Memory", r"sixfold.core.memory \(Memory\)"),
    ],
)
def test_an_import_of_version_0_1_says_where_it_is_now(tmp_path, module, name, now):
    file = tmp_path / "parts.py"
    file.write_text(OLD.format(module=module, name=name))
    with pytest.raises(ValueError, match=rf"parts\.py could not be imported: .*since version 0\.2 .*{now}"):
        sixfold.import_file(file)


@pytest.mark.parametrize("old", moved._NOW_IN)
def test_what_the_advice_names_exists(old):
    for name in re.findall(r"sixfold(?:\.\w+)+", moved._NOW_IN[old]):
        assert importlib.util.find_spec(name), name


def test_the_changelog_names_no_moved_module_without_advice():
    """Its first column: `sixfold.call`, `sixfold.entry`, `tap`, …; names in braces have the same beginning."""
    table = re.findall(r"^  \| (`sixfold\..*?) \|", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    for cell in table:
        base = "sixfold"
        for word in re.findall(r"`([^`]+)`(?!:)", cell):
            head, _, braces = word.partition("{")
            for name in braces.rstrip("}").split(",") if braces else [""]:
                full = head + name if head.startswith("sixfold.") else f"{base}.{word}"
                if full.endswith("/") or not re.fullmatch(r"[\w.]+", full) or full[len("sixfold.")].isupper():
                    continue
                assert any(full == old or full.startswith(f"{old}.") for old in moved._NOW_IN), full


def test_a_part_that_imports_late_gets_the_same_sentence(sixfold_command, tmp_path):
    late = "    from sixfold.initial import normal\n    return spec"
    (tmp_path / "parts.py").write_text(
        OLD.format(module="sixfold", name="Tap").replace("    return spec", late).replace("old_fash", "late_fash")
    )
    code, out, err = sixfold_command("count", "transformer-base", "--import", "parts.py", "--modify", "late_fashioned")
    assert (code, out) == (2, "")
    assert (
        err == "sixfold: No module named 'sixfold.initial'; since version 0.2 its contents are in sixfold.core.init\n"
    )


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
