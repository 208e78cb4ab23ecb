"""Exact solvers find the optimum, heuristics never beat it, and bounds hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import SHAPES, fitting, problems, random_problem

from search import (
    SOLVERS,
    Assignment,
    Edge,
    Problem,
    ProblemError,
    Status,
    evaluate,
    solve,
)
from search.buckets import eliminate, plan
from search.cp_sat import solve_core
from search.deadline import Deadline
from search.marginals import min_marginals
from search.thinning import thin

CLOSE = {"rel": 1e-9, "abs": 1e-9}


def check(problem: Problem, answer: Assignment, optimum: float, *, exact: bool) -> None:
    """What must hold of every answer, given the true optimum."""
    assert answer.lower_bound <= optimum + 1e-9 * abs(optimum) or math.isinf(optimum)
    if answer.choices:
        cost, peak = evaluate(problem, answer.choices)
        assert (answer.cost, answer.peak_usage) == (cost, peak)
        assert cost >= optimum - 1e-9
        assert problem.usage_limit is None or peak <= problem.usage_limit
    if answer.status == Status.OPTIMAL:
        assert answer.cost == pytest.approx(optimum, **CLOSE)
        assert answer.gap == 0
    if answer.status == Status.INFEASIBLE:
        assert math.isinf(optimum)
    if exact:
        expected = Status.INFEASIBLE if math.isinf(optimum) else Status.OPTIMAL
        assert answer.status == expected


@settings(max_examples=120)
@given(problems(limited=False))
def test_without_a_limit(problem: Problem) -> None:
    ranked = fitting(problem)
    optimum = ranked[0][0] if ranked else math.inf
    for name, solver in SOLVERS.items():
        try:
            answer = solver(problem)
        except ProblemError:
            assert name == "shortest-path"
            continue
        check(problem, answer, optimum, exact=name != "longest-path")


@settings(max_examples=120)
@given(problems(limited=True))
def test_with_a_limit(problem: Problem) -> None:
    ranked = fitting(problem)
    optimum = ranked[0][0] if ranked else math.inf
    for name in ("auto", "cp-sat", "exhaustive", "lagrangian"):
        check(problem, SOLVERS[name](problem), optimum, exact=name != "lagrangian")
    if not problem.limit_is_slack:
        for name in ("elimination", "shortest-path", "longest-path"):
            with pytest.raises(ProblemError, match="use the solver"):
                SOLVERS[name](problem)


@settings(max_examples=60)
@given(problems(limited=True))
def test_cp_sat_without_presolve_or_a_hint(problem: Problem) -> None:
    ranked = fitting(problem)
    optimum = ranked[0][0] if ranked else math.inf
    if any(np.isinf(c).all() for c in problem.costs):
        return
    answer = solve_core(problem, hint=None, deadline=Deadline(None), seed=0)
    check(problem, answer, optimum, exact=True)


@settings(max_examples=80)
@given(problems(limited=False))
def test_min_marginals(problem: Problem) -> None:
    eliminated = eliminate(problem, plan(problem))
    ranked = fitting(problem)
    if not ranked:
        assert eliminated.minimum == math.inf
        return
    marginals = min_marginals(eliminated)
    assert marginals is not None
    for node, found in enumerate(marginals):
        for candidate, value in enumerate(found):
            least = min((c for c, x in ranked if x[node] == candidate), default=math.inf)
            assert value == pytest.approx(least, **CLOSE)


@settings(max_examples=60)
@given(problems(limited=True))
def test_thinning_bounds_and_fits(problem: Problem) -> None:
    ranked = fitting(problem)
    optimum = ranked[0][0] if ranked else math.inf
    found = thin(problem, deadline=Deadline(None))
    assert found.bound <= optimum + 1e-9 * abs(optimum) or math.isinf(optimum)
    assert found.cost >= optimum - 1e-9


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tightness", [0.2, 0.4])
def test_tight_problems_that_presolve_does_not_decide(shape: str, tightness: float) -> None:
    problem = random_problem(
        7, shape, num_nodes=8, candidates=(4, 4), forbidden=0.05, tightness=tightness
    )
    oracle = solve(problem, solver="exhaustive")
    check(problem, solve(problem), oracle.cost, exact=True)
    check(problem, solve(problem, solver="lagrangian"), oracle.cost, exact=False)


def test_auto_takes_the_path_that_fits() -> None:
    chain = random_problem(1, "chain", num_nodes=6, forbidden=0)
    assert solve(chain).solver == "shortest-path"
    block = random_problem(1, "series-parallel", num_nodes=6, forbidden=0)
    assert solve(block).solver == "elimination"
    loose = random_problem(
        3, "dag", num_nodes=8, candidates=(4, 4), forbidden=0, tightness=0.95
    )
    assert solve(loose).solver == "presolve > elimination"
    tight = random_problem(
        5, "dag", num_nodes=30, candidates=(6, 6), forbidden=0, tightness=0.3
    )
    paths = {solve(tight.__class__(**_fields(tight, limit)), time_limit=20).solver for limit in (
        tight.usage_limit, 0.8 * (tight.usage_limit or 0)
    )}
    assert all("presolve" in path for path in paths)


def _fields(problem: Problem, limit: float | None) -> dict[str, object]:
    return {
        "costs": problem.costs,
        "edges": problem.edges,
        "usages": problem.usages,
        "intervals": problem.intervals,
        "usage_limit": limit,
    }
