"""The floors of the package: imports run down the stairs, never up."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2] / "planner"
# From the bottom; modules and folders on one floor may not import each other.
FLOORS = (
    ("errors", "output"),
    ("plan",),
    ("notes",),
    ("models",),
    ("request",),
    ("simulation",),
    ("planning",),
    ("distributed_sgd",),
    ("api",),
    ("report",),
    ("cli",),
)
HEIGHT = {name: height for height, names in enumerate(FLOORS) for name in names}


def test_imports_run_down_the_floors():
    wrong = []
    seen = set()
    for path in sorted(ROOT.rglob("*.py")):
        here = path.relative_to(ROOT).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            parts = node.module.split(".")
            if parts[0] != "planner":
                continue
            for target in parts[1:2] or [alias.name for alias in node.names]:
                if here in HEIGHT and target in HEIGHT and here != target:
                    seen.add(here)
                    if HEIGHT[target] >= HEIGHT[here]:
                        wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {target}")
    assert wrong == []
    assert {"request", "simulation", "api", "cli"} <= seen
