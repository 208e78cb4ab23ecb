"""Assignments within a limit on another sum: all are within it, and the best of small problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import fitting, problems, random_problem

from search import CostEdge, Problem, ProblemError, cost_and_peak
from search.elimination import within
from search.elimination.within import cheapest_within
from search.problem.deadline import Deadline, OutOfTime


def used_by(problem: Problem, seed: int) -> Problem:
    """Something else that assignments use: by candidates, and by pairs of some."""
    rng = np.random.default_rng(seed)
    sizes = problem.sizes
    pairs = [(edge.source, edge.target) for edge in problem.edges if rng.random() < 0.5]
    return Problem(
        costs=tuple(rng.uniform(0, 100, size) for size in sizes),
        edges=tuple(
            CostEdge(source=a, target=b, matrix=rng.uniform(0, 50, (sizes[a], sizes[b])))
            for a, b in pairs
        ),
    )


@settings(max_examples=100)
@given(problems(limited=False), st.integers(0, 1000), st.floats(0, 1), st.floats(1e-3, 10))
def test_the_best_within_a_limit_is_found(problem, seed, part, price):
    usage = used_by(problem, seed)
    ranked = [(cost, cost_and_peak(usage, x)[0], x) for cost, x in fitting(problem)]
    uses = sorted(used for _, used, _ in ranked)
    limit = uses[int(part * (len(uses) - 1))] * (1 + 1e-9) + 1e-6 if uses else 1.0
    found = cheapest_within(
        problem, usage, limit=limit, price=price, count=3, deadline=Deadline(None)
    )
    for choices in found:
        assert cost_and_peak(usage, choices)[0] <= limit * (1 + 1e-9)
    costs = [cost_and_peak(problem, choices)[0] for choices in found]
    assert costs == sorted(costs)
    assert len(set(found)) == len(found) <= 3
    best = min((cost for cost, used, _ in ranked if used <= limit), default=np.inf)
    assert min(costs, default=np.inf) == pytest.approx(best, rel=1e-9, abs=1e-9)


def test_what_is_used_may_be_what_it_costs():
    problem = random_problem(5, "series-parallel", num_nodes=6, forbidden=0.0)
    least = min(cost for cost, _ in fitting(problem))
    assert least > 0.0
    for part, few in ((0.99, 0), (1.01, 1)):
        found = cheapest_within(
            problem, problem, limit=part * least, price=1.0, count=3, deadline=Deadline(None)
        )
        assert min(len(found), 1) == few
        assert all(cost_and_peak(problem, one)[0] <= 1.01 * least for one in found)


def test_a_narrow_beam_finds_what_is_nearly_the_best(monkeypatch):
    problem = random_problem(3, "series-parallel", num_nodes=30, candidates=(8, 8), forbidden=0.0)
    usage = used_by(problem, 3)

    def ask(width):
        monkeypatch.setattr(within, "WIDTH", width)
        most = sum(float(cost.mean()) for cost in usage.costs)
        found = cheapest_within(
            problem, usage, limit=0.6 * most, price=0.01, count=1, deadline=Deadline(None)
        )
        return cost_and_peak(problem, found[0])[0]

    wide = ask(2000)
    assert wide <= ask(20) <= wide + 0.05 * abs(wide)


def test_time_and_wide_graphs_end_it(monkeypatch):
    problem = random_problem(1, "dag", num_nodes=6)
    usage = used_by(problem, 1)
    with pytest.raises(OutOfTime):
        cheapest_within(problem, usage, limit=1e9, price=1.0, count=1, deadline=Deadline(-1.0))
    monkeypatch.setattr(within, "MOST_WORK", 1.0)
    with pytest.raises(ProblemError, match="visit"):
        cheapest_within(problem, usage, limit=1e9, price=1.0, count=1, deadline=Deadline(None))
