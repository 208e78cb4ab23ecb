"""CP-SAT on a core: fixing keeps what is cheaper, late rows lose nothing, bounds hold."""

from __future__ import annotations

import itertools
import math
import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cores import allowed, cores, make_core_with_limit, optimum, random_core
from random_problems import random_problem

from search import ProblemError
from search.core.core import Core, make_core
from search.core.fixing import Alive, best_prices, edges_of, what_is_alive
from search.cpsat import lazy_rows
from search.cpsat import model as cp_model
from search.cpsat.integers import GONE, classes_of, split_sums
from search.cpsat.lazy_rows import solve_core
from search.cpsat.model import Built
from search.presolve.reduction import presolve
from search.problem import interrupts
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent

SLACK = 1e-6
# No test waits that long unless something is broken. [s]
GENEROUS = 300.0


def knowing(core: Core, choices: np.ndarray | None, **more: Any) -> Incumbent[np.ndarray]:
    """What is known where there is an assignment to start from."""
    known: Incumbent[np.ndarray] = Incumbent(**more)
    if choices is not None and core.fits(choices):
        known.offer(choices, core.cost(choices))
    return known


def proven(found: Incumbent[np.ndarray]) -> bool:
    """Whether there is an assignment, proven to be a cheapest one."""
    return found.closed and found.choices is not None


def check(core: Core, found: Incumbent[np.ndarray], least: float) -> None:
    """What must hold of every answer, given the true optimum."""
    assert found.bound <= least + SLACK or proven(found)
    assert not found.infeasible or math.isinf(least)
    if found.choices is None:
        assert found.cost == math.inf
        return
    assert found.cost == core.cost(found.choices) >= least - SLACK
    assert core.fits(found.choices)
    if proven(found):
        assert found.cost == pytest.approx(least)


def fitting(core: Core) -> list[tuple[float, np.ndarray]]:
    """(cost, choices) of all assignments that are allowed and fit."""
    return [(c, x) for c, x in allowed(core) if (core.profile(x) <= core.limit).all()]


def wide(seed: int = 0) -> Core:
    """A core that takes CP-SAT more than a moment."""
    problem = random_problem(
        seed, "dag", num_nodes=30, candidates=(8, 8), forbidden=0, tightness=0.3
    )
    reduction = presolve(problem)
    assert reduction is not None
    return reduction.core


@pytest.mark.slow
@settings(max_examples=100)
@given(cores(), st.integers(0, 99))
def test_any_start_leads_to_the_optimum(core: Core, seed: int) -> None:
    everything = [x for _, x in allowed(core)]
    hint = everything[seed % len(everything)] if everything else None
    seen: list[tuple[float, float]] = []

    known = knowing(core, hint, watch=lambda cost, bound: seen.append((cost, bound)))
    found = solve_core(core, known=known, deadline=Deadline(None), seed=seed)
    assert found is known
    least = optimum(core)
    check(core, found, least)
    assert found.closed
    for before, after in itertools.pairwise(seen):
        assert after[0] <= before[0]
        assert after[1] >= before[1]
    assert all(bound <= least + SLACK <= cost + 2 * SLACK for cost, bound in seen)


@pytest.mark.slow
@settings(max_examples=100)
@given(cores())
def test_rows_that_come_late_lose_nothing(core: Core) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_rows, "PRICED_ROWS", 0)
        patch.setattr(lazy_rows, "ROWS_AT_ONCE", 1)
        found = solve_core(core, deadline=Deadline(None), seed=0)
    check(core, found, optimum(core))
    assert found.closed


@pytest.mark.slow
@settings(max_examples=60)
@given(cores())
def test_rounds_that_are_broken_off_end_all_the_same(core: Core) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_rows, "FIRST_SLICE", 1e-6)
        found = solve_core(core, deadline=Deadline(None), seed=0)
    check(core, found, optimum(core))
    assert found.closed


def test_only_rows_that_matter_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two candidates: cheap and large, or dear and small; only row 7 of 20 is full.
    holdings = [(v, v, v + 2, np.array([9.0, 0.0])) for v in range(19)]
    base = np.where(np.arange(20) == 7, 5.0, 0.0)
    core = make_core(
        [np.array([0.0, v + 1.0]) for v in range(19)], [], holdings, base=base, limit=20
    )
    seen: list[set[int]] = []
    build = lazy_rows.build_model

    def building(core: Core, alive: Alive, rows: list[int], **more: Any) -> Built:
        seen.append(set(rows))
        return build(core, alive, rows, **more)

    monkeypatch.setattr(lazy_rows, "build_model", building)
    found = solve_core(core, deadline=Deadline(None), seed=0)
    assert (found.cost, proven(found)) == (7.0, True)
    assert len(set().union(*seen)) <= 3


@pytest.mark.slow
@settings(max_examples=150)
@given(cores(), st.integers(0, 99))
def test_fixing_keeps_whatever_costs_no_more(core: Core, seed: int) -> None:
    ranked = sorted(fitting(core), key=lambda pair: pair[0])
    if not ranked:
        return
    cutoff = ranked[seed % len(ranked)][0]
    prices = best_prices(core, cutoff, Deadline(None)) * (1 + seed % 3) / 2
    alive = what_is_alive(core, prices, cutoff)
    assert alive.bound <= ranked[0][0] + SLACK
    for cost, choices in ranked:
        if cost <= cutoff:
            assert alive.candidates[core.graph.offsets[:-1] + choices].all()
            for edge, pairs in zip(edges_of(core), alive.pairs, strict=True):
                assert pairs[choices[edge.source], choices[edge.target]]


def test_fixing_leaves_little_when_the_bound_is_close() -> None:
    free = random_core(3, "tree", num_nodes=40, candidates=(6, 6), tightness=None)
    core = make_core_with_limit(free, 1e9)
    cost = solve_core(core, deadline=Deadline(None), seed=0).cost
    none = what_is_alive(core, np.zeros(core.num_rows), cost - 1)
    assert (none.num_pairs, none.candidates.any()) == (0, False)
    some = what_is_alive(core, np.zeros(core.num_rows), cost)
    assert 39 <= some.num_pairs < core.num_pairs / 10


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1))
def test_split_and_classes_say_what_the_matrix_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(1, 5, 2))
    repeated = rng.integers(0, 2, shape)[rng.integers(0, shape[0], 6)]
    matrix = repeated * 7 + rng.integers(0, 9, (6, 1)) + rng.integers(0, 9, (1, shape[1]))
    matrix = np.where(rng.random(matrix.shape) < 0.2, GONE, matrix)
    rest, ahead, back = split_sums(matrix)
    classes = classes_of(rest)
    again = classes.matrix[np.ix_(classes.rows, classes.columns)]
    assert (again == rest).all()
    assert (rest >= 0).all()
    kept = matrix != GONE
    assert (kept == (again != GONE)).all()
    assert ((again + ahead[:, None] + back)[kept] == matrix[kept]).all()


def test_rows_that_differ_by_a_constant_become_one_class() -> None:
    matrix = np.array([[1, 5, 2], [4, 8, 5], [0, 1, 9]]) + np.array([0, 3, 3])
    assert classes_of(split_sums(matrix)[0]).matrix.shape == (2, 3)


@pytest.mark.parametrize("seed", range(4))
def test_edges_that_only_forbid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    differ = np.where(np.eye(5) > 0, np.inf, 0.0)
    core = make_core(
        [np.floor(rng.uniform(0, 9, 5)) for _ in range(4)],
        [(a, b, differ) for a, b in itertools.combinations(range(4), 2)],
        [(v, 0, 1, np.floor(rng.uniform(0, 9, 5))) for v in range(4)],
        base=np.zeros(1),
        limit=12,
    )
    found = solve_core(core, deadline=Deadline(None), seed=0)
    assert proven(found)
    check(core, found, optimum(core))


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("work", [0.0, 0.05, 1.0])
def test_little_work_gives_a_bound_and_the_same_answer_on_every_run(work: float) -> None:
    core = wide()
    found = [solve_core(core, deadline=Deadline(None, work), seed=1) for _ in range(2)]
    assert found[0].stopped_by == "work limit"
    assert (found[0].cost, found[0].bound) == (found[1].cost, found[1].bound)
    fits = random_core(1, "dag", num_nodes=6, candidates=(4, 4), tightness=0.5)
    check(fits, solve_core(fits, deadline=Deadline(None, work), seed=1), optimum(fits))


def test_a_bound_found_elsewhere_and_no_time_at_all() -> None:
    core = random_core(1, "dag", num_nodes=6, candidates=(4, 4), tightness=0.5)
    least, choices = min(fitting(core), key=lambda pair: pair[0])
    known = knowing(core, choices, bound=least - 2)
    found = solve_core(core, known=known, deadline=Deadline(0.0), seed=0)
    assert (found.cost, found.bound, found.stopped_by) == (least, least - 2, "time limit")
    assert not found.closed
    known = knowing(core, choices, bound=least)
    found = solve_core(core, known=known, deadline=Deadline(0.0), seed=0)
    assert (found.stopped_by, found.closed) == ("", True)


@pytest.mark.slow
def test_a_signal_hands_in_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    core = wide()
    handler = signal.getsignal(signal.SIGINT)
    # The signal comes while CP-SAT searches: it has told of a solution, in a thread of its own.
    take = lazy_rows._Rounds._take

    def signalling(self: Any, built: Built, solution: Any) -> None:
        take(self, built, solution)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(lazy_rows._Rounds, "_take", signalling)
    with interrupts.listening():
        found = solve_core(core, deadline=Deadline(GENEROUS), seed=0)
    assert found.stopped_by == "interrupt"
    assert -math.inf < found.bound < found.cost
    assert signal.getsignal(signal.SIGINT) is handler


def test_too_many_pairs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cp_model, "MAX_PAIRS", 5)
    core = random_core(1, "dag", num_nodes=6, candidates=(4, 4), tightness=0.5)
    with pytest.raises(ProblemError, match="at most 5 pairs"):
        solve_core(core, deadline=Deadline(None), seed=0)
