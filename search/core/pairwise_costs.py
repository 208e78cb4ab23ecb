"""A core as elimination, prices and local moves look at it.

Assumes: matrices that lie in one place are one object here, so that work on them is shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from search.core.core import Core
from search.problem.flat import Flat, flatten
from search.problem.pairwise import PairCosts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairwiseCosts:
    """The nodes and edges of a core; its holdings, its limit and its constant are in `flat`.

    Parameters
    ----------
    core
        The core.
    costs
        Cost per candidate, one array per node.
    edges
        The edges, at most one between two nodes; +inf where the core forbids.
    """

    core: Core
    costs: tuple[np.ndarray, ...]
    edges: tuple[PairCosts, ...]
    _flat: Flat | None = field(init=False, default=None, repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many candidates each node has."""
        return tuple(c.size for c in self.costs)

    @property
    def flat(self) -> Flat:
        """The core's numbers end to end, with its holdings, its limit and its constant."""
        if self._flat is None:
            core, held = self.core, self.core.holdings
            ends = held.places + core.graph.sizes[held.owners]
            flat = flatten(
                self.costs,
                self.edges,
                [held.usages[a:b] for a, b in zip(held.places, ends, strict=True)],
                owners=held.owners,
                timeline=core.timeline,
                limit=core.limit,
                constant=core.constant,
            )
            object.__setattr__(self, "_flat", flat)
        assert self._flat is not None
        return self._flat


class _MatrixKey(NamedTuple):
    """Where a matrix lies in the core's, and its shape."""

    place: int
    rows: int
    columns: int


def pairwise_costs(core: Core) -> PairwiseCosts:
    """A core's nodes and edges with their costs."""
    graph = core.graph
    sizes = graph.sizes.tolist()
    matrices: dict[_MatrixKey, np.ndarray] = {}
    edges = []
    once = np.flatnonzero(graph.owners < graph.neighbours)
    columns = (graph.owners[once], graph.neighbours[once], graph.places[once])
    for v, u, place in zip(*(c.tolist() for c in columns), strict=True):
        key = _MatrixKey(place, sizes[v], sizes[u])
        if key not in matrices:
            values = graph.matrices[place : place + key.rows * key.columns]
            values = values.reshape(key.rows, key.columns)
            matrices[key] = np.where(values >= core.penalty, np.inf, values)
        edges.append(PairCosts(v, u, matrices[key]))
    costs = np.split(core.costs, graph.offsets[1:-1]) if sizes else []
    return PairwiseCosts(core=core, costs=tuple(costs), edges=tuple(edges))
