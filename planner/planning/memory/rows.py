"""What a device holds at every moment of a step, as a sum over layers and edges.

With a price on every moment, such a sum is part of an additive problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from planner.planning.space.formulate import Floats
from search.problem import CostEdge as PairCost
from search.problem import Problem


class LayerUse(Struct, frozen=True, kw_only=True, eq=False):
    """What a layer holds, by candidate, from one moment until before another one. [B]"""

    layer: int
    sizes: Floats
    first: int
    last: int


class PairUse(Struct, frozen=True, kw_only=True, eq=False):
    """What two layers add, by the candidates of both, from one moment until before another. [B]"""

    source: int
    target: int
    sizes: Floats
    first: int
    last: int


class InFlight(Struct, frozen=True, kw_only=True, eq=False):
    """Gradients that are in flight: all of them, but no more than some buckets.

    Parameters
    ----------
    most
        What these buckets hold. [B]
    part
        The part of all gradients that rows count: the least part that can be in flight.
    gradients
        Of each layer, by candidate. [B]
    """

    most: float
    part: float
    gradients: Mapping[int, Floats]


class MemoryRows(Struct, frozen=True, kw_only=True, eq=False):
    """What a device holds at every moment, never more than the truth.

    Parameters
    ----------
    num_moments
        How many moments there are. [items]
    layers, pairs
        What layers hold, and what edges add.
    in_flight
        Gradients in flight, which are no sum: of these layers hold a part, by which sums are less
        than the truth.
    """

    num_moments: int
    layers: tuple[LayerUse, ...]
    pairs: tuple[PairUse, ...]
    in_flight: InFlight | None = None

    def profile(self, choices: Sequence[int]) -> Floats:
        """What is held at each moment under an assignment; (moments,). [B]"""
        row: Floats = self.profiles(np.array([choices], dtype=np.int64))[0]
        return row

    def profiles(self, choices: NDArray[np.int64]) -> Floats:
        """What is held at each moment under many assignments; (assignments, moments). [B]

        Parameters
        ----------
        choices
            A row for each assignment; (assignments, layers).
        """
        change = np.zeros((self.num_moments + 1, len(choices)))
        for use in self.layers:
            size = use.sizes[choices[:, use.layer]]
            change[use.first] += size
            change[use.last] -= size
        for pair in self.pairs:
            size = pair.sizes[choices[:, pair.source], choices[:, pair.target]]
            change[pair.first] += size
            change[pair.last] -= size
        return change.cumsum(axis=0)[:-1].T

    def held(self, choices: NDArray[np.int64]) -> Floats:
        """The same with all gradients that are in flight; (assignments, moments). [B]"""
        rows, sums = self.in_flight, self.profiles(choices)
        if rows is None:
            return sums
        gradients = np.zeros(len(choices))
        for layer, sizes in rows.gradients.items():
            gradients += sizes[choices[:, layer]]
        beyond = np.minimum(gradients, rows.most) - rows.part * gradients
        found: Floats = sums + np.maximum(beyond, 0.0)[:, None]
        return found

    def profile_of(self, choices: Mapping[int, int]) -> Floats:
        """What some layers hold at each moment, edges left out; (moments,). [B]

        Parameters
        ----------
        choices
            The candidate of each of these layers.
        """
        change = np.zeros(self.num_moments + 1)
        for use in self.layers:
            if use.layer in choices:
                size = use.sizes[choices[use.layer]]
                change[use.first] += size
                change[use.last] -= size
        return change.cumsum()[:-1]

    def by_layer(self, prices: Floats) -> dict[int, Floats]:
        """What the candidates of each layer pay at prices of the moments, if anything. [s]"""
        until = np.append(0.0, prices.cumsum())
        paid: dict[int, Floats] = {}
        for use in self.layers:
            if price := float(until[use.last] - until[use.first]):
                paid[use.layer] = paid.get(use.layer, 0.0) + price * use.sizes
        return paid

    def by_pair(self, prices: Floats) -> list[PairCost]:
        """What edges pay at prices of the moments. [s]"""
        until = np.append(0.0, prices.cumsum())
        known: dict[tuple[int, float], Floats] = {}
        pairs = []
        for pair in self.pairs:
            if price := float(until[pair.last] - until[pair.first]):
                key = (id(pair.sizes), price)
                if key not in known:
                    known[key] = price * pair.sizes
                pairs.append(PairCost(source=pair.source, target=pair.target, matrix=known[key]))
        return pairs

    def priced(self, problem: Problem, prices: Floats) -> Problem:
        """A problem with what is held paid for.

        Parameters
        ----------
        problem
            The problem.
        prices
            Of a byte at each moment; (moments,). [s/B]
        """
        costs = list(problem.costs)
        for layer, paid in self.by_layer(prices).items():
            costs[layer] = costs[layer] + paid
        edges = (*problem.edges, *self.by_pair(prices))
        return Problem(costs=tuple(costs), edges=edges, names=problem.names)

    def never_less(self, problem: Problem, weights: Floats) -> list[tuple[Problem, float]]:
        """What is held at some moments, as sums that are never less than the truth; any of them
        within a limit will do.

        Parameters
        ----------
        problem
            The candidates, where nothing costs anything.
        weights
            How much each moment counts; they sum to 1. (moments,)

        Returns
        -------
        What is held as costs, and what comes on top of it. [B]
        """
        held, rows = self.priced(problem, weights), self.in_flight
        if rows is None:
            return [(held, 0.0)]
        sizes = rows.gradients.values()
        sums = []
        # what is in flight is no more than some buckets, and no more than all gradients
        if sum(float(size.max()) for size in sizes) > rows.most:
            sums.append((-rows.part, rows.most))
        if sum(float(size.min()) for size in sizes) < rows.most:
            sums.append((1.0 - rows.part, 0.0))
        return [(self._with_gradients(held, part), beyond) for part, beyond in sums]

    def _with_gradients(self, held: Problem, part: float) -> Problem:
        """What is held with a part of all gradients.

        Parameters
        ----------
        held
            What is held, as costs. [B]
        part
            The part; below 0 where it is taken off.
        """
        assert self.in_flight is not None
        costs = list(held.costs)
        for layer, sizes in self.in_flight.gradients.items():
            costs[layer] = costs[layer] + part * sizes
        return Problem(costs=tuple(costs), edges=held.edges)
