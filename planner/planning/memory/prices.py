"""Prices on memory: at which moments a byte costs how much, so that what is best also fits.

With a price on every moment of a step, the best assignment is that of an additive problem, and its
cost less what the limit is worth bounds all that fit (Everett 1963). Every assignment known is a
plane above which that bound cannot lie; where the lowest of them is highest, the bound could be
highest (Kelley 1960). That point is a linear program as large as there are assignments known. It
leaps about while few are, so that the next prices lie between it and the best ones known
(Wentges 1997).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from planner.planning.memory.fitting import ROUNDING, SplitsThatFit
from planner.planning.memory.rows import MemoryRows
from planner.planning.space.formulate import Floats
from search.problem import Problem

# How near prices stay to the best ones known, from 0 to 1: by trial on the built-in networks, where
# a bound is reached in half the rounds or fewer.
SMOOTHING = 0.7
# A bound that close to what is possible is good enough. [part of it]
CLOSE = 1e-3
# How strongly weights follow what is held, by trial on the built-in networks; and the least weight
# that a moment keeps, from which it can rise again. [part of all]
RATE, LEAST_WEIGHT = 100.0, 1e-12
# Exponent of what a weight grows by at once: far more than matters, and still a number.
_MOST_GROWTH = 500.0


class MemoryPrices(Struct, frozen=True, kw_only=True, eq=False):
    """What a byte costs at each moment, and what may be held.

    Parameters
    ----------
    rows
        What a device holds at each moment.
    prices
        Of a byte at each moment; (moments,). [s/B]
    limit
        What may be held at any moment. [B]
    fitting, allowed
        How layers may be split to be part of what fits, and which candidates of the search are.
    """

    rows: MemoryRows
    prices: Floats
    limit: float
    fitting: SplitsThatFit = field(default_factory=SplitsThatFit)
    allowed: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def worth(self) -> float:
        """What the limit is worth. [s]"""
        return float(self.prices.sum()) * self.limit

    def priced(self, problem: Problem) -> Problem:
        """A problem with what is held paid for, and without what cannot fit."""
        priced = self.rows.priced(problem, self.prices)
        costs = list(priced.costs)
        for layer, allowed in self.allowed.items():
            costs[layer] = np.where(allowed, costs[layer], np.inf)
        return replace(priced, costs=tuple(costs))

    def bound(self, lower_bound: float) -> float:
        """What a bound on the priced problem says of all assignments that fit. [s]"""
        if lower_bound == math.inf:
            return math.inf
        return lower_bound - self.worth - ROUNDING * (abs(lower_bound) + self.worth)

    def may_fit(self, choices: Sequence[int]) -> bool:
        """Whether an assignment is within the limit, as far as the rows tell."""
        return float(self.rows.profile(choices).max()) <= self.limit

    def paid(self, choices: Sequence[int]) -> float:
        """What an assignment pays. [s]"""
        return float(self.prices @ self.rows.profile(choices))


class Point(Struct, frozen=True, kw_only=True, eq=False):
    """An assignment as prices see it.

    Parameters
    ----------
    cost
        Without memory. [s]
    held
        At each moment; (moments,). [B]
    """

    cost: float
    held: Floats


def prices_to_try(
    points: Sequence[Point], *, limit: float, total: float, unit: tuple[float, float]
) -> tuple[Floats, float]:
    """The prices at which the lowest of some planes is highest, and how high that is. [s]

    Only moments at which one of the assignments holds most have a price.

    Parameters
    ----------
    points
        Assignments; at least one.
    limit
        What may be held at any moment. [B]
    total
        The most that the prices may add up to. [s/B]
    unit
        Sizes of costs and of memory, for the solver's tolerances. [s], [B]
    """
    # takes a while to load, and only a limit that binds needs it
    from ortools.linear_solver import pywraplp

    seconds, size = unit
    solver = pywraplp.Solver.CreateSolver("GLOP")
    moments = sorted({int(point.held.argmax()) for point in points})
    height = solver.NumVar(-solver.infinity(), solver.infinity(), "")
    shares = [solver.NumVar(0.0, 1.0, "") for _ in moments]
    solver.Add(sum(shares) <= 1.0)
    scale = total * size / seconds
    for point in points:
        over = (point.held[moments] - limit) / size * scale
        paid = sum(share * float(o) for share, o in zip(shares, over, strict=True))
        solver.Add(height - paid <= point.cost / seconds)
    solver.Maximize(height)
    prices = np.zeros(len(points[0].held))
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return prices, -math.inf  # lost in rounding: there is nothing to go on with
    prices[moments] = [max(share.solution_value(), 0.0) * total for share in shares]
    return prices, float(height.solution_value()) * seconds


class Climb(Struct, frozen=True, kw_only=True, eq=False):
    """The way to the prices of the highest bound.

    Parameters
    ----------
    limit, total, unit
        As of `prices_to_try`.
    rounds
        How many prices are tried at most.
    close
        A bound that close to what is possible ends the climb. [part of it]
    """

    limit: float
    total: float
    unit: tuple[float, float]
    rounds: int
    close: float = CLOSE

    def best_prices(
        self,
        points: Callable[[], Sequence[Point]],
        bound_at: Callable[[Floats], tuple[float, bool] | None],
        *,
        start: Floats,
    ) -> Floats:
        """The best prices found.

        Parameters
        ----------
        points
            The assignments known so far; at least one.
        bound_at
            The bound at given prices, and whether an assignment came up that was not known; None
            ends the climb.
        start
            What to begin near: best where many moments have a price.
        """
        best, bound, leaps = start, -math.inf, False
        for _ in range(self.rounds):
            prices, ceiling = prices_to_try(
                points(), limit=self.limit, total=self.total, unit=self.unit
            )
            if ceiling - bound <= self.close * abs(ceiling):
                break
            if not leaps:
                prices = SMOOTHING * best + (1.0 - SMOOTHING) * prices
            found = bound_at(prices)
            if found is None:
                break
            here, is_new = found
            if here > bound:
                best, bound = prices, here
            elif leaps and not is_new:
                break
            # where nothing was to be learned so near the best
            leaps = not is_new
        return best


def balance(look_at: Callable[[Floats], Floats | None], start: Floats, rounds: int) -> None:
    """Move weights of the moments towards those at which what holds least by them holds most.

    Each time the weights of moments that hold more grow against those that hold less
    (multiplicative weights, Arora, Hazan and Kale 2012). Unlike the corners of a linear program
    they stay spread over all moments that matter.

    Parameters
    ----------
    look_at
        What is held at each moment by what holds least by some weights; None ends it.
    start
        Weights that are likely to be near the best; numbers that add up to 1.
    rounds
        How often weights move at most.
    """
    weights = (start + 1.0 / len(start)) / 2.0
    lowest = math.inf
    for number in range(rounds):
        held = look_at(weights)
        if held is None:
            break
        lowest = min(lowest, float(held.max()))
        growth = RATE / math.sqrt(number + 1.0) * (held / lowest - 1.0)
        grown = weights * np.exp(np.minimum(growth, _MOST_GROWTH))
        weights = np.maximum(grown / grown.sum(), LEAST_WEIGHT)
        weights /= weights.sum()
