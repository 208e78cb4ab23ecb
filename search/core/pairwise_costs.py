"""A core as elimination looks at it: nodes with costs and edges with matrices.

Assumes: matrices that lie in one place are one object here, so that work on them is shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from search.core.core import Core


class CorePair(NamedTuple):
    """An edge of a core with +inf where it forbids."""

    source: int
    target: int
    matrix: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairwiseCosts:
    """The nodes and edges of a core.

    Parameters
    ----------
    costs
        Cost per candidate, one array per node.
    edges
        The edges, at most one between two nodes.
    """

    costs: tuple[np.ndarray, ...]
    edges: tuple[CorePair, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many candidates each node has."""
        return tuple(c.size for c in self.costs)


class _MatrixKey(NamedTuple):
    """Where a matrix lies in the core's, and its shape."""

    place: int
    rows: int
    columns: int


def pairwise_costs(core: Core) -> PairwiseCosts:
    """The nodes and edges of a core, without the core's constant."""
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
        edges.append(CorePair(v, u, matrices[key]))
    costs = np.split(core.costs, graph.offsets[1:-1]) if sizes else []
    return PairwiseCosts(costs=tuple(costs), edges=tuple(edges))
