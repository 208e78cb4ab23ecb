"""What a search under a memory limit knows, and its steps.

Prices on memory move answers from the fastest assignment towards those that hold least. Between
answers on both sides of the limit lie assignments that take some layers from one and the others
from the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from planner.planning.bounds.additive_search import AdditiveSearch, Floats
from planner.planning.memory.fitting import ROUNDING, SplitsThatFit
from planner.planning.memory.mixtures import Choices, Mixtures
from planner.planning.memory.prices import CLOSE, Climb, MemoryPrices, Point, balance
from planner.planning.memory.rows import MemoryRows
from planner.planning.space.profile import Profile
from search.elimination.within import cheapest_within
from search.problem import ProblemError
from search.problem.deadline import OutOfTime
from search.problem.problem import Assignment, Problem, costs_and_peaks

# Prices that no plan is worth, in steps a peak of the fastest assignment.
HIGHEST = 1000.0
# How often weights of moments move where time does not count at all.
LEAST_ROUNDS = 16
# How many of the best answers at given prices are crossed with each other, and with how many of the
# best within the limit and of the smallest.
NEIGHBOURS, FURTHER = 8, 4
# How often answers are looked for layer by layer, each time with more of what takes them longest.
LINES = 2
# So near the bound it is not worth it: DenseNet-161 on 64 GPUs, 4 % above, gains 0.4 % and takes a
# third more time. [parts]
NEAR = 0.05


class MemorySearch(Struct, kw_only=True, eq=False):
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
        table = np.array(new, dtype=np.int64)
        peaks = self.rows.held(table).max(axis=1)
        for choices, held, peak in zip(new, self.rows.profiles(table), peaks, strict=True):
            self.met[choices] = held
            if peak <= self.limit:
                costed = self.search.cost_once(choices)
                if not self.search.fits(costed):
                    reserved = self.search.formulation.cluster.device.reserved_memory
                    beyond = costed.memory.total - reserved - float(peak)
                    self.margin = max(self.margin, beyond)

    def points(self, problem: Problem) -> list[Point]:
        """The assignments met so far, as prices see them."""
        self.meet()
        costs, _ = costs_and_peaks(problem, np.array(list(self.met), dtype=np.int64))
        return [
            Point(cost=float(cost), held=held)
            for cost, held in zip(costs, self.met.values(), strict=True)
        ]

    def planes(self, problem: Problem) -> list[Point]:
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

    def look_for_least(self, enough: float = 0.0) -> None:
        """Look for the least memory that is possible, and prove how little is not.

        Parameters
        ----------
        enough
            A peak that is small enough. [B]
        """

        def look_at(weights: Floats) -> Floats | None:
            if self.search.stopped or self.least > self.limit or (enough and self.fits):
                return None
            answer = self.search.solve_timeless(self.at(weights))
            least = min(answer.lower_bound * (1.0 - ROUNDING), self.fitting.beyond)
            self.least = max(self.least, least)
            if not answer.choices:
                return None
            self.meet(answer.choices)
            held = self.met[tuple(map(int, answer.choices))]
            return None if held.max() - least <= CLOSE * least else held

        start = self._start(0.0, 1.0)
        balance(look_at, start / (start.sum() or 1.0), LEAST_ROUNDS)
        if self.search.stopped or self.least > self.limit or (enough and self.fits):
            return
        pool = self._pool(self.search.formulation.problem(self.profile), self._smallest())
        self._meets_new(pool.smallest(enough))

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
        points = dict(zip(self.met, self.points(problem), strict=True))
        paid = {c: point.cost + float(prices @ point.held) for c, point in points.items()}
        near = sorted(points, key=paid.__getitem__)[:NEIGHBOURS]
        within = [c for c, point in points.items() if point.held.max() <= limit]
        within.sort(key=lambda choices: points[choices].cost)
        some = [*self._smallest()[:FURTHER], *within[:FURTHER]]
        pool = self._pool(problem, list(dict.fromkeys([*some[:1], *near, *some])))
        found = pool.cheapest(limit - self.margin)
        return self._meets_new(found if found or self.fits else pool.smallest(limit))

    def line_up(self, limit: float, prices: Floats) -> None:
        """Look layer by layer for what is fastest within a limit, unless that is known nearly.

        Parameters
        ----------
        limit
            What may be held at any moment. [B]
        prices
            Of a byte at each moment, of which those that count have one. [s/B]
        """
        known = self.search.incumbent
        is_near = known.cost * (1.0 - NEAR) <= known.bound
        if is_near or self.search.stopped or not (price := float(prices.sum())):
            return
        formulation, free = self.search.formulation, self.at(np.zeros_like(prices))
        sums = self.rows.never_less(formulation.without_times(), prices / price)
        for held, beyond in sums:
            profile, room = self.profile, limit - self.margin - beyond
            for turn in range(LINES if room > 0.0 else 0):
                try:
                    found = cheapest_within(
                        free.priced(formulation.problem(profile)),
                        held,
                        limit=room,
                        price=price,
                        count=NEIGHBOURS,
                        deadline=self.search.deadline,
                    )
                except ProblemError:
                    return  # too wide a graph, which the solver has noted by now
                except OutOfTime:
                    self.search.incumbent.stopped_by = "time limit"
                    return
                if not found:
                    break
                self.meet(*found)
                peaks = self.rows.held(np.array(found)).max(axis=1)
                if peaks.min() > limit:  # at other moments
                    room -= float(peaks.min()) - limit
                    continue
                terms = formulation.terms(found[int((peaks <= limit).argmax())])
                profile = profile.towards(int(terms.argmax()), 1.0 / (turn + 2))

    def _smallest(self) -> list[Choices]:
        """The assignments met so far that hold least at their peaks."""
        peaks = self.rows.held(np.array(list(self.met), dtype=np.int64)).max(axis=1)
        known = list(self.met)
        return [known[n] for n in np.argsort(peaks, kind="stable")[: 2 * NEIGHBOURS]]

    def _pool(self, problem: Problem, assignments: Sequence[Choices]) -> Mixtures:
        """What some assignments take of each layer."""
        return Mixtures.of(problem, self.rows, assignments, self.search.deadline)

    def _meets_new(self, found: Choices | None) -> bool:
        """Keep what was found; whether it was not met before."""
        if found is None or found in self.met:
            return False
        self.meet(found)
        return True
