"""House rules that can be checked: few entries a floor, a name an idea, functions to hold."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("planner", "costmodels", "search")
FOLDERS = (*PACKAGES, "benchmarks")
# "about a dozen" entries at the top of a package, its `__init__` and `__main__` aside
MOST_ENTRIES = 16
# of a function, its docstring aside
MOST_LINES = 80
MOST_LINES_OF_A_FILE = 360
# From so many parameters on, a public function has a section on them.
MANY_PARAMETERS = 3

# What has one name for a reason: what a command runs, what Python calls, the solvers and the
# function that takes one of them by name, and the notes of the two packages that know nothing of
# each other.
SAME_IDEA = ("main", "__getattr__", "__dir__", "Note", "solve")
# Decorators of functions whose parameters are described elsewhere: by the help of their options, or
# where the inputs of a request are.
DESCRIBED = ("click.", "documented(")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def functions(folder: str) -> Iterator[tuple[str, Function]]:
    for path, tree in trees(folder).items():
        for node in ast.walk(tree):
            if isinstance(node, Function):
                yield f"{path}:{node.lineno} {node.name}", node


def public_functions(folder: str) -> Iterator[tuple[str, Function]]:
    """Functions of modules and methods of public classes; none that lie inside a function."""
    for path, tree in trees(folder).items():
        classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
        for scope in (tree, *classes):
            for node in scope.body:
                if isinstance(node, Function) and not node.name.startswith("_"):
                    yield f"{path}:{node.lineno} {node.name}", node


def parameters(function: Function) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [one.arg for one in named if one.arg not in ("self", "cls")]


def length(function: Function) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    text = function.body[0]
    return lines - ((text.end_lineno or 0) - text.lineno + 1)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_shows_about_a_dozen_entries(folder):
    entries = {
        path.name
        for path in (ROOT / folder).iterdir()
        if path.name not in ("__init__.py", "__main__.py", "__pycache__", "py.typed")
    }
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


@pytest.mark.parametrize("folder", FOLDERS)
def test_functions_can_be_held_in_the_head(folder):
    long = {name: lines for name, node in functions(folder) if (lines := length(node)) > MOST_LINES}
    assert long == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_stay_small(folder):
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lines := path.read_text(encoding="utf-8").count("\n")) > MOST_LINES_OF_A_FILE
    }
    assert long == {}


def test_a_name_stands_for_one_idea():
    """Two of a name are one idea only if they take the same, as solvers and closed forms do."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for folder in FOLDERS:
        for path, tree in trees(folder).items():
            for node in tree.body:
                if isinstance(node, Function):
                    found[node.name][path] = ", ".join(parameters(node))
                elif isinstance(node, ast.ClassDef):
                    found[node.name][path] = f"class of {path}"
    wrong = {
        name: places
        for name, places in found.items()
        if name not in SAME_IDEA and len(set(places.values())) > 1
    }
    assert wrong == {}


@pytest.mark.parametrize("folder", PACKAGES)
def test_many_parameters_are_explained(folder):
    wrong = [
        name
        for name, node in public_functions(folder)
        if len(parameters(node)) >= MANY_PARAMETERS
        and not any(ast.unparse(one).startswith(DESCRIBED) for one in node.decorator_list)
        and "Parameters\n" not in (ast.get_docstring(node) or "")
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", PACKAGES)
def test_public_signatures_are_typed_to_the_end(folder):
    wrong = []
    for name, node in public_functions(folder):
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [one for one in (arguments.vararg, arguments.kwarg) if one]
        hints = [hint for hint in (*(one.annotation for one in every), node.returns) if hint]
        names = {n.id for hint in hints for n in ast.walk(hint) if isinstance(n, ast.Name)}
        if "Any" in names:
            wrong.append(name)
    assert wrong == []
