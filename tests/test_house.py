"""The package keeps to its layers and budgets; and each check notices when something does not."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import house

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def files():
    return house.read(ROOT)


@pytest.mark.parametrize("check", house.CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_to_it(files, check):
    assert len(files) > 100
    complaints = check(files)
    assert not complaints, "\n" + "\n".join(complaints)


def test_no_test_module_imports_another():
    files = house.read(ROOT, "tests")
    assert len(files) > 100
    complaints = house.tests_of_tests(files)
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("command", [["--help"], ["train", "--help"], ["--version"], ["list", "--tasks"]], ids=" ".join)
def test_help_does_not_import_torch(command):
    program = (
        "import runpy, sys\n"
        "try: runpy.run_module('sixfold', run_name='__main__')\n"
        "except SystemExit as left: assert not left.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sixfold" in done.stdout or "translation" in done.stdout


# Each check on a package made up for it ----------------------------------------------------------------


def package(**sources):
    """{path: source}; core__call="…" is sixfold/core/call.py."""
    return {f"sixfold/{name.replace('__', '/')}.py": source for name, source in sources.items()}


@pytest.mark.parametrize(
    "source",
    [
        "import sixfold.cli.train",
        "from sixfold.cli.train import train",
        "from sixfold.cli import train",
        "from sixfold import cli",
        "from ..cli.train import train",
        "def f():\n    import sixfold.cli.train",
        "if True:\n    try:\n        from sixfold.cli import train\n    except ImportError:\n        pass",
    ],
)
def test_an_import_from_a_higher_layer_is_found(source):
    files = {**package(core__call=source, cli__train="def train(): ..."), "sixfold/cli/__init__.py": ""}
    (complaint,) = house.layers(files)
    line = 1 + source.count("\n", 0, source.index("cli"))
    assert complaint.startswith(f"sixfold/core/call.py:{line} imports sixfold.cli")
    assert complaint.endswith("which lies in a higher layer (cli: 16, core: 1)")


def test_imports_from_lower_layers_and_of_other_packages_are_none():
    source = "import torch\nfrom sixfold.core import call\nfrom . import score\nfrom sixfold.cli.score import x"
    assert house.layers(package(cli__train=source, cli__score="", core__call="")) == []


def test_only_for_types_a_module_may_look_up_but_transformer_may_not():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sixfold.spec.spec import Spec\n"
    assert house.layers(package(core__call=source, spec__spec="")) == []
    assert house.layers(package(transformer=source, spec__spec="")) == [
        "sixfold/transformer.py:3 imports sixfold.spec.spec, but transformer may import only core"
    ]
    otherwise = source + "else:\n    from sixfold.spec.spec import Spec\n"
    assert "sixfold/core/call.py:5 imports" in house.layers(package(core__call=otherwise, spec__spec=""))[0]


def test_a_module_without_a_layer_is_found():
    (complaint,) = house.layers(package(core__call="", attic__old=""))
    assert complaint == "sixfold/attic/old.py has no layer: attic is not in the table"


def test_the_package_itself_may_offer_what_it_likes_but_nobody_inside_takes_it():
    offered = '__version__ = "1"\ndef load(path):\n    from sixfold.cli.train import train\n'
    files = {"sixfold/__init__.py": offered, **package(cli__train="", core__call="from sixfold import __version__")}
    assert house.layers(files) == house.public_names(files) == house.cycles(files) == []
    for source in ("from sixfold import load", "import sixfold\nsixfold.load('run')"):
        files["sixfold/core/call.py"] = source
        (complaint,) = house.public_names(files)
        line = source.count("\n") + 1
        assert complaint == f"sixfold/core/call.py:{line} takes load from sixfold: import it from its module"


def test_a_cycle_is_found_even_inside_functions_and_named_once():
    files = package(
        core__a="from sixfold.core.b import x",
        core__b="def f():\n    from sixfold.core import c",
        core__c="import sixfold.core.a",
        core__d="from sixfold.core.a import y",
    )
    (complaint,) = house.cycles(files)
    assert complaint == (
        "a cycle of imports: sixfold/core/a.py:1 → sixfold.core.b, sixfold/core/b.py:2 → sixfold.core.c, "
        "sixfold/core/c.py:1 → sixfold.core.a"
    )
    files["sixfold/core/c.py"] = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import sixfold.core.a"
    assert house.cycles(files) == []


def test_a_file_and_a_function_that_are_too_long_are_found():
    def of(lines):
        return "def f():\n" + "    pass\n" * (lines - 1)

    assert house.budgets(package(core__call=of(60) + "\n" * 340)) == []
    assert house.budgets(package(core__call=of(3) + "\n" * 398)) == [
        "sixfold/core/call.py has 401 lines, and 400 at most are allowed"
    ]
    inside = "class A:\n    async " + of(61).replace("\n", "\n    ")
    assert house.budgets(package(core__call=inside)) == [
        "sixfold/core/call.py:2 f has 61 lines, and 60 at most are allowed"
    ]


@pytest.mark.parametrize("name", ["utils", "core__utils", "common__files", "text__helpers"])
def test_names_that_say_nothing_are_found(name):
    (complaint,) = house.meaningless_names(package(core__call="", **{name: ""}))
    assert complaint.endswith("says nothing of what is inside")


def test_a_comparison_of_kinds_outside_of_tasks_and_models_is_found():
    source = 'def f(model):\n    return model.kind == "decoder_only"\n'
    assert house.kinds_elsewhere(package(tasks__translation=source, models__build=source)) == []
    (complaint,) = house.kinds_elsewhere(package(scoring__report=source))
    assert complaint.startswith("sixfold/scoring/report.py:2 names the kind 'decoder_only'")


def test_a_public_name_that_hides_a_module_is_found():
    files = {"sixfold/__init__.py": '__all__ = ["load", "verify"]', **package(verify__report="", api__load="")}
    assert house.hidden_packages(files) == ["sixfold.verify is public, and sixfold/verify is a module: it hides it"]


def test_two_classes_of_one_name_are_found():
    files = package(core__a="class Row: pass\nclass _Own: pass", text__b="x = 1\nclass Row: pass\nclass _Own: pass")
    assert house.classes_of_one_name(files) == [
        "Row is the name of several classes: sixfold/core/a.py:1, sixfold/text/b.py:2"
    ]


def test_a_test_module_that_imports_another_is_found():
    files = {"tests/test_a.py": "x = 1", "tests/support/small.py": "", "tests/runs/conftest.py": ""}
    files["tests/runs/test_b.py"] = "from tests.support import small"
    assert house.tests_of_tests(files) == []
    for source, imported in (
        ("from tests.test_a import x", "tests.test_a"),
        ("from .conftest import run", "tests.runs.conftest"),
    ):
        files["tests/runs/test_b.py"] = source
        assert house.tests_of_tests(files) == [
            f"tests/runs/test_b.py:1 imports {imported}: what test modules share lies in tests/support"
        ]
