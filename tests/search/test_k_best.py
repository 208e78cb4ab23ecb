"""The K best assignments are the first K of all, each once."""

from __future__ import annotations

from importlib import import_module
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import fitting, problems, random_problem

from search import Note, Problem, ProblemError, Status, cost_and_peak, k_best
from search.elimination.buckets import eliminate, plan
from search.elimination.ranking import increasing_assignments


@settings(max_examples=150)
@given(problems(limited=False), st.integers(1, 16))
def test_without_a_limit(problem: Problem, k: int) -> None:
    _check(problem, k)


@pytest.mark.slow
@settings(max_examples=150)
@given(problems(limited=True), st.integers(1, 16))
def test_with_a_limit(problem: Problem, k: int) -> None:
    _check(problem, k)


def _check(problem: Problem, k: int) -> None:
    expected = fitting(problem)[:k]
    found = k_best(problem, k)
    assert [a.cost for a in found] == pytest.approx([c for c, _ in expected])
    assert len({a.choices for a in found}) == len(found)
    for answer in found:
        cost, peak = cost_and_peak(problem, answer.choices)
        assert (answer.cost, answer.peak_usage) == (cost, peak)
        assert problem.usage_limit is None or peak <= problem.usage_limit
        assert answer.lower_bound == pytest.approx(expected[0][0])
    if found:
        assert found[0].status == Status.OPTIMAL


@settings(max_examples=60)
@given(problems(limited=False))
def test_every_allowed_assignment_comes_out_once_in_order(problem: Problem) -> None:
    expected = fitting(problem)[:400]
    ranked = increasing_assignments(eliminate(problem, plan(problem)))
    found = list(islice(ranked, 400))
    assert [c for c, _ in found] == pytest.approx([c for c, _ in expected])
    assert len({tuple(x) for _, x in found}) == len(found)
    for cost, choices in found:
        assert cost_and_peak(problem, choices)[0] == pytest.approx(cost)


def test_larger_tight_problem() -> None:
    problem = random_problem(
        11, "series-parallel", num_nodes=9, candidates=(3, 3), forbidden=0.05, tightness=0.35
    )
    _check(problem, 16)


def test_a_search_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package exports a function of the same name as the module.
    monkeypatch.setattr(import_module("search.elimination.k_best"), "MAX_LOOKED_AT", 3)
    problem = random_problem(
        1, "series-parallel", num_nodes=30, candidates=(6, 6), forbidden=0, tightness=0.3
    )
    found = k_best(problem, 16)
    assert found
    assert all(a.notes == (Note.of("ranking-cut-short", assignments=3),) for a in found)
    assert all(a.lower_bound < a.cost for a in found)


def test_a_number_below_one_is_refused() -> None:
    with pytest.raises(ProblemError, match="at least 1 but is 0"):
        k_best(Problem(costs=()), 0)
