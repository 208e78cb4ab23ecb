"""A reduction keeps the optimum, leads there and back exactly, and lets go what can go."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cores import allowed, assignments, cores, optimum
from random_problems import fitting, naive_cost, naive_peak, problems

from search import CostEdge, Problem, cost_and_peak
from search.core.core import Core, make_core
from search.presolve.reduction import Reduction, presolve, shrink
from search.presolve.rows import drop_rows
from search.presolve.state import State
from search.presolve.tables import Pool
from search.problem.deadline import Deadline


def structured_problem(seed: int) -> Problem:
    """A problem in which many nodes decide each other, with usages that repeat and vanish."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    sizes = rng.integers(1, 5, n)
    top = int(rng.choice([3, 12]))

    def costs(*size: int) -> np.ndarray:
        return rng.integers(0, top, size).astype(float)

    edges = []
    for _ in range(int(rng.integers(0, 2 * n))):
        a, b = sorted(rng.choice(n, 2, replace=False).tolist())
        kind = rng.random()
        if kind < 0.3:  # one decides the other
            matrix = np.full((sizes[a], sizes[b]), np.inf)
            rows = np.arange(sizes[a])
            matrix[rows, rng.integers(0, sizes[b], sizes[a])] = costs(sizes[a])
        elif kind < 0.45:  # a sum of both
            matrix = costs(sizes[a])[:, None] + costs(sizes[b])
        else:
            matrix = np.where(rng.random((sizes[a], sizes[b])) < 0.1, np.inf, 0.0)
            matrix = matrix + costs(sizes[a], sizes[b])
        edges.append(CostEdge(source=a, target=b, matrix=matrix))
    # Some nodes can only use less at a higher cost.
    falling = rng.random(n) < 0.5
    usages = [
        np.arange(s)[::-1] * 3.0 if f else rng.integers(0, rng.choice([2, 9]), s).astype(float)
        for s, f in zip(sizes, falling, strict=True)
    ]
    bounds = np.sort(rng.integers(0, 8, (n, 2)), axis=1).tolist()
    most = naive_peak(_held(sizes, usages, bounds), tuple(int(u.argmax()) for u in usages))
    least = naive_peak(_held(sizes, usages, bounds), tuple(int(u.argmin()) for u in usages))
    return Problem(
        costs=tuple(np.arange(s) * 2.0 * f + costs(s) for s, f in zip(sizes, falling, strict=True)),
        edges=tuple(edges),
        usages=tuple(usages),
        intervals=tuple((a, b) for a, b in bounds),
        usage_limit=least + float(rng.choice([0.1, 0.3, 0.6])) * (most - least),
    )


def _held(sizes: np.ndarray, usages: list[np.ndarray], bounds: list[list[int]]) -> Problem:
    return Problem(
        costs=tuple(np.zeros(s) for s in sizes),
        usages=tuple(usages),
        intervals=tuple((a, b) for a, b in bounds),
    )


def fits(core: Core, choices: np.ndarray) -> bool:
    """Whether no row exceeds the limit."""
    return bool((core.profile(choices) <= core.limit).all())


def check(problem: Problem, reduction: Reduction | None) -> None:
    """The optimum stays; every assignment costs and fits alike on both sides."""
    ranked = fitting(problem)
    if reduction is None:
        assert not ranked
        return
    core = reduction.core
    least = ranked[0][0] if ranked else math.inf
    assert optimum(core) == pytest.approx(least)
    costs = {tuple(x.tolist()): cost for cost, x in allowed(core)}
    for choices in assignments(core):
        restored = reduction.restore(choices)
        assert naive_cost(problem, tuple(restored)) == pytest.approx(
            costs.get(tuple(choices.tolist()), math.inf)
        )
        limit = math.inf if problem.usage_limit is None else problem.usage_limit
        assert fits(core, choices) == (naive_peak(problem, tuple(restored)) <= limit)
        back = reduction.reduce(restored)
        assert back is not None
        assert back.tolist() == choices.tolist()


@settings(max_examples=150, deadline=None)
@given(problems(limited=True, max_tightness=1.2))
def test_the_optimum_stays_under_a_limit(problem: Problem) -> None:
    check(problem, presolve(problem))


@settings(max_examples=60, deadline=None)
@given(problems(limited=False))
def test_the_optimum_stays_without_a_limit(problem: Problem) -> None:
    check(problem, presolve(problem))


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_optimum_stays_where_nodes_decide_each_other(seed: int) -> None:
    problem = structured_problem(seed)
    check(problem, presolve(problem))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_deadline_stops_at_a_problem_with_the_same_optimum(seed: int) -> None:
    problem = structured_problem(seed)
    check(problem, presolve(problem, deadline=Deadline(0.0)))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(cores(), st.integers(0, 2**32 - 1), st.sampled_from([0.6, 0.9, 1.0]))
def test_shrinking_keeps_the_optimum_of_what_is_kept(core: Core, seed: int, share: float) -> None:
    alive = np.random.default_rng(seed).random(core.costs.size) < share
    best = math.inf
    for cost, choices in allowed(core):
        if alive[core.graph.offsets[:-1] + choices].all() and fits(core, choices):
            best = min(best, cost)
    reduction = shrink(core, alive)
    if reduction is None:
        assert best == math.inf
        return
    assert optimum(reduction.core) == pytest.approx(best)
    for cost, choices in allowed(reduction.core):
        restored = np.array(reduction.restore(choices), dtype=np.int64)
        assert alive[core.graph.offsets[:-1] + restored].all()
        assert core.cost(restored) == pytest.approx(cost)
        assert fits(core, restored) == fits(reduction.core, choices)
        back = reduction.reduce(restored)
        assert back is not None
        assert back.tolist() == choices.tolist()


def test_a_chain_without_a_limit_is_solved_outright() -> None:
    rng = np.random.default_rng(0)
    problem = Problem(
        costs=tuple(rng.integers(0, 9, 4).astype(float) for _ in range(6)),
        edges=tuple(
            CostEdge(source=v, target=v + 1, matrix=rng.integers(0, 9, (4, 4)).astype(float))
            for v in range(5)
        ),
    )
    reduction = presolve(problem)
    assert reduction is not None
    assert reduction.core.num_nodes == 0
    cost, choices = fitting(problem)[0]
    assert reduction.core.constant == cost
    assert cost_and_peak(problem, reduction.restore([]))[0] == cost
    assert len(choices) == len(reduction.restore([]))


def trade_off(size: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Costs that rise, and usages that fall."""
    return np.arange(size) * 2.0, np.arange(size)[::-1] * 4.0


def test_what_must_be_weighed_stays() -> None:
    costs, usage = trade_off()
    problem = Problem(
        costs=(costs, costs),
        edges=(CostEdge(source=0, target=1, matrix=np.array([[0, 5, 1], [2, 0, 9], [0, 3, 0.0]])),),
        usages=(usage, usage),
        usage_limit=9,
    )
    reduction = presolve(problem)
    assert reduction is not None
    assert reduction.core.graph.sizes.tolist() == [3, 3]
    assert reduction.core.num_rows == 1
    assert reduction.nodes == (0, 1)


def test_candidates_go_that_are_forbidden_alone_or_too_large() -> None:
    costs, usage = trade_off(4)
    matrix = np.array([[0, 7, 1, 9], [7, 0, 9, 3], [2, 9, 0, 4], [math.inf] * 4])
    problem = Problem(
        costs=(costs, costs + np.array([0, math.inf, 0, 0])),
        edges=(CostEdge(source=0, target=1, matrix=matrix),),
        usages=(usage, usage + 2),
        usage_limit=19,
    )
    reduction = presolve(problem)
    assert reduction is not None
    # 3 of node 0 has no partner, so node 0 uses 4 at least; 1 of node 1 is forbidden.
    kept = dict(zip(reduction.nodes, (k.tolist() for k in reduction.kept), strict=True))
    assert kept == {0: [0, 1, 2], 1: [0, 2, 3]}
    assert reduction.reduce([3, 0]) is None
    assert reduction.reduce([0, 1]) is None
    reduction = presolve(
        Problem(costs=problem.costs, edges=problem.edges, usages=problem.usages, usage_limit=16)
    )
    assert reduction is not None
    # Beside the least of the other, 4, node 1 may use 12 and not 14.
    kept = dict(zip(reduction.nodes, (k.tolist() for k in reduction.kept), strict=True))
    assert kept[1] == [2, 3]


def test_a_node_that_another_one_decides_takes_its_holdings_along() -> None:
    costs, usage = trade_off()
    tie = np.where(np.eye(3) > 0, 1.0, math.inf)
    far = np.array([[0, 5, 1], [2, 0, 9], [0, 3, 0.0]])
    problem = Problem(
        costs=(costs, np.zeros(3), costs),
        edges=(
            CostEdge(source=0, target=1, matrix=tie),
            CostEdge(source=1, target=2, matrix=far),
            CostEdge(source=0, target=2, matrix=far),
        ),
        usages=(usage, usage, usage),
        intervals=((0, 2), (1, 4), (0, 4)),
        usage_limit=17,
    )
    reduction = presolve(problem)
    assert reduction is not None
    assert reduction.core.num_nodes == 2
    assert reduction.core.graph.neighbours.size == 2
    # Both are held at time 1 only, and there is always more in use than at any other time.
    assert reduction.core.num_rows == 1
    check(problem, reduction)


def test_nothing_that_fits_is_reported() -> None:
    costs, usage = trade_off()
    problem = Problem(costs=(costs, costs), usages=(usage + 1, usage), usage_limit=0)
    assert presolve(problem) is None
    forbidden = Problem(
        costs=(np.zeros(2), np.zeros(2)),
        edges=(CostEdge(source=0, target=1, matrix=np.full((2, 2), math.inf)),),
    )
    assert presolve(forbidden) is None
    core = make_core([np.zeros(2)], [], [], base=np.zeros(0), limit=math.inf)
    assert shrink(core, np.zeros(2, dtype=bool)) is None


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_rows_that_are_left_decide_for_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool, num_rows, num_nodes = Pool(), 12, 4
    base = rng.integers(0, 9, num_rows).astype(float)
    state = State(
        pool, [pool.table(np.zeros(3))] * num_nodes, base=base, limit=math.inf, constant=0.0
    )
    holdings = []
    for node in range(num_nodes):
        for _ in range(int(rng.integers(0, 6))):
            first, last = sorted(rng.choice(num_rows + 1, 2, replace=False).tolist())
            holdings.append((node, first, last, rng.integers(0, 9, 3).astype(float)))
            state.hold(node, first, last, pool.table(holdings[-1][3]))
    whole = make_core([np.zeros(3)] * num_nodes, [], holdings, base=base, limit=0.0)
    peaks = [whole.profile(x).max() for x in assignments(whole)]
    state.limit = float(np.quantile(peaks, rng.uniform(0.2, 0.9)))
    if whole.base.max() > state.limit:
        return
    drop_rows(state)
    left = [(v, *held[:2], held[2].array) for v in range(num_nodes) for held in state.segments(v)]
    rest = make_core([np.zeros(3)] * num_nodes, [], left, base=state.base(), limit=state.limit)
    for choices, peak in zip(assignments(whole), peaks, strict=True):
        over = rest.profile(choices).max(initial=0.0)
        assert (over > state.limit) == (peak > state.limit)
        assert over == peak or peak <= state.limit


def test_rows_go_that_others_imply_though_they_are_not_next_to_each_other() -> None:
    pool = Pool()
    high, low = pool.table(np.array([0.0, 9.0])), pool.table(np.array([0.0, 3.0]))
    costs = [pool.table(np.zeros(2))] * 2
    state = State(pool, costs, base=np.array([5.0, 5, 12]), limit=13.0, constant=0.0)
    for node, row, usage in ((0, 0, high), (0, 1, low), (1, 1, high), (0, 2, high)):
        state.hold(node, row, row + 1, usage)
    # Node 0 uses as much in the last row as in the first, and less in the one between them.
    assert drop_rows(state)
    assert state.num_rows == 2
    assert [state.segments(v) for v in range(2)] == [[(0, 1, low), (1, 2, high)], [(0, 1, high)]]


def test_a_hub_collects_what_its_leaves_hold() -> None:
    costs, usage = trade_off()
    leaves = 300
    tie = np.where(np.eye(3) > 0, 0.0, math.inf)
    problem = Problem(
        costs=(costs, *(np.ones(3) for _ in range(leaves))),
        edges=tuple(CostEdge(source=0, target=v + 1, matrix=tie) for v in range(leaves)),
        usages=(usage,) * (leaves + 1),
        intervals=((0, 1), *((v, v + 2) for v in range(leaves))),
        usage_limit=20,
    )
    reduction = presolve(problem)
    assert reduction is not None
    # At any time two leaves are held at once: 8 each is allowed, with the hub itself it is not.
    assert reduction.core.num_nodes == 0
    assert reduction.restore([]) == [0] * (leaves + 1)
    assert reduction.core.constant == leaves


def test_what_is_alike_is_stored_once_and_every_run_is_the_same() -> None:
    costs, usage = trade_off()
    matrix = np.array([[0, 5, 1], [2, 0, 9], [0, 3, 0.0]])
    problem = Problem(
        costs=(costs,) * 5,
        edges=tuple(CostEdge(source=v, target=(v + 1) % 5, matrix=matrix) for v in range(5)),
        usages=(usage,) * 5,
        usage_limit=25,
    )
    first, second = presolve(problem), presolve(problem)
    assert first is not None
    assert second is not None
    assert first.core.num_nodes == 5
    assert first.core.graph.matrices.size == 2 * matrix.size
    for one, other in zip(first.core.graph, second.core.graph, strict=True):
        assert np.array_equal(one, other)


def test_forbidden_pairs_cost_more_than_allowed_ones() -> None:
    matrix = np.array([[1000.0, math.inf], [1000.0, 1000.0]])
    core = make_core(
        [np.zeros(2), np.zeros(2)], [(0, 1, matrix)], [], base=np.zeros(0), limit=math.inf
    )
    assert len(allowed(core)) == 3
    assert core.cost(np.array([0, 1])) > core.cost(np.array([0, 0]))
