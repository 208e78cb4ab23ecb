"""Find the fastest plan that fits: form the problem, bound it, search it, cost what was found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.notes import words
from planner.planning.costing import Costed, cost
from planner.planning.formulate import Formulation
from search import SOLVERS, Assignment, Problem
from search.elimination.k_best import k_best

Floats = NDArray[np.float64]

# How often the bound is moved towards another term, and how many places between two are tried.
MAX_ROUNDS = 4
MAX_PLACES = 4
# Bounds this close to what is possible between two terms are good enough to go on from.
_CLOSE = 1e-4
# Prices of memory that are tried, in steps a peak of the fastest assignment.
PRICES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
# Rounds in which the memory limit of the additive model is corrected by the true peak.
MAX_MEMORY_ROUNDS = 6
# Limits closer together than this part of the memory are not told apart.
_ROOM = 0.01
# A problem under a memory limit may take hours to prove, while its answer and its bound are good
# long before: each gets that much, or this part of the time that is left. [s]
MEMORY_SECONDS = 2.0
# Without a time limit, work is limited instead, about as much: the same plan on every run.
MEMORY_WORK = 2.0
_SHARE = 0.125
_EXACT = 1e-9


@dataclass(slots=True, kw_only=True)
class Found:
    """What a search found.

    Parameters
    ----------
    best
        The fastest assignment that fits, or None.
    lower_bound
        No assignment has a faster step. [s]
    solver
        The path taken.
    num_costed
        Assignments costed on the timeline. [items]
    stopped_by
        "time limit" or "interrupt" where it was cut short.
    notes
        Sentences about approximations.
    tightest
        The assignment of least peak memory that was seen.
    problem
        The additive problem with the best bound, among those under the memory limit if any.
    ranked
        The assignments that fit, the fastest first.
    """

    best: Costed | None = None
    lower_bound: float = 0.0
    solver: str = ""
    num_costed: int = 0
    stopped_by: str = ""
    notes: list[str] = field(default_factory=list)
    tightest: Costed | None = None
    problem: Problem | None = None
    ranked: list[Costed] = field(default_factory=list)


class _Search:
    """State of one search: every assignment met so far is costed once."""

    def __init__(
        self, formulation: Formulation, method: str, seed: int, deadline: float | None
    ) -> None:
        self.formulation = formulation
        self.method = method
        self.seed = seed
        self.deadline = deadline
        self.seen: dict[tuple[int, ...], Costed] = {}
        self.found = Found()
        self.bounded = (False, -np.inf)  # of the problem kept: whether limited, and its bound
        self.capacity = formulation.cluster.device.memory

    def look(self, choices: Sequence[int]) -> Costed:
        key = tuple(int(c) for c in choices)
        if key not in self.seen:
            costed = cost(self.formulation, key)
            self.seen[key] = costed
            best, tightest = self.found.best, self.found.tightest
            if tightest is None or costed.memory.total < tightest.memory.total:
                self.found.tightest = costed
            if costed.memory.total <= self.capacity and (
                best is None or costed.step.total < best.step.total
            ):
                self.found.best = costed
        return self.seen[key]

    def left(self) -> float | None:
        return None if self.deadline is None else max(self.deadline - time.monotonic(), 0.01)

    def solve(
        self, weights: Floats, limit: float | None, *, price: float = 0.0, bounds: bool = True
    ) -> Assignment:
        """Solve one additive problem; with less memory than there is, it bounds nothing."""
        problem = self.formulation.problem(exposure(weights), limit, price=price)
        left = self.left()
        allowed = left
        work = None
        if limit is not None and left is not None:
            allowed = min(MEMORY_SECONDS, _SHARE * left)
        elif limit is not None:
            work = MEMORY_WORK
        answer: Assignment = SOLVERS[self.method](
            problem, time_limit=allowed, seed=self.seed, work=work
        )
        self.found.solver = answer.solver
        notes = [words(note) for note in answer.notes]
        late = self.deadline is not None and time.monotonic() >= self.deadline
        sliced = answer.stopped_by == "time limit" and allowed != left and not late
        if sliced or answer.stopped_by == "work limit":
            notes.append(
                "problems under the memory limit were stopped before proof, after about "
                f"{MEMORY_SECONDS:g} s or less each; the gap says how far the plan may be off"
            )
        elif answer.stopped_by or late:
            self.found.stopped_by = answer.stopped_by or "time limit"
        for note in notes:
            if note not in self.found.notes:
                self.found.notes.append(note)
        if answer.choices:
            self.look(answer.choices)
        if bounds:
            self.found.lower_bound = max(self.found.lower_bound, answer.lower_bound)
            if (limit is not None, answer.lower_bound) > self.bounded:
                self.bounded = (limit is not None, answer.lower_bound)
                self.found.problem = problem
        return answer

    def maximise_bound(self, limit: float | None) -> Floats:
        """The weights that give the best bound: the maximum of a concave function.

        Starting from S alone, each round looks which term of the answer is the largest, and moves
        weight to it as far as that helps; a bound that its own answer reaches is the optimum.
        """
        num_layers = len(self.formulation.layers)
        weights = np.zeros(num_layers + 1)
        weights[0] = 1.0  # S; the term of layer j has weight j + 1
        answer = self.solve(weights, limit)
        for _ in range(MAX_ROUNDS):
            if not answer.choices or self.found.stopped_by:
                break
            terms = self._terms(answer.choices)
            largest = int(terms.argmax())
            if terms[largest] <= answer.lower_bound * (1.0 + _EXACT):
                break
            corner = np.zeros_like(weights)
            corner[largest] = 1.0
            better = self._line(weights, corner, answer, limit)
            if better is None:
                break
            weights, answer = better
        return weights

    def _terms(self, choices: Sequence[int]) -> Floats:
        total, terms = self.formulation.terms(choices)
        return np.append(total, terms)

    def _line(
        self, start: Floats, end: Floats, answer: Assignment, limit: float | None
    ) -> tuple[Floats, Assignment] | None:
        """The best weights between two, if they are better than the first.

        Every answer is a line (its cost as a function of the place between the two) above which
        the bound cannot lie; the next place is where the lines of both sides meet.
        """

        def line(found: Assignment) -> tuple[float, float]:
            terms = self._terms(found.choices)
            return float(start @ terms), float(end @ terms)

        best = None
        left, right = line(answer), None
        bound, place = answer.lower_bound, 1.0
        for _ in range(MAX_PLACES):
            weights = (1.0 - place) * start + place * end
            found = self.solve(weights, limit)
            if not found.choices or self.found.stopped_by:
                break
            if found.lower_bound > bound * (1.0 + _EXACT):
                best, bound = (weights, found), found.lower_bound
            here = line(found)
            if here[1] >= here[0]:
                left = here
            else:
                right = here
            if right is None:
                break
            place = (left[0] - right[0]) / ((left[0] - right[0]) - (left[1] - right[1]))
            place = min(max(place, 0.0), 1.0)  # answers that are not optimal may meet outside
            if bound >= (left[0] + place * (left[1] - left[0])) * (1.0 - _CLOSE):
                break
        return best


def exposure(weights: Floats) -> Floats:
    """Profile of an additive problem: how much of each layer's all-reduce the weights count."""
    return weights[1:][::-1].cumsum()[::-1]


def find(
    formulation: Formulation,
    *,
    starts: Sequence[Sequence[int]] = (),
    method: str = "auto",
    num_best: int = 4,
    seed: int = 0,
    time_limit: float | None = None,
) -> Found:
    """Search a formulation.

    Parameters
    ----------
    formulation
        The network on the machine.
    starts
        Assignments to cost in any case, such as the usual strategies.
    method
        Name of a solver in `search.SOLVERS`.
    num_best
        How many best distinct assignments to cost on the timeline. [items]
    seed
        Seed of solvers that need one.
    time_limit
        When to stop with the best so far. [s]
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    search = _Search(formulation, method, seed, deadline)
    for start in starts:
        search.look(start)
    try:
        _run(search, num_best)
    except KeyboardInterrupt:
        search.found.stopped_by = "interrupt"
    search.found.num_costed = len(search.seen)
    fitting = [c for c in search.seen.values() if c.memory.total <= search.capacity]
    search.found.ranked = sorted(fitting, key=lambda costed: costed.step.total)
    return search.found


def _run(search: _Search, num_best: int) -> None:
    weights = search.maximise_bound(None)
    unconstrained = min(search.seen.values(), key=lambda c: c.step.total)
    if unconstrained.memory.total <= search.capacity:
        _more(search, weights, num_best)
        return
    # memory binds: bound with all of it, then leave room for what the additive model leaves out
    usable = float(search.formulation.cluster.device.usable_memory)
    _pay_for_memory(search, weights, unconstrained)
    _fit(search, search.maximise_bound(usable), usable)


def _pay_for_memory(search: _Search, weights: Floats, fastest: Costed) -> None:
    """Look at what is best when memory costs more and more: quick, and its peak falls as a whole.

    A limit only sees what is kept; a price also counts what a layer needs while it runs.
    """
    unit = fastest.step.total / fastest.memory.total
    for factor in PRICES:
        if search.found.stopped_by:
            return
        search.solve(weights, None, price=factor * unit, bounds=False)


def _fit(search: _Search, weights: Floats, usable: float) -> None:
    """Look for the largest limit of the additive model whose answer truly fits."""
    found = search.found
    limit, fits, exceeds = usable, 0.0, usable
    for _ in range(MAX_MEMORY_ROUNDS):
        if found.stopped_by or exceeds - fits < _ROOM * usable:
            break
        answer = search.solve(weights, limit, bounds=limit == usable)
        excess, guess = 0.0, 0.0
        if answer.choices:
            excess = search.look(answer.choices).memory.total - search.capacity
        if excess > 0.0:
            exceeds = min(limit, answer.peak_usage)
            guess = exceeds - excess
        elif limit == usable:
            break  # all of it fits, or nothing does
        else:
            fits = limit
        limit = guess if fits < guess < exceeds else (fits + exceeds) / 2.0


def _more(search: _Search, weights: Floats, num_best: int) -> None:
    """Cost the K best distinct assignments: the additive order need not be that of the steps."""
    best, found = search.found.best, search.found
    if (
        best is None
        or found.stopped_by
        or num_best < 2
        or search.method not in ("auto", "elimination")
    ):
        return
    if best.step.total - found.lower_bound <= _EXACT * best.step.total:
        return
    for answer in k_best(search.formulation.problem(exposure(weights)), num_best):
        search.look(answer.choices)
