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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from search.core.core import Core
from search.core.dives import forbidden
from search.core.fixing import Alive, best_prices, what_is_alive
from search.core.messages import Messages
from search.cpsat.integers import scale_of
from search.cpsat.model import Built, build_model
from search.cpsat.run import run
from search.problem.answers import RELATIVE_TOLERANCE
from search.problem.deadline import Deadline, OutOfTime

# How many rows there are at first because of their price, and how many join for one assignment.
PRICED_ROWS, ROWS_AT_ONCE = 64, 8
# Passes of messages that lead to a cheap assignment.
FIRST_PASSES = 10
# Work after which the first round is broken off, and how many times more the next ones may do.
FIRST_SLICE, GROWTH = 2.0, 8.0

Watch = Callable[[np.ndarray | None, float], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoreAnswer:
    """An answer to a core.

    Parameters
    ----------
    choices
        The best assignment found that fits, or None.
    cost
        Its cost; +inf where there is none.
    bound
        No assignment costs less; +inf where none fits.
    stopped_by
        "time limit", "work limit" or "interrupt" where the search was cut short, else empty.
    rows
        How many rows had to be looked at.
    """

    choices: np.ndarray | None
    cost: float
    bound: float
    stopped_by: str
    rows: int

    @property
    def proven(self) -> bool:
        """Whether the assignment is a cheapest one."""
        return self.choices is not None and self.bound >= tolerated(self.cost)

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that nothing fits."""
        return self.choices is None and self.bound == math.inf


def tolerated(cost: float) -> float:
    """The bound from which on a cost counts as proven."""
    return cost - RELATIVE_TOLERANCE * abs(cost) if cost < math.inf else math.inf


def solve_core(
    core: Core,
    *,
    hint: np.ndarray | None,
    deadline: Deadline,
    seed: int,
    known_bound: float = -math.inf,
    prices: np.ndarray | None = None,
    watch: Watch | None = None,
) -> CoreAnswer:
    """Find a cheapest assignment of a core, or the best one that time or work allows.

    Parameters
    ----------
    core
        The core.
    hint
        An assignment to start from; nothing dearer is looked for if it fits.
    deadline
        When to return the best assignment so far.
    seed
        Seed of what is random.
    known_bound
        A lower bound proven elsewhere.
    prices
        Prices per row at which the bound is good, see `search.core.fixing`; found here if None.
    watch
        Called with the best assignment and the bound whenever either is better.
    """
    rounds = _Rounds(core, deadline, seed, watch or (lambda choices, bound: None))
    rounds.raise_bound(known_bound)
    try:
        if hint is not None:
            rounds.offer(hint)
        rounds.run(prices)
    except OutOfTime:
        rounds.stopped_by = "time limit"
    except KeyboardInterrupt:
        rounds.stopped_by = "interrupt"
    return CoreAnswer(
        choices=rounds.choices,
        cost=rounds.cost,
        bound=min(rounds.bound, rounds.cost),
        stopped_by="" if rounds.closed else rounds.stopped_by,
        rows=len(rounds.rows),
    )


class _Rounds:
    """What is known between rounds."""

    def __init__(self, core: Core, deadline: Deadline, seed: int, watch: Watch) -> None:
        self.core, self.deadline, self.seed, self.watch = core, deadline, seed, watch
        self.choices: np.ndarray | None = None
        self.cost, self.bound = math.inf, -math.inf
        self.rows: list[int] = []
        self.last: np.ndarray | None = None
        self.slice = FIRST_SLICE
        self.spent = 0.0
        self.stopped_by = ""

    @property
    def closed(self) -> bool:
        """Whether nothing is left to prove."""
        return self.bound >= tolerated(self.cost)

    def offer(self, choices: np.ndarray) -> bool:
        """Take over an assignment if it is the cheapest; whether it fits."""
        core = self.core
        fits = bool((core.profile(choices) <= core.limit).all()) and not forbidden(core, choices)
        if fits and (cost := core.cost(choices)) < self.cost:
            self.choices, self.cost = choices, cost
            self.watch(choices, self.bound)
        return fits

    def raise_bound(self, bound: float) -> None:
        """Take over a bound on what is cheaper than the best assignment known."""
        bound = min(bound, self.cost)
        if bound > self.bound:
            self.bound = bound
            self.watch(self.choices, bound)

    def run(self, prices: np.ndarray | None) -> None:
        """Go on until the gap is closed, or time or work is up."""
        core = self.core
        if not core.num_nodes:
            self.offer(np.zeros(0, dtype=np.int64))
            self.raise_bound(self.cost)
            return
        whole = scale_of(core, self.cost).exact
        if prices is None:
            prices = best_prices(core, self.cost, self.deadline)
        self._first_rows(prices)
        settled = False
        while not (settled or self.closed or self.stopped_by):
            self.deadline.check()
            cutoff = self.cost - 1.0 if whole else tolerated(self.cost)
            alive = what_is_alive(core, prices, cutoff)
            self.raise_bound(float(math.ceil(alive.bound)) if whole else alive.bound)
            if not self.closed:
                settled = self._round(alive, cutoff)

    def _first_rows(self, prices: np.ndarray) -> None:
        """Begin with the rows of the highest prices and those that a cheap assignment exceeds."""
        dearest = np.argsort(-prices, kind="stable")[:PRICED_ROWS]
        self.rows = dearest[prices[dearest] > 0].tolist()
        messages = Messages(self.core)
        messages.passes(self.core.costs, FIRST_PASSES)
        self._add_rows(messages.choices)

    def _round(self, alive: Alive, cutoff: float) -> bool:
        """Solve with the rows known so far, and learn from it; whether another round would be the
        same again."""
        left = math.inf if self.deadline.work is None else self.deadline.work - self.spent
        if left <= 0:
            self.stopped_by = "work limit"
            return True
        known = self.cost
        built = build_model(
            self.core, alive, self.rows, known_cost=known, cutoff=cutoff, deadline=self.deadline
        )
        if self.last is not None:
            built.hint(self.last)
        outcome = run(
            built.model,
            deadline=self.deadline,
            seed=self.seed,
            work=min(self.slice, left),
            found=lambda solution: self._look(built, solution),
        )
        self.spent += outcome.work
        if outcome.infeasible:
            # Nothing costs as little as the cutoff.
            self.raise_bound(known)
            return True
        self.raise_bound(min(built.scale.bound(outcome.bound), known))
        if outcome.stopped_by != "work limit" or self.slice >= left:
            self.stopped_by = outcome.stopped_by
        if outcome.feasible:
            self.last = built.choices(outcome.solver.boolean_value)
            if self._add_rows(self.last):
                return False
        if outcome.optimal:
            # With a cost known, the rounding can be chosen better.
            return self.cost == known
        self.slice *= GROWTH
        return False

    def _look(self, built: Built, solution: Any) -> None:
        """See whether a solution fits."""
        choices = built.choices(solution.boolean_value)
        if not self.offer(choices):
            self._add_rows(choices)

    def _add_rows(self, choices: np.ndarray) -> bool:
        """Note the rows that an assignment exceeds most, one per peak; whether it exceeds any."""
        over = self.core.profile(choices) - self.core.limit
        beside = np.concatenate([[-np.inf], over, [-np.inf]])
        peaks = np.flatnonzero((over > 0) & (over > beside[:-2]) & (over >= beside[2:]))
        largest = peaks[np.argsort(-over[peaks], kind="stable")][:ROWS_AT_ONCE]
        self.rows += sorted(set(largest.tolist()) - set(self.rows))
        return bool(largest.size)
