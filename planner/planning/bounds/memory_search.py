"""The search for a plan where the fastest assignments do not fit in memory.

Prices on memory move answers from the fastest assignment towards those that hold least. First come
a few levels of prices that depend on no limit, so that more memory finds what less memory found;
then the prices that give the best bound under the limit; where nothing fits by then, prices so high
that nothing but memory counts, which show how little is possible. Between answers on both sides of
the limit lie assignments that take some layers from one and the others from the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.planning.bounds.additive_search import AdditiveSearch, Floats
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.memory.prices import ROUNDING, MemoryPrices, Point, prices_to_try
from planner.planning.memory.rows import MemoryRows, memory_by_moment
from planner.planning.space.profile import Profile
from search.problem.problem import Assignment, Problem, costs_and_peaks

# Levels of prices, in steps a peak of the fastest assignment: from where memory hardly counts to
# where next to nothing else does. At each of them prices move between moments that often at most.
LEVELS = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
LEVEL_ROUNDS = 6
# Prices that no plan is worth, in the same unit, and how often they move under a limit.
HIGHEST = 1000.0
LIMIT_ROUNDS = 20
# How often prices move where time does not count at all.
LEAST_ROUNDS = 40
# A bound that close to what is possible is good enough. [part of it]
CLOSE = 1e-3
# How many answers on either side of the limit are crossed with each other, how often, and how many
# assignments in between are costed each time.
NEIGHBOURS, CROSSINGS, COSTED = 3, 3, 4

# How often the limit is moved towards the least memory that is possible, and prices under each.
SQUEEZES, SQUEEZE_ROUNDS = 8, 12

Choices = tuple[int, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class MemorySearch:
    """A search under a memory limit.

    Parameters
    ----------
    search
        What is known so far.
    rows
        What a device holds at each moment.
    profile
        How much of each layer's all-reduce counts.
    limit
        What may be held at any moment, by the rows. [B]
    unit
        Step and peak of the fastest assignment. [s], [B]
    met
        What every assignment met so far holds at each moment. [B]
    least
        No assignment holds less at its peak, by the rows. [B]
    """

    search: AdditiveSearch
    rows: MemoryRows
    profile: Profile
    limit: float
    unit: tuple[float, float]
    met: dict[Choices, Floats] = field(default_factory=dict)
    least: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether an assignment that fits was met."""
        return self.search.incumbent.choices is not None

    def meet(self, *assignments: Sequence[int]) -> None:
        """Keep assignments, and cost those that may fit."""
        seen = (*self.search.seen, *(tuple(map(int, choices)) for choices in assignments))
        new = [choices for choices in dict.fromkeys(seen) if choices not in self.met]
        if not new:
            return
        rows = self.rows.profiles(np.array(new, dtype=np.int64))
        for choices, held in zip(new, rows, strict=True):
            self.met[choices] = held
            if held.max() <= self.limit:
                self.search.cost_once(choices)

    def points(self, problem: Problem | None) -> list[Point]:
        """The assignments met so far, as prices see them; without a problem, time is nothing."""
        self.meet()
        costs = np.zeros(len(self.met))
        if problem is not None:
            costs, _ = costs_and_peaks(problem, np.array(list(self.met), dtype=np.int64))
        return [
            Point(cost=float(cost), held=held)
            for cost, held in zip(costs, self.met.values(), strict=True)
        ]

    def move_prices(self, *, limit: float, level: float, rounds: int) -> MemoryPrices:
        """Look for the prices of the best bound; their answers are kept on the way.

        Parameters
        ----------
        limit
            What may be held at any moment; nothing stands for prices that use up the level. [B]
        level
            The most that prices may add up to, in steps a peak.
        rounds
            How often they may move.

        Returns
        -------
        The best prices found.
        """
        problem = self.search.formulation.problem(self.profile)
        total = level * self.unit[0] / self.unit[1]
        best, bound = np.zeros(self.rows.num_moments), -math.inf
        for _ in range(rounds):
            points = self.points(problem)
            prices, ceiling = prices_to_try(points, limit=limit, total=total, unit=self.unit)
            if self.search.stopped or ceiling - bound <= CLOSE * abs(ceiling):
                break
            answer = self.search.solve(self.profile, self.at(prices))
            here = answer.lower_bound - float(prices.sum()) * limit
            if here > bound:
                best, bound = prices, here
            if not self._is_new(answer):
                break
        return self.at(best)

    def at(self, prices: Floats) -> MemoryPrices:
        """Prices under the limit of the search."""
        return MemoryPrices(rows=self.rows, prices=prices, limit=self.limit)

    def _is_new(self, answer: Assignment) -> bool:
        """Keep an answer; whether it was not met before."""
        before = len(self.met)
        if answer.choices:
            self.meet(answer.choices)
        return len(self.met) > before

    def look_for_least(self) -> None:
        """Look for the least memory that is possible, and prove how little is not.

        That nothing fits is proven where it does not with smaller buckets of gradients, either.
        """
        most = self.limit + self.rows.spare
        total = self.unit[0] / self.unit[1]
        for _ in range(LEAST_ROUNDS):
            points = self.points(None)
            prices, ceiling = prices_to_try(points, limit=0.0, total=total, unit=self.unit)
            ceiling /= total
            if self.search.stopped or ceiling - self.least <= CLOSE * ceiling:
                break
            answer = self.search.solve_timeless(self.at(prices / total))
            self.least = max(self.least, answer.lower_bound * (1.0 - ROUNDING))
            if self.least > most or not self._is_new(answer):
                break
        if self.least > most:
            self.search.incumbent.raise_bound(math.inf)

    def cross(self, limit: float) -> bool:
        """Cost assignments between answers on both sides of a limit; whether that was worth it.

        Where none is within the limit yet, those of least memory are crossed.
        """
        problem = self.search.formulation.problem(self.profile)
        points = dict(zip(self.met, self.points(problem), strict=True))
        peaks = {choices: float(point.held.max()) for choices, point in points.items()}
        within = sorted((c for c in points if peaks[c] <= limit), key=lambda c: points[c].cost)
        most = points[within[0]].cost if within else math.inf
        beyond = [c for c in points if peaks[c] > limit and points[c].cost < most]
        beyond.sort(key=peaks.__getitem__)
        before = (most, self._lowest())
        first = within[:NEIGHBOURS] or beyond[:NEIGHBOURS]
        for one, other in itertools.product(first, beyond[:NEIGHBOURS]):
            if one != other and not self.search.stopped:
                self._cost_between(problem, limit, one, other)
        points = dict(zip(self.met, self.points(problem), strict=True))
        costs = (point.cost for point in points.values() if point.held.max() <= limit)
        cost = min(costs, default=math.inf)
        return cost < before[0] if cost < math.inf else self._lowest() < before[1]

    def _lowest(self) -> float:
        """The least peak of all assignments met so far, by the rows. [B]"""
        return min(float(point.held.max()) for point in self.points(None))

    def _cost_between(self, problem: Problem, limit: float, one: Choices, other: Choices) -> None:
        """Cost the best assignments that take the first layers from one and the rest from another.

        Parameters
        ----------
        problem
            The problem without prices.
        limit
            What may be held at any moment. [B]
        one, other
            The two assignments.
        """
        crossed = _crossed(np.array(one), np.array(other))
        if not len(crossed):
            return
        peaks = self.rows.profiles(crossed).max(axis=1)
        costs, _ = costs_and_peaks(problem, crossed)
        within = peaks <= limit
        order = np.lexsort((np.where(within, costs, peaks), ~within))
        self.meet(*crossed[order[: COSTED if within.any() else 1]].tolist())

    def squeeze(self) -> None:
        """Look for assignments of less and less memory: limits close in on the least possible."""
        low = self.least
        for _ in range(SQUEEZES):
            found = self._lowest()
            if self.search.stopped or found - low <= CLOSE * found:
                break
            target = (low + found) / 2.0
            self.move_prices(limit=target, level=HIGHEST, rounds=SQUEEZE_ROUNDS)
            self.cross(target)
            if self._lowest() > target:
                low = target


def _crossed(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.int64]:
    """All ways to take the first layers from one assignment and the rest from another."""
    differs = np.flatnonzero(one != other)
    if len(differs) < 2:
        return np.zeros((0, len(one)), dtype=np.int64)
    before = np.arange(len(one))[None, :] < differs[1:, None]
    return np.concatenate([np.where(before, one, other), np.where(before, other, one)])


def save_memory(search: AdditiveSearch, profile: Profile) -> MemorySearch:
    """Look at what is best when memory costs more and more, whatever the limit.

    Parameters
    ----------
    search
        What is known so far.
    profile
        How much of each layer's all-reduce counts in the best bound without a limit.
    """
    rows, fastest = memory_by_moment(search.formulation), search.fastest
    inside = MemorySearch(
        search=search,
        rows=rows,
        profile=profile,
        limit=float(search.formulation.cluster.device.usable_memory),
        unit=(fastest.step.total, float(rows.profile(fastest.choices).max())),
    )
    for level in LEVELS:
        inside.move_prices(limit=0.0, level=level, rounds=LEVEL_ROUNDS)
    return inside


def fit_into_memory(search: AdditiveSearch, profile: Profile) -> float:
    """Look for the fastest assignments that fit, where the fastest of all does not.

    Parameters
    ----------
    search
        What is known so far.
    profile
        How much of each layer's all-reduce counts in the best bound without a limit.

    Returns
    -------
    What no assignment holds less than, as far as it was looked for. [B]
    """
    inside = save_memory(search, profile)
    if not inside.fits:
        inside.look_for_least()
    if not search.incumbent.infeasible:
        _fit(inside)
    if not inside.fits:
        # to say how much is missing at the least
        smallest = min(inside.met.items(), key=lambda item: float(item[1].max()))
        search.cost_once(smallest[0])
    return inside.least


def _fit(inside: MemorySearch) -> None:
    """Look for the fastest assignments under the limit of a search."""
    search = inside.search
    prices = inside.move_prices(limit=inside.limit, level=HIGHEST, rounds=LIMIT_ROUNDS)
    for _ in range(CROSSINGS):
        if search.stopped or not inside.cross(inside.limit):
            break
    if inside.fits and not search.stopped:
        best = maximise_bound(search, prices)
        inside.profile = Profile.of(best.weights)
        inside.move_prices(limit=inside.limit, level=HIGHEST, rounds=LIMIT_ROUNDS)
        inside.cross(inside.limit)


def hold_least(search: AdditiveSearch, profile: Profile) -> float:
    """Look for the assignments that hold least, whatever time they take.

    Parameters
    ----------
    search
        What is known so far.
    profile
        How much of each layer's all-reduce counts in the best bound without a limit.

    Returns
    -------
    What no assignment holds less than. [B]
    """
    inside = save_memory(search, profile)
    inside.look_for_least()
    inside.squeeze()
    return inside.least
