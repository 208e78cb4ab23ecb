"""Prices on usage: a lower bound under a usage limit, and assignments near the optimum.

Models: the Lagrangian relaxation of the limit at every time step. With a price per unit at each
step, a problem without a limit is left, which elimination solves exactly; its minimum less what
the limit is worth at these prices bounds the optimum from below (Everett 1963). The best price at
the one step that is used most is found exactly, by intersecting the lines of the two assignments
that bracket the limit (Handler and Zang 1980). Where other steps are over the limit as well, a
subgradient method goes on from there (Held, Wolfe and Crowder 1974; step length of Polyak).
Assumes: elimination accepts the graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from search.elimination.buckets import Eliminated, eliminate
from search.elimination.infeasible import least_usage_at, shortage_at
from search.elimination.order import EliminationOrder
from search.problem import Problem, Shortage, cost_and_peak
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import RELATIVE_TOLERANCE, Incumbent
from search.problem.local_moves import improved

# More steps than the planner's own problems have ever needed; a step is an elimination.
MAX_SUBGRADIENT_STEPS = 60
MAX_LINE_STEPS = 30
# A bound that rises by less than that part of it, so many times, halves the length of steps.
WORTHWHILE, PATIENCE = 1e-6, 4
# Shorter steps, in units of Polyak's, do not matter any more.
LAST_SCALE = 1e-2
# What part of the direction before is kept, and the gap to aim at where no cost is known.
MEMORY, UNKNOWN_GAP = 0.5, 0.05
# ... which is above 0 also where the bound is 0.
LEAST_GAP = 1e-9
# Large prices cancel against what the limit is worth: how much of that may be rounding.
NOISE = 2.0**-44


@dataclass(slots=True, kw_only=True)
class Dual:
    """What prices have shown so far; it grows while `tighten` runs and is valid at any time.

    Parameters
    ----------
    problem
        The problem, with a usage limit.
    order
        The order in which to eliminate its nodes.
    known
        The best assignment and the best bound.
    prices
        The price per unit at each step of the timeline that gave the bound.
    eliminated
        The problem at these prices, eliminated; without the constant of `offset`.
    shortage
        A proof that nothing fits, where one turned up.
    """

    problem: Problem
    order: EliminationOrder
    known: Incumbent[list[int]] = field(default_factory=Incumbent)
    prices: np.ndarray = field(default_factory=lambda: np.zeros(0))
    eliminated: Eliminated | None = None
    shortage: Shortage | None = None

    @property
    def offset(self) -> float:
        """What the limit is worth at the best prices; subtract it from costs at these prices."""
        assert self.problem.usage_limit is not None
        return float(self.prices.sum()) * self.problem.usage_limit

    def offer(self, choices: list[int]) -> None:
        """Keep an assignment if it fits and is the cheapest so far."""
        cost, peak = cost_and_peak(self.problem, choices)
        assert self.problem.usage_limit is not None
        if peak <= self.problem.usage_limit:
            self.known.offer(choices, cost)

    def probe(self, prices: np.ndarray, deadline: Deadline) -> tuple[list[int], float]:
        """Solve at these prices; returns the assignment and the bound it proves."""
        assert self.problem.usage_limit is not None
        costs = priced_costs(self.problem, prices)
        eliminated = eliminate(self.problem, self.order, costs=costs, deadline=deadline)
        worth = float(prices.sum()) * self.problem.usage_limit
        bound = eliminated.minimum - worth - NOISE * worth
        if bound > self.known.bound:
            self.prices, self.eliminated = prices, eliminated
        self.known.raise_bound(bound)
        choices = eliminated.decode()
        if eliminated.minimum < math.inf:
            self.offer(choices)
        return choices, bound


def priced_costs(problem: Problem, prices: np.ndarray) -> list[np.ndarray]:
    """Node costs with usage paid for at the given price per step."""
    rates = problem.timeline.spans(prices)
    return [
        c + rate * u if rate else c
        for c, u, rate in zip(problem.costs, problem.usages, rates, strict=True)
    ]


def tighten(dual: Dual, *, deadline: Deadline) -> None:
    """Look for the best prices until the gap closes, time runs out or progress ends."""
    try:
        choices, _ = dual.probe(np.zeros(dual.problem.timeline.steps.size), deadline)
        if dual.known.closed:
            return
        _repair(dual, choices, deadline)
        _one_step_price(dual, choices, deadline)
        if not dual.known.closed:
            _subgradient(dual, deadline)
    except OutOfTime:
        dual.known.stopped_by = "time limit"
    except KeyboardInterrupt:
        dual.known.stopped_by = "interrupt"


def _profile(problem: Problem, choices: list[int]) -> np.ndarray:
    return problem.timeline.profile(
        np.array([u[i] for u, i in zip(problem.usages, choices, strict=True)])
    )


def _repair(dual: Dual, choices: list[int], deadline: Deadline) -> None:
    found = improved(dual.problem, choices, deadline)
    if found is not None:
        dual.offer(found)


def _one_step_price(dual: Dual, free: list[int], deadline: Deadline) -> None:
    """The best price at the step that the cheapest assignment uses most."""
    problem = dual.problem
    limit = problem.usage_limit
    assert limit is not None
    step = int(_profile(problem, free).argmax())
    least, small = least_usage_at(problem, step, dual.order)
    if least > limit:
        dual.shortage = shortage_at(problem, step, least, small)
        dual.known.raise_bound(math.inf)
        return
    _repair(dual, small, deadline)
    # Two assignments, as (cost, usage at the step): one above the limit, one within it.
    above = (cost_and_peak(problem, free)[0], float(_profile(problem, free)[step]))
    within = (cost_and_peak(problem, small)[0], float(_profile(problem, small)[step]))
    prices = np.zeros(problem.timeline.steps.size)
    for _ in range(MAX_LINE_STEPS):
        price = (within[0] - above[0]) / (above[1] - within[1])
        prices = prices.copy()
        prices[step] = price
        choices, bound = dual.probe(prices, deadline)
        line = above[0] + price * (above[1] - limit)
        _repair(dual, choices, deadline)
        if dual.known.closed or bound >= line - RELATIVE_TOLERANCE * max(abs(line), abs(above[0])):
            return
        point = (cost_and_peak(problem, choices)[0], float(_profile(problem, choices)[step]))
        if point in (above, within):
            return
        if point[1] > limit:
            above = point
        else:
            within = point


def _subgradient(dual: Dual, deadline: Deadline) -> None:
    """Move all prices along the overload of the assignments they lead to."""
    limit = dual.problem.usage_limit
    assert limit is not None
    prices = dual.prices.copy()
    direction = np.zeros_like(prices)
    scale, stale = 1.0, 0
    for _ in range(MAX_SUBGRADIENT_STEPS):
        before = dual.known.bound
        choices, bound = dual.probe(prices, deadline)
        _repair(dual, choices, deadline)
        overload = _profile(dual.problem, choices) - limit
        if dual.known.closed or not ((overload > 0).any() or (prices * overload).any()):
            return
        stale = 0 if dual.known.bound > before + WORTHWHILE * abs(before) else stale + 1
        if stale >= PATIENCE:
            scale, stale = scale / 2, 0
            prices, direction = dual.prices.copy(), np.zeros_like(prices)
        if scale < LAST_SCALE:
            return
        # Where a price is 0 and there is room, moving down is not possible.
        direction = np.where((prices <= 0) & (overload < 0), 0.0, overload + MEMORY * direction)
        norm = float(direction @ direction)
        if norm == 0:
            return
        cost = dual.known.cost
        target = cost if cost < math.inf else bound + UNKNOWN_GAP * abs(bound) + LEAST_GAP
        prices = np.maximum(0.0, prices + scale * (target - bound) / norm * direction)
