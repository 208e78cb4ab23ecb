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
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field

from search.elimination.buckets import Eliminated, eliminate
from search.elimination.infeasible import LeastUsage, least_usage_at
from search.elimination.order import EliminationOrder
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import RELATIVE_TOLERANCE, Incumbent
from search.problem.local_moves import improved
from search.problem.pairwise import Limited

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


class Worth(NamedTuple):
    """What to subtract from costs at some prices for them to be costs under the limit, and how much
    of it may be rounding."""

    offset: float
    noise: float


class Dual(Struct, kw_only=True):
    """What prices have shown so far; it grows while `tighten` runs and is valid at any time.

    Parameters
    ----------
    problem
        The problem or core, with a limit.
    order
        The order in which to eliminate its nodes.
    known
        The best assignment and the best bound.
    prices
        The price per unit at each step of the timeline that gave the bound.
    eliminated
        The problem at these prices, eliminated; `worth` says by how much its costs are too high.
    shortage
        A step at which nothing fits, where one turned up.
    """

    problem: Limited
    order: EliminationOrder
    known: Incumbent[list[int]] = field(default_factory=Incumbent)
    prices: np.ndarray = field(default_factory=lambda: np.zeros(0))
    eliminated: Eliminated | None = None
    shortage: LeastUsage | None = None

    def worth(self, prices: np.ndarray) -> Worth:
        """What the limit is worth at these prices."""
        flat = self.problem.flat
        room = flat.limit - flat.timeline.base
        return Worth(float(prices @ room) - flat.constant, NOISE * float(prices @ np.abs(room)))

    def offer(self, choices: list[int]) -> None:
        """Keep an assignment if it fits and is the cheapest so far."""
        flat = self.problem.flat
        if not flat.is_over(choices):
            self.known.offer(choices, flat.cost(choices))

    def probe(self, prices: np.ndarray, deadline: Deadline) -> tuple[list[int], float]:
        """Solve at these prices; returns the assignment and the bound it proves."""
        flat = self.problem.flat
        costs = flat.per_node(flat.costs + flat.charges(flat.timeline.spans(prices)))
        eliminated = eliminate(self.problem, self.order, costs=costs, deadline=deadline)
        worth = self.worth(prices)
        bound = eliminated.minimum - worth.offset - worth.noise
        if bound > self.known.bound:
            self.prices, self.eliminated = prices, eliminated
        self.known.raise_bound(bound)
        choices = eliminated.decode()
        if eliminated.minimum < math.inf:
            self.offer(choices)
        return choices, bound


def tighten(dual: Dual, *, deadline: Deadline) -> None:
    """Look for the best prices until the gap closes, time runs out or progress ends."""
    try:
        choices, _ = dual.probe(np.zeros(dual.problem.flat.timeline.steps.size), deadline)
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


def _repair(dual: Dual, choices: list[int], deadline: Deadline) -> None:
    found = improved(dual.problem, choices, deadline)
    if found is not None:
        dual.offer(found)


def _one_step_price(dual: Dual, free: list[int], deadline: Deadline) -> None:
    """The best price at the step that the cheapest assignment uses most."""
    flat = dual.problem.flat
    limit = flat.limit
    step = int(flat.profile(free).argmax())
    least = least_usage_at(dual.problem, step, dual.order, deadline)
    if least.bound > limit:
        dual.shortage = least
        dual.known.raise_bound(math.inf)
        return
    _repair(dual, least.choices, deadline)
    # Two assignments, as (cost, usage at the step): one above the limit, one within it.
    above = (flat.cost(free), float(flat.profile(free)[step]))
    within = (flat.cost(least.choices), float(flat.profile(least.choices)[step]))
    prices = np.zeros(flat.timeline.steps.size)
    for _ in range(MAX_LINE_STEPS):
        price = (within[0] - above[0]) / (above[1] - within[1])
        prices = prices.copy()
        prices[step] = price
        choices, bound = dual.probe(prices, deadline)
        line = above[0] + price * (above[1] - limit)
        _repair(dual, choices, deadline)
        if dual.known.closed or bound >= line - RELATIVE_TOLERANCE * max(abs(line), abs(above[0])):
            return
        point = (flat.cost(choices), float(flat.profile(choices)[step]))
        if point in (above, within):
            return
        if point[1] > limit:
            above = point
        else:
            within = point


def _subgradient(dual: Dual, deadline: Deadline) -> None:
    """Move all prices along the overload of the assignments they lead to."""
    flat = dual.problem.flat
    prices = dual.prices.copy()
    direction = np.zeros_like(prices)
    scale, stale = 1.0, 0
    for _ in range(MAX_SUBGRADIENT_STEPS):
        before = dual.known.bound
        choices, bound = dual.probe(prices, deadline)
        _repair(dual, choices, deadline)
        overload = flat.profile(choices) - flat.limit
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
