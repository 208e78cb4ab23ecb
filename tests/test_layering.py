"""The staircase: planner on top of costmodels and search, which know nothing of each other.

Every import of the three packages is read from its source, those inside functions and for type
checkers alone too. Inside a package, folders are floors: an import leads down, never up.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# package: the packages of ours that it may import
STAIRCASE = {
    "planner": {"planner", "costmodels", "search"},
    "costmodels": {"costmodels"},
    "search": {"search"},
}
# Floors of each package from the bottom: a module may import from its own floor and from those
# before it. A new folder or file at the top of a package must find its floor here.
FLOORS = {
    "planner": (
        ("errors", "output"),
        ("notes",),
        ("plan",),
        ("models",),
        ("torch",),
        ("request",),
        ("simulation",),
        ("planning",),
        ("joint",),
        ("study", "tables"),
        ("distributed_sgd",),
        ("api",),
        ("report",),
        ("cli",),
        ("__main__",),
    ),
    "costmodels": (
        ("errors",),
        ("notes", "units"),
        ("graph",),
        ("distribution",),
        ("cluster",),
        ("communication",),
        ("compute",),
        ("step",),
        ("layers",),
        ("closed_form", "strategy", "input_pipeline", "throughput"),
        ("simulation",),
    ),
    "search": (
        ("errors",),
        ("problem",),
        ("elimination",),
        ("core",),
        ("presolve",),
        ("cpsat",),
        ("engine",),
        ("solvers",),
        ("files", "black_box"),
    ),
}
# what nobody has to wait for who does not use it
HEAVY = {
    "torch",
    "ortools",
    "optuna",
    "numba",
    "matplotlib",
    "pandas",
    "scipy",
    "pyarrow",
    "jinja2",
    "rich",
}
# reports are made with these, and plans run with PyTorch, by modules that are themselves only
# imported when one is asked for
ALLOWED = {
    "rich": ("planner.report", "planner.cli"),
    "jinja2": ("planner.report",),
    "torch": ("planner.torch.apply", "planner.torch.built", "planner.torch.verify"),
}


@dataclass(frozen=True)
class Import:
    module: str  # where it stands
    target: str
    line: int
    at_import: bool  # whether it runs when the module is imported


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> dict[str, Path]:
    return {
        module_name(path): path
        for package in STAIRCASE
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def statements(body: list[ast.stmt], at_import: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements, and whether they run on import; those for type checkers do not."""
    for node in body:
        inside = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield node, at_import
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.body, False)
            yield from statements(node.orelse, at_import)
            continue
        for part in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, part, []), inside)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, inside)
        for case in getattr(node, "cases", []):
            yield from statements(case.body, inside)


def imports_of(module: str) -> Iterator[Import]:
    tree = ast.parse(sources()[module].read_text(encoding="utf-8"))
    package = module if sources()[module].name == "__init__.py" else module.rpartition(".")[0]
    for node, at_import in statements(tree.body, True):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parent = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parent, *([base] if base else [])])
            # a name may be a module of its own
            names = [f"{base}.{alias.name}" for alias in node.names]
            targets = [name if name in sources() else base for name in names]
        for target in targets:
            yield Import(module, target, node.lineno, at_import)


@cache
def all_imports() -> tuple[Import, ...]:
    return tuple(found for module in sources() for found in imports_of(module))


def test_the_reader_sees_the_imports():
    found = {(one.module, one.target) for one in all_imports()}
    assert ("planner.planning.space.formulate", "search.problem") in found
    assert ("planner.planning.space.formulate", "costmodels.distribution") in found
    assert ("costmodels.layers.layer_passes", "costmodels.communication.halo") in found
    lazy = {one.target.split(".")[0] for one in all_imports() if not one.at_import}
    assert "ortools" in lazy
    assert len(sources()) > 50


def test_no_arrow_runs_up_the_staircase():
    ours = {*STAIRCASE, "tests", "benchmarks"}
    wrong = [
        f"{one.module}:{one.line} imports {one.target}"
        for one in all_imports()
        if (top := one.target.split(".")[0]) in ours
        and top not in STAIRCASE[one.module.split(".")[0]]
    ]
    assert wrong == []


@pytest.mark.parametrize("package", STAIRCASE)
def test_imports_inside_a_package_run_one_way(package):
    arrows: TopologicalSorter[str] = TopologicalSorter()
    for one in all_imports():
        inside = one.module.split(".")[0] == package == one.target.split(".")[0]
        # `import planner.x` makes what an `__init__` offers, not what it is made of
        if inside and one.module != one.target:
            arrows.add(one.module, one.target)
    arrows.prepare()  # raises where there is a loop, and says which


@pytest.mark.parametrize("package", STAIRCASE)
def test_imports_lead_down_the_floors_of_a_package(package):
    floor = {name: level for level, names in enumerate(FLOORS[package]) for name in names}
    entries = {name.split(".")[1] for name in sources() if name.startswith(f"{package}.")}
    assert entries == set(floor), "every folder and file has its floor, every floor is there"
    wrong = []
    for one in all_imports():
        module, target = one.module.split("."), one.target.split(".")
        # the package's own `__init__` offers what lies on all floors
        if module[0] == package == target[0] and len(module) > 1 and len(target) > 1:
            above = floor[target[1]] > floor[module[1]]
            beside = floor[target[1]] == floor[module[1]] and target[1] != module[1]
            if above or beside:
                wrong.append(f"{one.module}:{one.line} imports {one.target}")
    assert wrong == []


def test_heavy_modules_are_imported_where_they_are_used():
    wrong = [
        f"{one.module}:{one.line} imports {one.target}"
        for one in all_imports()
        if one.at_import
        and (top := one.target.split(".")[0]) in HEAVY
        and not one.module.startswith(ALLOWED.get(top, ()) or "none")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import planner", {*HEAVY, "numpy"}),
        ("import planner.cli", {*HEAVY, "numpy"}),
        ("import planner.api", HEAVY),
        ("import search", HEAVY),
        ("import costmodels.layers.layer_cost", HEAVY),
        ("import planner.planning.optimize", {"costmodels.throughput", "costmodels.closed_form"}),
        # what answers 'planner optimize -q'
        (
            "import planner.joint.requests, planner.request.request, planner.report.line",
            {"rich", "numpy.ma", "planner.models.traced.network", "planner.models.onnx.network"},
        ),
    ],
)
def test_importing_loads_nothing_heavy(program, absent):
    loaded = f"{program}\nimport sys\nprint(*sorted({set(absent)!r} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", loaded],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == []


def test_modules_open_with_what_they_are():
    for module, path in sources().items():
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(ast.parse(text)), f"{module} says not what it is"
