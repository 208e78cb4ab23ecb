"""What every solver promises, whatever it does inside."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from random_problems import SHAPES, random_problem

from search import SOLVERS, Assignment, Problem, ProblemError, Status, cost_and_peak

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
    stated = PROBLEMS[problem]
    refusal = _refusal(solver, stated)
    if refusal is not None:
        assert refusal.startswith(f"The solver {solver} takes")
        assert refusal.endswith(".")
        assert not re.search(r"\. [A-Z]", refusal)
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
    assert all(note.endswith(".") for note in answer.notes)
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


def test_all_solvers_have_one_signature() -> None:
    for name, solver in SOLVERS.items():
        module = import_module(f"search.solvers.{name.replace('-', '_')}")
        assert name == module.NAME
        for function in (solver, module.solve):
            parameters = list(inspect.signature(function).parameters.values())
            assert [p.name for p in parameters[:3]] == ["problem", "time_limit", "seed"]
            assert [p.default for p in parameters[1:3]] == [None, 0]
            assert all(p.kind is p.KEYWORD_ONLY for p in parameters[1:])


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, search; print(sorted({m.split('.')[0] for m in sys.modules}"
        " & {'ortools', 'optuna', 'networkx', 'scipy', 'pandas', 'matplotlib', 'costmodels',"
        " 'planner'}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
