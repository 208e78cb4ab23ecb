"""Exact solvers find the optimum, heuristics never beat it, and bounds hold."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cores import allowed, assignments, cores, optimum, with_holdings_apart
from random_problems import SHAPES, fitting, problems, random_problem

from search import (
    SOLVERS,
    Assignment,
    CostEdge,
    Note,
    Problem,
    ProblemError,
    Status,
    cost_and_peak,
    solve,
)
from search.core.core import Core, make_core
from search.core.pairwise_costs import pairwise_costs
from search.cpsat import integers
from search.cpsat.lazy_rows import solve_core
from search.elimination import buckets, tables
from search.elimination.buckets import eliminate, plan
from search.elimination.dual import Dual, tighten
from search.elimination.infeasible import least_usage_at
from search.elimination.marginals import min_marginals
from search.engine.narrow import search_narrow
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import Incumbent
from search.problem.local_moves import LocalState, cheap_start, improved


def close(value: float) -> Any:
    """Equal but for rounding."""
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def check(problem: Problem, answer: Assignment, optimum: float, *, exact: bool) -> None:
    """What must hold of every answer, given the true optimum."""
    assert answer.lower_bound <= optimum + 1e-9 * abs(optimum) or math.isinf(optimum)
    if answer.choices:
        cost, peak = cost_and_peak(problem, answer.choices)
        assert (answer.cost, answer.peak_usage) == (cost, peak)
        assert cost >= optimum - 1e-9
        assert problem.usage_limit is None or peak <= problem.usage_limit
    if answer.status == Status.OPTIMAL:
        assert answer.cost == close(optimum)
        assert answer.gap == 0
    if answer.status == Status.INFEASIBLE:
        assert math.isinf(optimum)
    if exact:
        expected = Status.INFEASIBLE if math.isinf(optimum) else Status.OPTIMAL
        assert answer.status == expected


@settings(max_examples=150)
@given(problems(limited=False))
def test_without_a_limit(problem: Problem) -> None:
    ranked = fitting(problem)
    least = ranked[0][0] if ranked else math.inf
    for name, solver in SOLVERS.items():
        try:
            answer = solver(problem)
        except ProblemError:
            assert name == "shortest-path"
            continue
        check(problem, answer, least, exact=name != "longest-path")


@pytest.mark.slow
@settings(max_examples=150)
@given(problems(limited=True))
def test_with_a_limit(problem: Problem) -> None:
    ranked = fitting(problem)
    least = ranked[0][0] if ranked else math.inf
    for name in ("auto", "cp-sat", "exhaustive", "lagrangian"):
        check(problem, SOLVERS[name](problem), least, exact=name != "lagrangian")
    if not problem.limit_is_slack:
        for name in ("elimination", "shortest-path", "longest-path"):
            with pytest.raises(ProblemError, match="use the solver"):
                SOLVERS[name](problem)


@pytest.mark.slow
@settings(max_examples=100)
@given(cores())
def test_cp_sat_on_a_core_without_a_hint(core: Core) -> None:
    found = solve_core(core, deadline=Deadline(None), seed=0)
    best = optimum(core)
    assert found.infeasible == math.isinf(best)
    if not math.isinf(best):
        assert found.closed
        assert found.cost == close(best)
        assert found.choices is not None
        assert (core.profile(found.choices) <= core.limit).all()


@settings(max_examples=150)
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
            assert value == close(least)


@pytest.mark.slow
@settings(max_examples=100)
@given(cores(), st.sampled_from([1e-10, 0.3]))
def test_rounded_costs_still_bound_the_optimum(core: Core, rounding: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integers, "TARGET_ROUNDING", rounding)
        found = solve_core(core, deadline=Deadline(None, 5.0), seed=0)
    assert found.bound <= optimum(core) + 1e-6


@pytest.mark.slow
@settings(max_examples=60)
@given(cores())
def test_a_core_end_to_end(core: Core) -> None:
    flat = pairwise_costs(core).flat
    for choices in assignments(core):
        assert flat.profile(choices).tolist() == core.profile(choices).tolist()
        assert flat.fits(choices) == core.fits(choices)
        if not core.forbids(choices):
            assert flat.cost(choices) == close(core.cost(choices))
        else:
            assert flat.cost(choices) == math.inf


@settings(max_examples=60)
@given(cores())
def test_the_least_usage_of_every_row(core: Core) -> None:
    pairs = pairwise_costs(core)
    order = plan(pairs)
    profiles = [core.profile(x) for _, x in allowed(core)]
    for row in range(core.num_rows):
        found = least_usage_at(pairs, row, order)
        assert found.bound == min(profile[row] for profile in profiles)
        assert core.profile(np.array(found.choices))[row] == found.bound
        assert least_usage_at(pairs, row, None).bound <= found.bound
        with pytest.raises(OutOfTime):
            least_usage_at(pairs, row, order, Deadline(0.0))


@pytest.mark.slow
@settings(max_examples=100)
@given(cores(), st.integers(0, 2**32 - 1))
def test_prices_on_a_core_bound_its_optimum(core: Core, seed: int) -> None:
    pairs, best = pairwise_costs(core), optimum(core)
    dual = Dual(problem=pairs, order=plan(pairs))
    rng = np.random.default_rng(seed)
    for scale in (0.0, 0.1, 1.0, 100.0):
        dual.probe(rng.uniform(0, scale, core.num_rows), Deadline(None))
    assert dual.known.bound <= best + 1e-9 * abs(best) or math.isinf(best)
    tighten(dual, deadline=Deadline(None))
    known = dual.known
    assert known.bound <= best + 1e-9 * abs(best) or math.isinf(best)
    assert dual.shortage is None or math.isinf(best)
    if known.choices is not None:
        assert core.fits(np.array(known.choices))
        assert core.cost(np.array(known.choices)) == close(known.cost)
        assert known.cost >= best - 1e-9


@settings(max_examples=100)
@given(cores(), st.integers(0, 2**32 - 1))
def test_local_moves_on_a_core(core: Core, seed: int) -> None:
    """With several holdings of a node, all of which a move must respect."""
    apart = with_holdings_apart(core)
    pairs = pairwise_costs(apart)
    start = np.random.default_rng(seed).integers(0, apart.graph.sizes)
    found = improved(pairs, start.tolist())
    if found is None:
        assert not apart.fits(start)
        return
    choices = np.array(found)
    assert apart.fits(choices)
    assert not apart.fits(start) or apart.cost(choices) <= apart.cost(start) + 1e-9
    state = LocalState(pairs.flat, found)
    for node, size in enumerate(apart.graph.sizes.tolist()):
        moved = [[*found[:node], candidate, *found[node + 1 :]] for candidate in range(size)]
        over = [apart.is_over(np.array(x)) for x in moved]
        assert state.affordable(node).tolist() == [not is_over for is_over in over]
        allowed_costs = [apart.cost(np.array(x)) for x in moved if not apart.forbids(np.array(x))]
        assert min(state.of(node)) - state.of(node)[found[node]] == close(
            min(allowed_costs) - apart.cost(choices)
        )
    state.move(0, 0)
    assert state.profile.tolist() == apart.profile(state.choices).tolist()


@pytest.mark.slow
@settings(max_examples=150)
@given(cores())
def test_the_search_of_narrow_cores_is_exact(core: Core) -> None:
    known, best = searched(core), optimum(core)
    assert known.closed
    assert known.infeasible == math.isinf(best)
    if known.choices is not None:
        assert core.fits(known.choices)
        assert core.cost(known.choices) == close(known.cost) == close(best)


@settings(max_examples=60)
@given(cores(), st.integers(0, 40), st.sampled_from([KeyboardInterrupt, OutOfTime]))
def test_the_search_of_narrow_cores_cut_short(
    core: Core, after: int, stop: type[BaseException]
) -> None:
    """At any look at the clock: what is handed in fits, and its bound holds."""
    looks = itertools.count()

    def check(deadline: Deadline) -> None:
        if next(looks) >= after:
            raise stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deadline, "check", check)
        known = searched(core)
    best = optimum(core)
    assert known.bound <= best + 1e-9 * abs(best) or math.isinf(best)
    if known.choices is not None:
        assert core.fits(known.choices)
        assert core.cost(known.choices) == close(known.cost)
    assert known.closed or known.stopped_by


def searched(core: Core) -> Incumbent[np.ndarray]:
    """What the search of narrow cores finds, however little there is to limit."""
    known: Incumbent[np.ndarray] = Incumbent()
    pairs = pairwise_costs(core)
    search_narrow(core, known, pairs, plan(pairs), deadline=Deadline(None), seed=0)
    return known


def test_min_sum_in_chunks() -> None:
    rng = np.random.default_rng(0)
    shape = (70, 60, 50)
    parts = [
        ((0,), rng.random(70)),
        ((0, 1), rng.random((70, 60))),
        ((0, 2), rng.random((70, 50))),
    ]
    assert np.prod(shape) > tables.CHUNK_ELEMENTS
    a, b, c = (array for _, array in parts)
    whole = (a[:, None, None] + b[:, :, None] + c[:, None, :]).min(axis=0)
    assert np.allclose(tables.min_sum(parts, shape), whole, rtol=1e-14)
    full = rng.random(shape)
    found = tables.min_sum([*parts, ((0, 1, 2), full)], shape)
    assert np.allclose(found, (a[:, None, None] + b[:, :, None] + c[:, None] + full).min(axis=0))


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
    loose = random_problem(3, "dag", num_nodes=8, candidates=(4, 4), forbidden=0, tightness=0.95)
    assert solve(loose).solver == "presolve > elimination"


@pytest.mark.parametrize("seed", [4, 6])
def test_two_ways_to_the_optimum_of_a_larger_tight_problem(seed: int) -> None:
    problem = random_problem(
        seed, "series-parallel", num_nodes=16, candidates=(5, 5), forbidden=0, tightness=0.3
    )
    answer = solve(problem)
    assert answer.solver == "presolve > lagrangian > fixing > cp-sat"
    assert answer.status == Status.OPTIMAL
    assert solve(problem, solver="cp-sat").cost == pytest.approx(answer.cost)


def test_auto_falls_back_where_elimination_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(2, "dag", num_nodes=8, candidates=(6, 6), forbidden=0)
    least = solve(problem, solver="elimination").cost
    monkeypatch.setattr(buckets, "MAX_ELEMENTS", 500.0)
    with pytest.raises(ProblemError, match=r"would join \d nodes in one table"):
        solve(problem, solver="elimination")
    answer = solve(problem)
    assert answer.solver.startswith("presolve > prices > dives")
    assert answer.notes[0] == Note.of("too-wide", elements=500.0)
    assert answer.cost == pytest.approx(least)


@pytest.mark.parametrize("name", ["auto", "cp-sat", "lagrangian", "exhaustive"])
def test_what_is_watched_only_gets_better(name: str) -> None:
    problem = random_problem(2, "dag", num_nodes=7, candidates=(6, 6), tightness=0.3)
    seen: list[tuple[float, float]] = []
    answer = solve(problem, solver=name, watch=lambda cost, bound: seen.append((cost, bound)))
    assert seen[-1] == (answer.cost, answer.lower_bound)
    assert [c for c, _ in seen] == sorted((c for c, _ in seen), reverse=True)
    assert [b for _, b in seen] == sorted(b for _, b in seen)


def test_exhaustive_refuses_what_would_take_too_long() -> None:
    problem = Problem(costs=tuple(np.zeros(10) for _ in range(7)))
    with pytest.raises(ProblemError, match="1e\\+07"):
        solve(problem, solver="exhaustive")


def test_an_empty_problem_costs_nothing() -> None:
    for name, solver in SOLVERS.items():
        answer = solver(Problem(costs=()))
        assert (answer.status, answer.cost, answer.choices) == (Status.OPTIMAL, 0.0, ()), name
        assert answer.gap == 0


def test_a_cycle_is_no_chain_and_no_dag() -> None:
    pairs = [(0, 1), (1, 2), (2, 0)]
    problem = Problem(
        costs=tuple(np.zeros(2) for _ in range(3)),
        edges=tuple(CostEdge(source=a, target=b, matrix=np.eye(2)) for a, b in pairs),
        names=("a", "b", "c"),
    )
    with pytest.raises(ProblemError, match="branch"):
        solve(problem, solver="shortest-path")
    with pytest.raises(ProblemError, match="a lies on or behind one"):
        solve(problem, solver="longest-path")
    assert solve(problem).cost == 1.0


def test_longest_path_fixes_the_most_expensive_branch_first() -> None:
    # 0 -> 1 -> 3 and 0 -> 2 -> 3; node 1 is dear, so 0, 1 and 3 are fixed without regard to 2.
    agree = np.array([[0.0, 1.0], [1.0, 0.0]])
    force = np.array([[50.0, 50.0], [0.0, 0.0]])
    problem = Problem(
        costs=(np.zeros(2), np.array([9.0, 10.0]), np.zeros(2), np.zeros(2)),
        edges=(
            CostEdge(source=0, target=1, matrix=agree),
            CostEdge(source=1, target=3, matrix=agree),
            CostEdge(source=0, target=2, matrix=force),
            CostEdge(source=2, target=3, matrix=agree),
        ),
    )
    answer = solve(problem, solver="longest-path")
    assert answer.choices == (0, 0, 0, 0)
    assert (answer.cost, answer.lower_bound) == (59.0, 9.0)
    assert solve(problem).cost == 10.0


def test_longest_path_says_where_it_got_stuck() -> None:
    problem = Problem(
        costs=(np.array([0.0, 1.0]), np.zeros(1), np.zeros(1)),
        edges=(
            CostEdge(source=0, target=1, matrix=np.zeros((2, 1))),
            CostEdge(source=0, target=2, matrix=np.array([[np.inf], [0.0]])),
        ),
    )
    answer = solve(problem, solver="longest-path")
    assert answer.status == Status.UNKNOWN
    assert answer.notes == (Note.of("dead-end", node="node 0"),)
    assert solve(problem).cost == 1.0


def test_repeated_blocks_share_their_tables() -> None:
    rng = np.random.default_rng(0)
    cost, inner, outer = rng.random(5), rng.random((5, 5)), rng.random((5, 5))
    edges = []
    for low in range(0, 40, 4):
        edges += [CostEdge(source=low + i, target=low + i + 1, matrix=inner) for i in range(4)]
        edges.append(CostEdge(source=low, target=low + 4, matrix=outer))
    problem = Problem(costs=(cost,) * 41, edges=tuple(edges))
    made = eliminate(problem, plan(problem)).buckets
    inside = [b for b in made if b.node % 4]
    # Only the first and the last block may differ from the others.
    assert len(inside) == 30
    assert len({id(b.message) for b in inside}) <= 9


def test_a_solver_that_does_not_exist() -> None:
    with pytest.raises(ProblemError, match="'simplex'; choose one"):
        solve(Problem(costs=()), solver="simplex")


def test_a_core_without_rows() -> None:
    costs = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    edges = [(0, 1, np.array([[9.0, 9.0], [0.0, 9.0]]))]
    core = make_core(costs, edges, [], base=np.zeros(0), limit=np.inf, constant=7.0)
    pairs = pairwise_costs(core)
    assert pairs.flat.cost([1, 0]) == 12.0
    assert cheap_start(pairs) == [1, 0]


@settings(max_examples=60)
@given(problems(limited=True))
def test_the_engine_for_wide_problems_agrees(problem: Problem) -> None:
    ranked = fitting(problem)
    least = ranked[0][0] if ranked else math.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "MAX_ELEMENTS", 1.0)
        check(problem, solve(problem), least, exact=True)
