"""Presolve drops candidates without changing the optimum, and leads back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import fitting, naive_cost, naive_peak, problems

from search import Edge, Problem, evaluate, presolve


@settings(max_examples=200)
@given(problems(limited=True, max_tightness=1.2))
def test_the_optimum_stays(problem: Problem) -> None:
    ranked = fitting(problem)
    reduction = presolve(problem)
    if reduction is None:
        assert not ranked
        return
    left = fitting(reduction.problem)
    assert bool(left) == bool(ranked)
    if ranked:
        cost, choices = left[0]
        assert cost == pytest.approx(ranked[0][0])
        restored = reduction.restore(choices)
        assert evaluate(problem, restored)[0] == pytest.approx(cost)
        assert problem.usage_limit is None or (
            evaluate(problem, restored)[1] <= problem.usage_limit
        )
        assert reduction.reduce(restored) == list(choices)


@settings(max_examples=60)
@given(problems(limited=False))
def test_dominance_leaves_no_candidate_that_another_one_replaces(problem: Problem) -> None:
    reduction = presolve(problem)
    if reduction is None:
        return
    for node, size in enumerate(reduction.problem.sizes):
        for worse in range(size):
            for better in range(size):
                assert better == worse or not _replaces(reduction.problem, node, better, worse)


def _replaces(problem: Problem, node: int, better: int, worse: int) -> bool:
    excess = float(problem.costs[node][better] - problem.costs[node][worse])
    for e in problem.edges:
        if node in (e.source, e.target):
            matrix = e.matrix if node == e.source else e.matrix.T
            allowed = np.isfinite(matrix[worse])
            excess += float(
                (matrix[better][allowed] - matrix[worse][allowed]).max(initial=-math.inf)
            )
    return excess <= 0


def test_what_goes_and_what_stays() -> None:
    problem = Problem(
        costs=(np.array([1.0, 2.0, 3.0, 0.0, math.inf]), np.zeros(2)),
        edges=(
            Edge(
                source=0,
                target=1,
                matrix=np.array([[1, 1], [1, 1], [0, 0], [math.inf] * 2, [0, 0]], dtype=float),
            ),
        ),
        usages=(np.array([5.0, 4.0, 9.0, 0.0, 0.0]), np.array([1.0, 9.0])),
        usage_limit=10,
    )
    reduction = presolve(problem)
    assert reduction is not None
    # 2 costs as much as 1 and uses more; 3 has no partner; 4 is forbidden.
    assert reduction.kept[0].tolist() == [0, 1]
    # Even beside the least of the other node, 9 is too much; so is what it would allow.
    assert reduction.kept[1].tolist() == [0]
    assert reduction.reduce((2, 0)) is None
    assert naive_cost(reduction.problem, (0, 0)) == 2.0
    assert naive_peak(reduction.problem, (0, 0)) == 6.0


def test_shared_matrices_stay_shared() -> None:
    matrix = np.array([[0.0, 4.0, 9.0], [4.0, 0.0, 9.0], [9.0, 9.0, 9.0]])
    problem = Problem(
        costs=tuple(np.zeros(3) for _ in range(3)),
        edges=(
            Edge(source=0, target=1, matrix=matrix),
            Edge(source=1, target=2, matrix=matrix),
        ),
    )
    reduction = presolve(problem)
    assert reduction is not None
    first, second = reduction.problem.edges
    assert first.matrix.shape == (2, 2)
    assert first.matrix is second.matrix
