"""Nothing fits, time is up, or someone interrupts: all are answers."""

from __future__ import annotations

import itertools
import math
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from random_problems import naive_peak, problems, random_problem

from planner.notes import words
from search import SOLVERS, CostEdge, Note, Problem, Status, cost_and_peak, k_best, solve
from search.cpsat import lazy_rows
from search.elimination import buckets, tables

# No test waits that long unless something is broken. [s]
GENEROUS = 300.0
TIGHT = ("auto", "cp-sat", "lagrangian", "exhaustive")


@settings(max_examples=150)
@given(problems(limited=True, max_tightness=0.1))
def test_a_shortage_is_a_bound_on_the_peak(problem: Problem) -> None:
    answer = solve(problem)
    if answer.shortage is None:
        return
    shortage = answer.shortage
    allowed = (
        x
        for x in itertools.product(*(range(s) for s in problem.sizes))
        if cost_and_peak(problem, x)[0] < math.inf
    )
    least = min((naive_peak(problem, x) for x in allowed), default=math.inf)
    assert answer.status == Status.INFEASIBLE
    assert shortage.usage_limit < shortage.peak_bound <= least
    assert shortage.missing == shortage.peak_bound - shortage.usage_limit >= 1
    assert shortage.time_step in problem.timeline.steps
    held = [usage for _, usage in shortage.holders]
    assert held == sorted(held, reverse=True)


def test_a_shortage_names_the_step_the_bytes_and_the_nodes() -> None:
    problem = Problem(
        costs=tuple(np.zeros(2) for _ in range(3)),
        # What uses little in b is forbidden beside what uses little in a.
        edges=(CostEdge(source=0, target=1, matrix=np.array([[np.inf, 0.0], [0.0, 0.0]])),),
        usages=(np.array([10.0, 60.0]), np.array([10.0, 90.0]), np.array([5.0, 7.0])),
        intervals=((0, 4), (2, 6), (3, 5)),
        usage_limit=70,
        names=("a", "b", "c"),
    )
    for name in TIGHT:
        answer = solve(problem, solver=name)
        assert answer.status == Status.INFEASIBLE
        assert answer.choices == ()
        assert answer.shortage is not None
        assert answer.shortage.time_step == 3
        assert answer.shortage.missing == 5
        assert answer.shortage.holders[:2] == (("a", 60.0), ("b", 10.0))
        facts = dict(answer.notes[-1].facts)
        assert answer.notes[-1].kind == "shortage"
        assert (facts["time_step"], facts["needed"], facts["limit"]) == (3, 75, 70)
        assert facts["missing"] == 5
        assert "needs at least 75 bytes of 70, 5 too many; most is held by a (60 bytes)" in words(
            answer.notes[-1]
        )
    assert k_best(problem, 3) == []


def test_two_steps_that_fit_alone_but_not_together() -> None:
    problem = Problem(
        costs=(np.zeros(2), np.zeros(1), np.zeros(2)),
        # The two must differ, but each step has room only for the small candidate.
        edges=(CostEdge(source=0, target=2, matrix=np.array([[np.inf, 0.0], [0.0, np.inf]])),),
        usages=(np.array([1.0, 9.0]), np.array([4.0]), np.array([1.0, 9.0])),
        intervals=((0, 2), (0, 9), (5, 7)),
        usage_limit=10,
    )
    for name in ("auto", "cp-sat"):
        answer = solve(problem, solver=name)
        assert answer.status == Status.INFEASIBLE
        assert answer.shortage is not None
        assert answer.shortage.peak_bound == 13
    assert solve(problem, solver="lagrangian").status in (Status.UNKNOWN, Status.INFEASIBLE)


@pytest.mark.parametrize("limit", [None, 100.0])
def test_forbidden_costs_are_told_from_a_lack_of_room(limit: float | None) -> None:
    problem = Problem(
        costs=(np.zeros(2), np.zeros(2)),
        edges=(CostEdge(source=0, target=1, matrix=np.full((2, 2), np.inf)),),
        usages=() if limit is None else (np.array([1.0, 80.0]),) * 2,
        usage_limit=limit,
        names=("left", "right"),
    )
    for name, solver in SOLVERS.items():
        if limit is not None and name not in TIGHT:
            continue
        answer = solver(problem)
        assert answer.status == Status.INFEASIBLE, name
        assert answer.shortage is None
        node = dict(answer.notes[-1].facts)["node"]
        assert answer.notes[-1] == Note.of("node-forbidden", node=node)
        assert node in ("left", "right")


def test_pairs_that_exclude_one_another_round_a_cycle() -> None:
    differ = np.array([[np.inf, 0.0], [0.0, np.inf]])
    problem = Problem(
        costs=tuple(np.zeros(2) for _ in range(3)),
        edges=tuple(
            CostEdge(source=a, target=b, matrix=differ) for a, b in ((0, 1), (1, 2), (0, 2))
        ),
    )
    assert solve(problem).notes == (Note.of("pairs-forbidden"),)


@pytest.mark.parametrize("tightness", [None, 0.4])
def test_no_time_at_all_still_gives_a_marked_answer(tightness: float | None) -> None:
    shape = "chain" if tightness is None else "dag"
    problem = random_problem(
        4, shape, num_nodes=9, candidates=(4, 4), forbidden=0, tightness=tightness
    )
    optimum = solve(problem).cost
    for name, solver in SOLVERS.items():
        if tightness is not None and name not in TIGHT:
            continue
        answer = solver(problem, time_limit=0.0)
        assert answer.stopped_by == "time limit" or answer.status == Status.OPTIMAL, name
        assert answer.lower_bound <= optimum + 1e-9
        assert answer.cost >= optimum - 1e-9
        assert answer.choices or answer.status == Status.UNKNOWN
    assert all(a.stopped_by == "time limit" for a in k_best(problem, 4, time_limit=0.0))


def _interrupting(real: Callable[..., object], after: int) -> Callable[..., object]:
    calls = itertools.count()

    def call(*args: object, **kwargs: object) -> object:
        if next(calls) >= after:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    return call


@pytest.mark.parametrize("after", [0, 1, 3, 30, 60])
@pytest.mark.parametrize("name", ["auto", "elimination", "lagrangian"])
def test_an_interrupt_gives_a_marked_answer(
    name: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(
        6,
        "series-parallel",
        num_nodes=12,
        candidates=(4, 4),
        forbidden=0,
        tightness=None if name == "elimination" else 0.3,
    )
    optimum = solve(problem).cost
    monkeypatch.setattr(buckets, "min_sum", _interrupting(tables.min_sum, after))
    answer = solve(problem, solver=name)
    assert answer.stopped_by == "interrupt" or answer.status == Status.OPTIMAL
    assert answer.cost >= optimum - 1e-9
    assert answer.lower_bound <= optimum + 1e-9
    if after == 0:
        assert answer.stopped_by == "interrupt"


def test_notes_are_single_sentences_in_words() -> None:
    problem = random_problem(0, "dag", num_nodes=4, tightness=-0.1, forbidden=0)
    for name in TIGHT:
        for note in solve(problem, solver=name).notes:
            assert words(note).endswith(".")
            assert not re.search(r"\. [A-Z]", words(note))


def hard() -> Problem:
    """A problem that takes CP-SAT long."""
    return random_problem(0, "dag", num_nodes=30, candidates=(8, 8), forbidden=0, tightness=0.3)


# In a process of its own, so that no signal can reach another test: the signal comes once CP-SAT
# has been started so often, and is raised in the main thread, where the system delivers it.
SIGNALLED = """
import signal, sys
from concurrent.futures import ThreadPoolExecutor
sys.path.insert(0, "tests/search")
from random_problems import random_problem
from test_stops import hard
from search import solve
from search.cpsat import run

signal.signal(signal.SIGINT, signal.default_int_handler)
# An earlier run of CP-SAT must not have taken the signal away.
solve(random_problem(0, "dag", num_nodes=5, forbidden=0, tightness=0.4), solver="cp-sat")
started = []

class Signalled(ThreadPoolExecutor):
    def submit(self, *args, **more):
        started.append(super().submit(*args, **more))
        signal.raise_signal(signal.SIGINT)
        return started[-1]

run.ThreadPoolExecutor = Signalled
answer = solve(hard(), solver=sys.argv[1])
print(answer.stopped_by, answer.status, len(started))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["auto", "cp-sat"])
def test_a_signal_that_comes_as_cp_sat_starts_stops_it(name: str) -> None:
    shown = subprocess.run(
        [sys.executable, "-c", SIGNALLED, name],
        capture_output=True,
        text=True,
        check=True,
        timeout=GENEROUS,
    )
    assert shown.stdout.split() == ["interrupt", "feasible", "1"]


def test_a_signal_that_an_extension_swallows_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    build = lazy_rows.build_model

    def swallowing(*args: Any, **more: Any) -> Any:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return build(*args, **more)

    monkeypatch.setattr(lazy_rows, "build_model", swallowing)
    answer = solve(hard(), solver="cp-sat", time_limit=GENEROUS)
    assert answer.stopped_by == "interrupt"


def test_a_signal_while_an_extension_is_imported_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def importing(*args: Any, **more: Any) -> Any:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise ImportError("cut short") from error

    monkeypatch.setattr(lazy_rows, "build_model", importing)
    for name in ("cp-sat", "auto"):
        assert solve(hard(), solver=name).stopped_by == "interrupt"
    # an import that fails for another reason is an error
    monkeypatch.setattr(lazy_rows, "build_model", lambda *a, **m: [][0])
    with pytest.raises(IndexError):
        solve(hard(), solver="cp-sat")


def test_limited_work_gives_the_same_answer_on_every_run() -> None:
    problem = hard()
    answers = [SOLVERS["cp-sat"](problem, seed=0, work=0.3) for _ in range(2)]
    assert answers[0].stopped_by == "work limit"
    assert answers[0] == answers[1]
