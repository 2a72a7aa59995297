"""What holds the package together, read from its source: layers, cycles, budgets and names.

Each check takes files, {path: source}, and returns complaints, one sentence each; no complaint means that it holds.

    python -m tests.support.house [FOLDER]     checks the sixfold/ and tests/ in a folder, here by default
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

PACKAGE = "sixfold"
# Who lies where: a module imports only from its own layer and from those below it.
LAYERS = {
    name: number
    for number, names in enumerate(
        (
            ("core",),
            ("transformer",),
            ("spec",),
            ("modifications", "baselines"),
            ("models",),
            ("disk", "terminal"),
            ("config",),
            ("runs",),
            ("text",),
            ("decoding",),
            ("scoring",),
            ("tasks",),
            ("training",),
            ("api", "doctor", "foreign"),
            ("verify", "bench", "narang", "study", "scale", "web", "explore", "serve"),
            ("demo", "demonstration", "cli", "__main__"),
        ),
        start=1,
    )
    for name in names
}
SELF_CONTAINED = {"transformer": {"core"}}  # these import nothing else of the package, not even for annotations
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
MEANINGLESS = {"utils", "util", "common", "helpers", "helper", "misc"}

Files = Mapping[str, str]


@cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


class Import(NamedTuple):
    """One module of the package imports another."""

    path: str
    line: int
    importer: str
    imported: str
    for_types: bool = False  # under `if TYPE_CHECKING`

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.imported}"


def read(folder: Path, package: str = PACKAGE) -> dict[str, str]:
    """The files of a package in this folder."""
    paths = sorted((folder / package).rglob("*.py"))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def module_of(path: str) -> str:
    """sixfold/core/call.py → sixfold.core.call; sixfold/core/__init__.py → sixfold.core"""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def top_level(module: str) -> str:
    """The sub-package or module directly in the package: sixfold.core.call → core; sixfold → nothing"""
    return module.partition(".")[2].partition(".")[0]


# Imports ---------------------------------------------------------------------------------------------


def imports(files: Files) -> list[Import]:
    """All imports of the package's own modules, at the top of a file or inside a function.

    The package's own __init__ imports public names when they are asked for, and is left out.
    """
    modules = {module_of(path) for path in files}
    found = []
    for path, source in files.items():
        importer, is_package = module_of(path), path.endswith("/__init__.py")
        if "." in importer:
            for node, for_types in _statements(_parsed(source), False):
                names = _names(node, importer if is_package else importer.rpartition(".")[0])
                for imported in dict.fromkeys(_nearest(name, modules) for name in names):
                    if imported and imported != importer:
                        found.append(Import(path, node.lineno, importer, imported, for_types))
    return found


def _statements(tree: ast.AST, for_types: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Import statements, and whether only a type checker reads them."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, for_types
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from _statements(ast.Module(node.body, []), True)
            yield from _statements(ast.Module(node.orelse, []), for_types)
        else:
            yield from _statements(node, for_types)


def _names(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """Absolute names that a statement, in a module of this package, imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    return [".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names]


def _nearest(name: str, modules: set[str]) -> str:
    """The module that a name is, or is in; nothing if the package has none of it."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name


def layers(files: Files, table: Mapping[str, int] = LAYERS) -> list[str]:
    """Every module has a layer, and imports nothing from a higher one."""
    unknown = [
        f"{path} has no layer: {top_level(module_of(path))} is not in the table"
        for path in files
        if "." in module_of(path) and top_level(module_of(path)) not in table
    ]
    return unknown + [why for each in imports(files) for why in [_against_the_layers(each, table)] if why]


def _against_the_layers(found: Import, table: Mapping[str, int]) -> str:
    here, there = top_level(found.importer), top_level(found.imported)
    if not there or here == there or not {here, there} <= set(table):
        return ""
    if there not in SELF_CONTAINED.get(here, {there}):
        return f"{found}, but {here} may import only {' and '.join(sorted(SELF_CONTAINED[here]))}"
    if not found.for_types and table[there] > table[here]:
        return f"{found}, which lies in a higher layer ({there}: {table[there]}, {here}: {table[here]})"
    return ""


def public_names(files: Files, package: str = PACKAGE) -> list[str]:
    """Nobody inside takes a public name from the package's __init__: it hides which module, and layer, it is in."""
    own = _defined(files.get(f"{package}/__init__.py", ""))
    modules = {module_of(path) for path in files}
    complaints = []
    for path, source in files.items():
        if path == f"{package}/__init__.py":
            continue
        for node in ast.walk(_parsed(source)):
            for name in _taken_from(package, node):
                if name not in own and f"{package}.{name}" not in modules:
                    complaints.append(f"{path}:{node.lineno} takes {name} from {package}: import it from its module")
    return complaints


def _defined(source: str) -> set[str]:
    """Names that a module assigns at its top."""
    assigned = [node for node in _parsed(source).body if isinstance(node, ast.Assign)]
    return {target.id for node in assigned for target in node.targets if isinstance(target, ast.Name)}


def _taken_from(package: str, node: ast.AST) -> list[str]:
    """`from sixfold import a, b` → a, b; `sixfold.a` → a"""
    if isinstance(node, ast.ImportFrom) and node.module == package and not node.level:
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == package:
        return [node.attr]
    return []


def cycles(files: Files) -> list[str]:
    """No module imports itself by way of others, inside a function or not."""
    links: dict[str, list[Import]] = {}
    for each in imports(files):
        if not each.for_types:
            links.setdefault(each.importer, []).append(each)
    return [
        "a cycle of imports: " + ", ".join(f"{each.path}:{each.line} → {each.imported}" for each in cycle)
        for cycle in _cycles(links)
    ]


def _cycles(links: Mapping[str, list[Import]]) -> list[list[Import]]:
    """One shortest way back to each module that is on one; the same round is named once."""
    found: dict[frozenset[str], list[Import]] = {}
    for start in sorted(links):
        way = _way_back(start, links)
        if way:
            found.setdefault(frozenset(each.importer for each in way), way)
    return list(found.values())


def _way_back(start: str, links: Mapping[str, list[Import]]) -> list[Import]:
    """A shortest way of imports from a module to itself, breadth first; empty if there is none."""
    ways, seen = [[each] for each in links[start]], set()
    while ways:
        way = ways.pop(0)
        end = way[-1].imported
        if end == start:
            return way
        if end not in seen:
            seen.add(end)
            ways += [[*way, each] for each in links.get(end, [])]
    return []


# Budgets and names -------------------------------------------------------------------------------------


def budgets(
    files: Files, lines: int = MOST_LINES_OF_A_FILE, function_lines: int = MOST_LINES_OF_A_FUNCTION
) -> list[str]:
    """No file and no function is longer than this."""
    complaints = []
    for path, source in files.items():
        if (length := len(source.splitlines())) > lines:
            complaints.append(f"{path} has {length} lines, and {lines} at most are allowed")
        for node in ast.walk(_parsed(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > function_lines:
                    complaints.append(
                        f"{path}:{node.lineno} {node.name} has {length} lines, and {function_lines} at most are allowed"
                    )
    return complaints


def meaningless_names(files: Files) -> list[str]:
    """No module is named for nothing in particular."""
    named = {path: MEANINGLESS.intersection(module_of(path).split(".")) for path in files}
    return [f"{path}: {min(words)} says nothing of what is inside" for path, words in named.items() if words]


def hidden_packages(files: Files, package: str = PACKAGE) -> list[str]:
    """No public name is that of a sub-package or module, which it would hide."""
    inside = {top_level(module_of(path)) for path in files}
    root = _parsed(files.get(f"{package}/__init__.py", ""))
    public = [
        name
        for node in root.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    ]
    return [
        f"{package}.{name} is public, and {package}/{name} is a module: it hides it"
        for name in public
        if name in inside
    ]


# The CPU step has parts of the same meaning as those of the model; a lease is of a buffer, or of a step.
SHARED_NAMES = {"Lease", "NewTokens", "Residual"}


def classes_of_one_name(files: Files) -> list[str]:
    """Two classes have two names: a reader who knows one must not take the other for it."""
    found: dict[str, list[str]] = {}
    for path, source in files.items():
        for node in _parsed(source).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [
        f"{name} is the name of several classes: {', '.join(places)}"
        for name, places in found.items()
        if len(places) > 1 and name not in SHARED_NAMES
    ]


def tests_of_tests(files: Files) -> list[str]:
    """No test module and no conftest is imported by another module: what is shared lies in tests/support."""
    return [
        f"{each}: what test modules share lies in tests/support"
        for each in imports(files)
        if each.imported.rpartition(".")[2].startswith("test_") or each.imported.endswith(".conftest")
    ]


KINDS = {"encoder_decoder", "decoder_only", "encoder_only"}
MAY_NAME_KINDS = ("sixfold/tasks/", "sixfold/models/", "sixfold/config/schema.py")


def kinds_elsewhere(files: Files) -> list[str]:
    """A model's kind is a name: what it can do is declared by its class, what it is trained for is a task."""
    return [
        f"{path}:{node.lineno} names the kind {node.value!r}; ask what the model can do, or its task"
        for path, source in files.items()
        if not path.startswith(MAY_NAME_KINDS)
        for node in ast.walk(_parsed(source))
        if isinstance(node, ast.Constant) and node.value in KINDS
    ]


CHECKS = (
    layers,
    public_names,
    cycles,
    budgets,
    meaningless_names,
    hidden_packages,
    classes_of_one_name,
    kinds_elsewhere,
)

if __name__ == "__main__":
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    complaints = [*chain.from_iterable(check(read(root)) for check in CHECKS), *tests_of_tests(read(root, "tests"))]
    sys.stdout.writelines(f"{each}\n" for each in complaints)
    sys.exit(bool(complaints))
