"""Problems are checked where they are made, and assignments are costed right."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_problems import assert_one_sentence, naive_cost, naive_peak, naive_profile, problems

from search import (
    Assignment,
    CostEdge,
    Incumbent,
    Note,
    Problem,
    ProblemError,
    Status,
    cost_and_peak,
    costs_and_peaks,
)
from search.problem.timeline import make_timeline

TWO = (np.zeros(2), np.zeros(2))


@given(problems(limited=True))
def test_evaluate_agrees_with_the_sum_of_its_terms(problem: Problem) -> None:
    everything = list(itertools.product(*(range(s) for s in problem.sizes)))[:50]
    costs, peaks = costs_and_peaks(problem, np.array(everything))
    for choices, cost, peak in zip(everything, costs, peaks, strict=True):
        one = cost_and_peak(problem, choices)
        assert one == pytest.approx((naive_cost(problem, choices), naive_peak(problem, choices)))
        assert (cost, peak) == pytest.approx(one)


@given(st.lists(st.none() | st.tuples(st.integers(-5, 9), st.integers(0, 9)), max_size=8))
def test_timeline_keeps_the_peak_and_no_dominated_step(
    pairs: list[tuple[int, int] | None],
) -> None:
    intervals = tuple(p and (p[0], p[0] + p[1]) for p in pairs)
    timeline = make_timeline(intervals)
    usages = np.arange(1.0, len(intervals) + 1)
    profile = timeline.profile(usages)
    assert profile.max(initial=0.0) == max(naive_profile(list(usages), intervals), default=0.0)
    live = [set(np.flatnonzero(timeline.covers(i)).tolist()) for i in range(timeline.steps.size)]
    for step, nodes in zip(timeline.steps.tolist(), live, strict=True):
        assert nodes == {v for v, i in enumerate(intervals) if i and i[0] <= step < i[1]}
    assert not any(a <= b for a, b in itertools.permutations(live, 2))


def test_the_optimum_of_a_problem_worked_by_hand() -> None:
    problem = Problem(
        costs=(np.array([1.0, 5.0]), np.array([2.0, 0.0]), np.array([0.0, 3.0])),
        edges=(
            CostEdge(source=0, target=1, matrix=np.array([[9.0, 4.0], [0.0, math.inf]])),
            CostEdge(source=2, target=1, matrix=np.array([[1.0, 1.0], [0.0, 8.0]])),
        ),
        usages=(np.array([4.0, 1.0]), np.array([2.0, 2.5]), np.array([3.0, 0.0])),
        intervals=((0, 2), (1, 4), (2, 3)),
        usage_limit=6,
    )
    assert cost_and_peak(problem, (0, 1, 0)) == (6.0, 7.0)  # 1 + 0 + 0 + 4 + 1; 4 + ceil(2.5)
    assert cost_and_peak(problem, (1, 0, 0)) == (8.0, 5.0)  # 5 + 2 + 0 + 0 + 1; 2 + 3
    assert cost_and_peak(problem, (1, 1, 0))[0] == math.inf


def test_arrays_are_taken_over_read_only_and_shared_ones_stay_shared() -> None:
    matrix = np.ones((2, 2))
    problem = Problem(
        costs=TWO,
        edges=tuple(CostEdge(source=0, target=1, matrix=matrix) for _ in range(2)),
    )
    assert problem.edges[0].matrix is problem.edges[1].matrix
    with pytest.raises(ValueError, match="read-only"):
        problem.edges[0].matrix[0, 0] = 5.0
    assert problem.flat.matrices.size == 4


def test_nodes_may_share_arrays_and_the_rows_of_one_array_stay_apart() -> None:
    costs, usages = np.array([1.0, 2.0]), np.array([0.5, 3.0])
    shared = Problem(costs=(costs,) * 3, usages=(usages,) * 3, usage_limit=9)
    assert shared.costs[0] is shared.costs[2]
    assert shared.usages[0] is shared.usages[2]
    assert shared.usages[0].tolist() == [1.0, 3.0]
    rows = Problem(costs=np.arange(200.0).reshape(100, 2))  # type: ignore[arg-type]
    assert [c.tolist() for c in rows.costs] == [[2.0 * v, 2.0 * v + 1] for v in range(100)]


def test_a_problem_without_intervals_counts_every_node_all_the_time() -> None:
    problem = Problem(costs=TWO, usages=(np.array([1, 2]), np.array([3, 4])), usage_limit=10)
    assert cost_and_peak(problem, (1, 1)) == (0.0, 6.0)
    assert problem.limit_is_slack


def _edge(source: int = 0, target: int = 1, shape: tuple[int, int] = (2, 2)) -> CostEdge:
    return CostEdge(source=source, target=target, matrix=np.zeros(shape))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"costs": ([1.0, math.nan],)}, "node 0 must be finite or +inf"),
        ({"costs": ([-math.inf],)}, "-inf"),
        ({"costs": ([],)}, "non-empty"),
        ({"costs": ([[1.0]],)}, "shape (1, 1)"),
        ({"costs": (["dear"],)}, "must be numbers"),
        ({"costs": TWO, "edges": (_edge(0, 0),)}, "two different nodes"),
        ({"costs": TWO, "edges": (_edge(0, 2),)}, "joins 0 and 2"),
        ({"costs": TWO, "edges": (_edge(shape=(2, 3)),)}, "must be 2 x 2"),
        ({"costs": TWO, "usages": (np.zeros(2),)}, "for all of its 2 nodes"),
        ({"costs": TWO, "usages": (np.zeros(2), np.zeros(3))}, "3 usages"),
        ({"costs": TWO, "usages": (np.zeros(2), np.array([1.0, -1.0]))}, "at least 0 bytes"),
        ({"costs": TWO, "usages": (np.zeros(2), np.array([1.0, np.inf]))}, "finite"),
        ({"costs": TWO, "usages": (np.zeros(2), np.zeros((1, 2)))}, "1 dimension"),
        ({"costs": TWO, "usages": (np.zeros(2), np.full(2, 2.0**53))}, "2**53"),
        ({"costs": TWO, "intervals": ((0, 1), (3, 2))}, "[3, 2)"),
        ({"costs": TWO, "usage_limit": 5.0}, "needs usages"),
        ({"costs": TWO, "usages": TWO, "usage_limit": -1.0}, "at least 0 bytes"),
        ({"costs": TWO, "names": ("a",)}, "names for all"),
    ],
)
def test_a_malformed_problem_is_refused_in_one_sentence(
    arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(ProblemError, match=re.escape(says)) as caught:
        Problem(**arguments)  # type: ignore[arg-type]
    message = str(caught.value)
    assert_one_sentence(message)


@pytest.mark.parametrize("choices", [(0,), (0, 2), (-1, 0)])
def test_choices_that_do_not_exist_are_refused(choices: tuple[int, ...]) -> None:
    with pytest.raises(ProblemError, match="choice"):
        cost_and_peak(Problem(costs=TWO), choices)


def test_the_gap_is_relative_to_the_cost() -> None:
    def answer(cost: float, bound: float, choices: tuple[int, ...] = (0,)) -> Assignment:
        return Assignment(
            choices=choices,
            cost=cost,
            lower_bound=bound,
            status=Status.FEASIBLE,
            peak_usage=0.0,
            solver="",
        )

    assert answer(10.0, 9.0).gap == pytest.approx(0.1)
    assert answer(-9.0, -10.0).gap == pytest.approx(1 / 9)
    assert answer(3.0, 3.0).gap == 0.0
    assert answer(0.0, -1.0).gap == math.inf
    assert answer(math.inf, 1.0, ()).gap == math.inf


def test_an_incumbent_keeps_what_is_better_and_tells_of_it() -> None:
    told: list[tuple[float, float]] = []
    known: Incumbent[str] = Incumbent(watch=lambda cost, bound: told.append((cost, bound)))
    assert not known.closed
    assert known.raise_bound(-5.0)
    assert not known.offer(None, 3.0)
    assert known.offer("first", 10.0)
    assert not known.offer("dearer", 10.0)
    assert not known.raise_bound(-5.0)
    assert not known.raise_bound(-5.0 + 1e-9), "kept, but not worth telling"
    assert known.raise_bound(9.0)
    assert known.offer("best", 9.0)
    assert told == [(math.inf, -5.0), (10.0, -5.0), (10.0, 9.0), (9.0, 9.0)]
    assert (known.choices, known.closed, known.infeasible) == ("best", True, False)
    nothing: Incumbent[str] = Incumbent(bound=math.inf)
    assert (nothing.closed, nothing.infeasible) == (True, True)
    note = Note.of("paths-fixed", paths=2)
    known.add_note(note)
    known.add_note(note)
    assert known.notes == [note]
