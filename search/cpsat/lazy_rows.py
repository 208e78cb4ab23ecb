"""Exact solution of a core, with rows of usage added once they turn out to matter.

Models: most rows never bind. CP-SAT solves the core with those that have a price or that some cheap
assignment exceeds; if the optimum exceeds others, these join in and it solves again. Every round is
a relaxation, so its bound holds, and an optimum that exceeds nothing is one of the core. Only what
is cheaper than the best assignment known is asked for, among the candidates and pairs that such an
assignment can contain (see `search.core.fixing`); so a round that takes long is broken off to begin
again with what it found.
Assumes: usages are whole numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from search.core.core import Core
from search.core.fixing import Alive, best_prices, what_is_alive
from search.core.messages import Messages
from search.cpsat.integers import scale_of
from search.cpsat.model import Built, build_model
from search.cpsat.run import run_model
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import Incumbent, tolerated

# Those below were found by trial on the contest's four published problems.
# How many rows there are at first because of their price, and how many join for one assignment.
PRICED_ROWS, ROWS_AT_ONCE = 64, 8
# Passes of messages that lead to a cheap assignment.
FIRST_PASSES = 10
# Work after which the first round is broken off, and how many times more the next ones may do.
FIRST_SLICE, GROWTH = 2.0, 8.0


def solve_core(
    core: Core,
    *,
    deadline: Deadline,
    seed: int,
    known: Incumbent[np.ndarray] | None = None,
    prices: np.ndarray | None = None,
) -> Incumbent[np.ndarray]:
    """Find a cheapest assignment of a core, or the best one that time or work allows.

    Parameters
    ----------
    core
        The core.
    deadline
        When to return the best assignment so far.
    seed
        Seed of what is random.
    known
        What is known already; nothing dearer is looked for. It takes over what is found.
    prices
        Prices per row at which the bound is good, see `search.core.fixing`; found here if None.

    Returns
    -------
    What is known then; that is `known` where it was given.
    """
    known = Incumbent() if known is None else known
    rounds = _Rounds(core, known, deadline, seed)
    stopped_by = ""
    try:
        stopped_by = rounds.run(prices)
    except OutOfTime:
        stopped_by = "time limit"
    except KeyboardInterrupt:
        stopped_by = "interrupt"
    known.stopped_by = "" if known.closed else stopped_by
    return known


class _Rounds:
    """Rounds of CP-SAT, each with the rows known by then."""

    def __init__(
        self, core: Core, known: Incumbent[np.ndarray], deadline: Deadline, seed: int
    ) -> None:
        self.core, self.known, self.deadline, self.seed = core, known, deadline, seed
        self.rows: list[int] = []
        self.last: np.ndarray | None = None
        self.slice = FIRST_SLICE
        self.spent = 0.0

    def run(self, prices: np.ndarray | None) -> str:
        """Go on until the gap is closed, or time or work is up; returns what cut it short."""
        core, known = self.core, self.known
        if not core.num_nodes:
            self._offer(np.zeros(0, dtype=np.int64))
            known.raise_bound(known.cost)
            return ""
        whole = scale_of(core, known.cost).exact
        if prices is None:
            prices = best_prices(core, known.cost, self.deadline)
        self._first_rows(prices)
        stopped_by: str | None = None
        while stopped_by is None and not known.closed:
            self.deadline.check()
            cutoff = known.cost - 1.0 if whole else tolerated(known.cost)
            alive = what_is_alive(core, prices, cutoff)
            self._raise_bound(float(math.ceil(alive.bound)) if whole else alive.bound)
            if not known.closed:
                stopped_by = self._round(alive, cutoff)
        return stopped_by or ""

    def _offer(self, choices: np.ndarray) -> bool:
        """Take over an assignment if it is the cheapest that fits; whether it fits."""
        fits = self.core.fits(choices)
        if fits:
            self.known.offer(choices, self.core.cost(choices))
        return fits

    def _raise_bound(self, bound: float) -> None:
        """Take over a bound on what is cheaper than the best assignment known."""
        self.known.raise_bound(min(bound, self.known.cost))

    def _first_rows(self, prices: np.ndarray) -> None:
        """Begin with the rows of the highest prices and those that a cheap assignment exceeds."""
        dearest = np.argsort(-prices, kind="stable")[:PRICED_ROWS]
        self.rows = dearest[prices[dearest] > 0].tolist()
        messages = Messages(self.core)
        messages.passes(self.core.costs, FIRST_PASSES)
        self._add_rows(messages.choices)

    def _round(self, alive: Alive, cutoff: float) -> str | None:
        """Solve with the rows known so far, and learn from it; returns None where another round
        may bring more, else what cut this one short, if anything."""
        left = math.inf if self.deadline.work is None else self.deadline.work - self.spent
        if left <= 0:
            return "work limit"
        cost = self.known.cost
        built = build_model(
            self.core, alive, self.rows, known_cost=cost, cutoff=cutoff, deadline=self.deadline
        )
        if self.last is not None:
            built.hint(self.last)
        outcome = run_model(
            built.model,
            deadline=self.deadline,
            seed=self.seed,
            work=min(self.slice, left),
            found=lambda solution: self._take(built, solution),
        )
        self.spent += outcome.work
        if outcome.infeasible:
            # Nothing costs as little as the cutoff.
            self._raise_bound(cost)
            return ""
        self._raise_bound(min(built.scale.bound(outcome.bound), cost))
        # A slice of the work that is up ends a round, not the search.
        ended = outcome.stopped_by != "work limit" or self.slice >= left
        again = None if not (ended and outcome.stopped_by) else outcome.stopped_by
        if outcome.feasible:
            self.last = built.choices(outcome.solver.boolean_value)
            if self._add_rows(self.last):
                return again
        if outcome.optimal:
            # With a cost known, the rounding can be chosen better.
            return again or "" if self.known.cost == cost else again
        self.slice *= GROWTH
        return again

    def _take(self, built: Built, solution: Any) -> None:
        """Take over a solution if it fits, else learn which rows it exceeds."""
        choices = built.choices(solution.boolean_value)
        if not self._offer(choices):
            self._add_rows(choices)

    def _add_rows(self, choices: np.ndarray) -> bool:
        """Note the rows that an assignment exceeds most, one per peak; whether it exceeds any."""
        over = self.core.profile(choices) - self.core.limit
        beside = np.concatenate([[-np.inf], over, [-np.inf]])
        peaks = np.flatnonzero((over > 0) & (over > beside[:-2]) & (over >= beside[2:]))
        largest = peaks[np.argsort(-over[peaks], kind="stable")][:ROWS_AT_ONCE]
        self.rows += sorted(set(largest.tolist()) - set(self.rows))
        return bool(largest.size)
