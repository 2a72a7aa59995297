"""A user's own modifications: how options may be written, and names that are taken."""

import subprocess
import sys

import pytest

from sixfold import Spec, modification
from sixfold.spec import registry
from sixfold.spec.registry import Chosen, choose, import_file

HEAD = "from sixfold import Spec, modification\n\n\n@modification()\n"


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry.all_modifications()))


def define(folder, line, name="mine.py"):
    """Import a file with one modification. → its path"""
    file = folder / name
    file.write_text(f"{HEAD}{line}\n    return spec\n")
    import_file(file)
    return file


@pytest.mark.parametrize("bar", ["", "*, "])
def test_options_may_be_positional_or_keyword_only(tmp_path, bar):
    define(tmp_path, f"def powered(spec: Spec, {bar}power: int = 2, wide: bool = False):")
    assert choose("powered:power=3,wide=true") == Chosen("powered", {"power": 3, "wide": True})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("def powered(spec, power=2):", "option 'power' of modification 'powered' needs a type and a default"),
        ("def powered(spec, power=2):", "as in power: int = 2"),
        ("def powered(spec, wide=True):", "as in wide: bool = True"),
        ("def powered(spec, limit=None):", "as in limit: int | None = None"),
        ("def powered(spec, power: int):", "as in power: int = 2"),
        ("def powered(spec, **options):", "can't have **options"),
        ("def powered(spec, *options):", "can't have *options"),
        ("def powered():", "takes no spec: write def powered(spec: Spec) -> Spec"),
        ("def powered(*, power: int = 2):", "takes no spec"),
    ],
)
def test_an_option_that_could_not_be_given_is_refused_at_once(tmp_path, line, words):
    with pytest.raises(ValueError) as error:
        define(tmp_path, line)
    assert words in str(error.value)


def test_a_name_that_is_taken_names_both_files():
    def rotary(spec: Spec) -> Spec:
        return spec

    with pytest.raises(ValueError) as error:
        modification()(rotary)
    assert __file__ in str(error.value)
    assert registry.find("rotary").change.__code__.co_filename in str(error.value)


def test_a_name_that_is_taken_is_refused_by_a_process_that_has_used_none_before(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"{HEAD}def rotary(spec: Spec):\n    return spec\n")
    code = f"""
import sixfold
try:
    sixfold.import_file({str(file)!r})
except ValueError as error:
    print(error)
    print(sixfold.all_modifications()["rotary"].change.__code__.co_filename)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    said, kept = done.stdout.splitlines()
    assert f"modification 'rotary' of {file} has the name of one in {kept}" in said
    assert kept == registry.find("rotary").change.__code__.co_filename


def test_a_file_that_leaves_the_program_is_an_error(tmp_path):
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    with pytest.raises(ValueError, match=r"leaves\.py could not be imported: SystemExit: 0"):
        import_file(tmp_path / "leaves.py")
