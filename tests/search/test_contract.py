"""What every solver promises, whatever it does inside."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from random_problems import SHAPES, assert_one_sentence, random_problem

import search
from search import SOLVERS, Assignment, Note, Problem, ProblemError, Status, cost_and_peak, solvers

PROBLEMS = {
    f"{shape}, {limit}": random_problem(
        seed, shape, num_nodes=6, forbidden=0.05, tightness=tightness
    )
    for seed, shape in enumerate(SHAPES)
    for limit, tightness in (("no limit", None), ("tight", 0.4), ("slack", 1.0), ("short", -0.1))
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_solver_accepts_or_refuses(solver: str, problem: str) -> None:
    accepts_or_refuses(solver, PROBLEMS[problem])


def accepts_or_refuses(solver: str, stated: Problem) -> None:
    """What a solver must do about any problem."""
    refusal = _refusal(solver, stated)
    if refusal is not None:
        assert refusal.startswith(f"the solver {solver} takes")
        assert_one_sentence(refusal)
        return
    answer, again = (SOLVERS[solver](stated, time_limit=20, seed=1) for _ in range(2))
    _check(stated, answer)
    assert (again.choices, again.lower_bound) == (answer.choices, answer.lower_bound)


def _refusal(solver: str, problem: Problem) -> str | None:
    try:
        SOLVERS[solver](problem)
    except ProblemError as error:
        return str(error)
    return None


def _check(problem: Problem, answer: Assignment) -> None:
    assert isinstance(answer.status, Status)
    assert answer.solver
    assert answer.stopped_by == ""
    assert all(isinstance(note, Note) for note in answer.notes)
    if answer.status in (Status.OPTIMAL, Status.FEASIBLE):
        assert len(answer.choices) == problem.num_nodes
        assert all(type(c) is int for c in answer.choices)
        assert (answer.cost, answer.peak_usage) == cost_and_peak(problem, answer.choices)
        assert problem.usage_limit is None or answer.peak_usage <= problem.usage_limit
        assert answer.lower_bound <= answer.cost < np.inf
        assert (answer.gap == 0) == (answer.status == Status.OPTIMAL)
    else:
        assert answer.choices == ()
        assert answer.cost == np.inf
        assert (answer.lower_bound == np.inf) == (answer.status == Status.INFEASIBLE)


def test_the_accepted_and_the_refused_are_as_documented() -> None:
    def accepts(solver: str, problem: str) -> bool:
        return _refusal(solver, PROBLEMS[problem]) is None

    for solver in SOLVERS:
        takes_limits = solver in ("auto", "cp-sat", "lagrangian", "exhaustive")
        assert accepts(solver, "chain, tight") == takes_limits
        assert accepts(solver, "chain, slack")
        assert accepts(solver, "series-parallel, no limit") == (solver != "shortest-path")


def has_the_one_signature(name: str) -> None:
    """What a solver must look like, in the registry and in its file."""
    module = import_module(f"search.solvers.{name.replace('-', '_')}")
    assert name == module.NAME
    for function in (SOLVERS[name], module.solve):
        parameters = list(inspect.signature(function).parameters.values())
        shown = {p.name: p.default for p in parameters[1:]}
        assert parameters[0].name == "problem"
        assert shown == {"time_limit": None, "seed": 0, "work": None, "watch": None}
        assert all(p.kind is p.KEYWORD_ONLY for p in parameters[1:])


@pytest.mark.parametrize("solver", SOLVERS)
def test_all_solvers_have_one_signature(solver: str) -> None:
    has_the_one_signature(solver)


def test_the_usual_solver_is_shown_first() -> None:
    assert list(SOLVERS) == [
        "auto",
        "shortest-path",
        "longest-path",
        "elimination",
        "cp-sat",
        "lagrangian",
        "exhaustive",
    ]
    assert len(SOLVERS) == 7
    assert "simplex" not in SOLVERS


STRANGER = """
from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.local_moves import cheap_start

NAME = "no-nonsense"


def solve(problem, *, time_limit=None, seed=0, work=None, watch=None):
    found, bound = cheap_start(problem), trivial_bound(problem)
    if found is None:
        return no_assignment(solver=NAME, lower_bound=bound)
    return make_assignment(problem, found, lower_bound=bound, solver=NAME)
"""


def test_a_file_is_all_that_a_new_solver_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no_nonsense.py").write_text(STRANGER)
    monkeypatch.setattr(solvers, "__path__", [*solvers.__path__, str(tmp_path)])
    try:
        assert list(SOLVERS)[-1] == "no-nonsense"
        assert "search.solvers.no_nonsense" not in sys.modules
        has_the_one_signature("no-nonsense")
        for problem in PROBLEMS.values():
            accepts_or_refuses("no-nonsense", problem)
        told: list[tuple[float, float]] = []
        answer = search.solve(
            Problem(costs=(np.ones(2),)),
            solver="no-nonsense",
            watch=lambda cost, bound: told.append((cost, bound)),
        )
        assert told == [(answer.cost, answer.lower_bound)] == [(1.0, 1.0)]
    finally:
        sys.modules.pop("search.solvers.no_nonsense", None)


def test_nothing_but_solvers_lies_in_their_folder() -> None:
    for name in SOLVERS:
        module = import_module(f"search.solvers.{name.replace('-', '_')}")
        assert callable(module.solve)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, search; print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'ortools', 'optuna', 'scipy', 'pandas', 'matplotlib', 'costmodels',"
        " 'planner'}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
