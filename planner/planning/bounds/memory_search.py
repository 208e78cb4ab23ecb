"""What a search under a memory limit knows, and its steps.

Prices on memory move answers from the fastest assignment towards those that hold least. Between
answers on both sides of the limit lie assignments that take some layers from one and the others
from the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.planning.bounds.additive_search import AdditiveSearch, Floats
from planner.planning.memory.crossing import Crossing
from planner.planning.memory.fitting import ROUNDING, SplitsThatFit
from planner.planning.memory.prices import CLOSE, Climb, MemoryPrices, Point
from planner.planning.memory.rows import MemoryRows
from planner.planning.space.profile import Profile
from search.problem.problem import Assignment, Problem, costs_and_peaks

# Prices that no plan is worth, in steps a peak of the fastest assignment.
HIGHEST = 1000.0
# How often prices move where time does not count at all.
LEAST_ROUNDS = 40
# How many of the best answers are crossed with each other.
NEIGHBOURS = 6
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
    margin
        By how much assignments that were costed exceed what the rows tell, where it matters. [B]
    solved
        Prices that were tried, and the bounds on what is best with them paid. [s/B], [s]
    fitting
        How layers may be split where something is to be within the limit.
    allowed
        Which candidates of the search are split like that, by layer.
    """

    search: AdditiveSearch
    rows: MemoryRows
    profile: Profile
    limit: float
    unit: tuple[float, float]
    met: dict[Choices, Floats] = field(default_factory=dict)
    least: float = 0.0
    margin: float = 0.0
    solved: list[tuple[Floats, float]] = field(default_factory=list)
    fitting: SplitsThatFit = field(default_factory=SplitsThatFit)
    allowed: dict[int, NDArray[np.bool_]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether an assignment that fits was met."""
        return self.search.incumbent.choices is not None

    def allow(self, fitting: SplitsThatFit) -> None:
        """Take no candidate that is part of nothing within the limit.

        Parameters
        ----------
        fitting
            How layers may be split there.
        """
        formulation = self.search.formulation
        self.fitting = fitting
        self.allowed = {
            i: fitting.among(i, formulation.spaces[formulation.layers[i].name].candidates)
            for i in fitting.left
        }

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
                costed = self.search.cost_once(choices)
                if not self.search.fits(costed):
                    reserved = self.search.formulation.cluster.device.reserved_memory
                    beyond = costed.memory.total - reserved - float(held.max())
                    self.margin = max(self.margin, beyond)

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

    def planes(self, problem: Problem | None) -> list[Point]:
        """Those of the points that take nothing but what is allowed, or all if there are none."""
        points = self.points(problem)
        table = np.array(list(self.met), dtype=np.int64)
        within = np.ones(len(table), dtype=bool)
        for layer, allowed in self.allowed.items():
            within &= allowed[table[:, layer]]
        return [points[n] for n in np.flatnonzero(within)] or points

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

        def bound_at(prices: Floats) -> tuple[float, bool] | None:
            if self.search.stopped:
                return None
            answer = self.search.solve(self.profile, self.at(prices))
            self.solved.append((prices, answer.lower_bound))
            return answer.lower_bound - float(prices.sum()) * limit, self._is_new(answer)

        total = level * self.unit[0] / self.unit[1]
        climb = Climb(limit=limit, total=total, unit=self.unit, rounds=rounds)
        start = self._start(limit, total)
        return self.at(climb.best_prices(lambda: self.planes(problem), bound_at, start=start))

    def _start(self, limit: float, total: float) -> Floats:
        """Prices that are likely to be near the best.

        Parameters
        ----------
        limit
            What may be held at any moment; nothing stands for prices that use up the total. [B]
        total
            The most that they may add up to. [s/B]
        """
        if not self.solved:
            return np.full(self.rows.num_moments, total / self.rows.num_moments)
        prices, _ = max(self.solved, key=lambda one: one[1] - float(one[0].sum()) * limit)
        return prices if limit else prices * (total / (float(prices.sum()) or 1.0))

    def at(self, prices: Floats) -> MemoryPrices:
        """Prices under the limit of the search."""
        return MemoryPrices(
            rows=self.rows,
            prices=prices,
            limit=self.limit,
            fitting=self.fitting,
            allowed=self.allowed,
        )

    def _is_new(self, answer: Assignment) -> bool:
        """Keep an answer; whether it was not met before."""
        before = len(self.met)
        if answer.choices:
            self.meet(answer.choices)
        return len(self.met) > before

    def look_for_least(self) -> None:
        """Look for the least memory that is possible, and prove how little is not."""
        total = self.unit[0] / self.unit[1]

        def bound_at(prices: Floats) -> tuple[float, bool] | None:
            if self.search.stopped or self.least > self.limit:
                return None
            answer = self.search.solve_timeless(self.at(prices / total))
            least = min(answer.lower_bound * (1.0 - ROUNDING), self.fitting.beyond)
            self.least = max(self.least, least)
            return answer.lower_bound * total, self._is_new(answer)

        climb = Climb(limit=0.0, total=total, unit=self.unit, rounds=LEAST_ROUNDS)
        start = self._start(0.0, total)
        climb.best_prices(lambda: self.planes(None), bound_at, start=start)

    def cross(self, limit: float, prices: Floats) -> bool:
        """Look between the assignments that are best at given prices; whether that was worth it.

        Parameters
        ----------
        limit
            What may be held at any moment. [B]
        prices
            Of a byte at each moment. [s/B]
        """
        problem = self.search.formulation.problem(self.profile)
        crossing = Crossing(problem=problem, rows=self.rows, limit=limit - self.margin)
        points = dict(zip(self.met, self.points(problem), strict=True))
        paid = {c: point.cost + float(prices @ point.held) for c, point in points.items()}
        near = sorted(points, key=paid.__getitem__)[:NEIGHBOURS]
        values = crossing.values(np.array(list(points), dtype=np.int64))
        start = list(points)[int(np.lexsort(values.T[::-1])[0])]
        found = tuple(crossing.descend(start, near).tolist())
        is_new = found not in self.met
        self.meet(found)
        return is_new

    def _lowest(self) -> float:
        """The least peak of all assignments met so far, by the rows. [B]"""
        return min(float(point.held.max()) for point in self.points(None))

    def squeeze(self) -> None:
        """Look for assignments of less and less memory: limits close in on the least possible."""
        low = self.least
        for _ in range(SQUEEZES):
            found = self._lowest()
            if self.search.stopped or found - low <= CLOSE * found:
                break
            target = (low + found) / 2.0
            prices = self.move_prices(limit=target, level=HIGHEST, rounds=SQUEEZE_ROUNDS)
            self.cross(target, prices.prices)
            if self._lowest() > target:
                low = target
