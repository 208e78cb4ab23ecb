"""What `CONTRIBUTING.md` says of the four things that are added most, done as a stranger would."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import planner
from costmodels.graph.kinds import KINDS, NUM_INPUTS
from planner import report
from planner.cli.command import planner_command
from search import SOLVERS, solvers

ROOT = Path(__file__).resolve().parent.parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROOMS = {
    "A new runtime": "costmodels/simulation/data/runtimes.toml",
    "A new kind of layer": "costmodels/graph/kinds/",
    "A new solver": "search/solvers/",
    "A new report": "planner/report/",
}
RUNTIME = '[mine]\ntitle = "Mine"\nbucket = "8 MiB"\nsource = "a test"\n'
KIND = """
from costmodels.graph.kinds import layer_kind
from costmodels.graph.kinds.tensors import own_dims, relabel
from costmodels.graph.layer import Layer


@layer_kind("mish")
def mish(name, inputs):
    tensor = relabel(inputs[0], own_dims(inputs[0]))
    dims = {axis.name: axis.extent for axis in inputs[0].axes}
    return Layer(
        name=name,
        kind="mish",
        operation="activation",
        dims=dims,
        inputs=(tensor,),
        output=tensor,
        keeps_inputs=True,
        splittable=frozenset(dims),
    )
"""
NETWORK = """
name = "mine"
[input]
channel = 8
height = 16
width = 16
[[layer]]
name = "conv"
kind = "conv"
inputs = ["input"]
filters = 8
kernel = 3
padding = 1
[[layer]]
name = "mish"
kind = "mish"
[[layer]]
name = "loss"
kind = "loss"
"""
SOLVER = """
from search.solvers import elimination

NAME = "hopeful"


def solve(problem, *, time_limit=None, seed=0, work=None, watch=None):
    return elimination.solve(problem, time_limit=time_limit, seed=seed, work=work, watch=watch)
"""
REPORT = """
def report_text(plan):
    return f"{plan.model},{plan.step_time}\\n"
"""


def run(*arguments: str) -> str:
    done = CliRunner().invoke(planner_command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("room", ROOMS)
def test_the_guide_names_the_files_in_ten_lines(room: str) -> None:
    (text,) = re.findall(rf"## {room}\n\n(.*?)\n\n##", GUIDE, re.S)
    assert len(text.split("\n")) <= 10
    named = re.findall(r"`((?:costmodels|search|planner|tests|docs)/[\w./-]+)`", text)
    assert ROOMS[room] in named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_a_runtime(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(RUNTIME)
    printed = run("simulate", "alexnet", "--gpus", "4", "--runtime", str(path), "--json")
    assert json.loads(printed)["runtime"] == "mine"


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mish_kind.py").write_text(KIND)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("mish_kind")
    yield
    sys.modules.pop("mish_kind")
    del KINDS["mish"], NUM_INPUTS["mish"]


def test_a_kind_of_layer(tmp_path: Path, kind: None) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(NETWORK)
    plan = planner.optimize(str(path), gpus=4, global_batch_size=32)
    assert plan.layers["mish"].kind == "mish"
    assert plan.layers["mish"].forward_s > 0


@pytest.mark.slow
def test_a_solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hopeful.py").write_text(SOLVER)
    monkeypatch.setattr(solvers, "__path__", [*solvers.__path__, str(tmp_path)])
    try:
        assert "hopeful" in SOLVERS
        plan = planner.optimize("alexnet", gpus=4, search="hopeful")
        exact = planner.optimize("alexnet", gpus=4, search="elimination")
        assert plan.search.lower_bound_s == exact.search.lower_bound_s
    finally:
        sys.modules.pop("search.solvers.hopeful", None)


def test_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "csv_lines.py").write_text(REPORT)
    monkeypatch.setattr(report, "__path__", [*report.__path__, str(tmp_path)])
    monkeypatch.setattr(report, "KINDS", {**report.KINDS, ".csv": "csv_lines"})
    try:
        run("evaluate", "alexnet", "--gpus", "4", "--report", str(tmp_path / "out.csv"), "-q")
        assert (tmp_path / "out.csv").read_text().startswith("alexnet,0.")
    finally:
        sys.modules.pop("planner.report.csv_lines", None)
