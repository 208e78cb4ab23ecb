"""Numbers laid end to end, so that assignments are costed by a few gathers: what local moves and
prices look at, of a problem as of a core.

Models: nodes with candidates, pair costs, and holdings: each belongs to a node and is used in a run
of rows, by an amount that depends on the node's candidate. A problem has one holding per node and
one row per time step; a core may have any number of them.
Assumes: matrices that are one object are stored once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from search.problem.timeline import UsageTimeline


class Flat(Struct, frozen=True, kw_only=True, eq=False):
    """Positions: node v's candidate i is at `offsets[v] + i`, which ends before `offsets[v + 1]`;
    edge e's pair (i, j) is at `bases[e] + i * columns[e] + j`. The holdings of v are at `starts[v]`
    to `starts[v + 1]`; holding h uses `usages[places[h] + i]` in the rows that `timeline` has for
    it, and entry k of `usages` belongs to the candidate at `users[k]`."""

    costs: np.ndarray
    offsets: np.ndarray
    matrices: np.ndarray
    bases: np.ndarray
    columns: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    owners: np.ndarray
    starts: np.ndarray
    places: np.ndarray
    usages: np.ndarray
    users: np.ndarray
    timeline: UsageTimeline
    limit: float
    constant: float

    @property
    def sizes(self) -> np.ndarray:
        """How many candidates each node has."""
        return np.diff(self.offsets)

    def per_node(self, values: np.ndarray) -> list[np.ndarray]:
        """A value per candidate, node by node."""
        return np.split(values, self.offsets[1:-1])[: self.offsets.size - 1]

    def costs_of(self, choices: np.ndarray) -> np.ndarray:
        """Cost of every row of `choices`, an assignment each; +inf where it is forbidden."""
        nodes = self.costs[self.offsets[:-1] + choices].sum(axis=1)
        pairs = self.bases + choices[:, self.sources] * self.columns + choices[:, self.targets]
        return np.asarray(nodes + self.matrices[pairs].sum(axis=1) + self.constant)

    def cost(self, choices: Sequence[int] | np.ndarray) -> float:
        """Cost of an assignment; +inf where it is forbidden."""
        return float(self.costs_of(np.array(choices, dtype=np.int64).reshape(1, -1))[0])

    def used(self, choices: np.ndarray) -> np.ndarray:
        """What every holding uses, of one assignment or, row by row, of many. [B]"""
        return np.asarray(self.usages[self.places + choices[..., self.owners]])

    def profile(self, choices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Usage per row. [B]"""
        return self.timeline.profile(self.used(np.array(choices, dtype=np.int64)))

    def is_over(self, choices: Sequence[int] | np.ndarray) -> bool:
        """Whether an assignment uses more than the limit in some row."""
        return bool((self.profile(choices) > self.limit).any())

    def fits(self, choices: Sequence[int] | np.ndarray) -> bool:
        """Whether an assignment is neither forbidden nor over the limit."""
        return self.cost(choices) < math.inf and not self.is_over(choices)

    def charges(self, rates: np.ndarray) -> np.ndarray:
        """Per candidate what its node's holdings use, each times its rate."""
        weights = self.usages * np.repeat(rates, self.sizes[self.owners])
        return np.bincount(self.users, weights=weights, minlength=self.costs.size)


def flatten(
    costs: Sequence[np.ndarray],
    edges: Sequence[tuple[int, int, np.ndarray]],
    usages: Sequence[np.ndarray],
    *,
    owners: np.ndarray,
    timeline: UsageTimeline,
    limit: float = math.inf,
    constant: float = 0.0,
) -> Flat:
    """Lay node costs, usages and the distinct edge matrices end to end.

    Parameters
    ----------
    costs
        Cost per candidate, per node.
    edges
        Both nodes and the matrix of each edge.
    usages
        Usage per candidate of its node, per holding. [B]
    owners
        The node of each holding, in increasing order.
    timeline
        The rows, and which of them each holding covers.
    limit
        The most that may be used in any row; +inf where there is no limit. [B]
    constant
        What is paid whatever is chosen.
    """
    distinct = {id(matrix): matrix for _, _, matrix in edges}
    starts = offsets_of([m.size for m in distinct.values()])
    base_of = dict(zip(distinct, starts.tolist(), strict=False))
    offsets, ends = offsets_of([c.size for c in costs]), offsets_of([u.size for u in usages])
    places = ends[:-1]
    return Flat(
        costs=_joined(list(costs)),
        offsets=offsets,
        matrices=_joined([m.ravel() for m in distinct.values()]),
        bases=np.array([base_of[id(m)] for _, _, m in edges], dtype=np.int64),
        columns=np.array([m.shape[1] for _, _, m in edges], dtype=np.int64),
        sources=np.array([s for s, _, _ in edges], dtype=np.int64),
        targets=np.array([t for _, t, _ in edges], dtype=np.int64),
        owners=owners,
        starts=np.searchsorted(owners, np.arange(len(costs) + 1)),
        places=places,
        usages=_joined(list(usages)),
        users=np.arange(ends[-1]) + np.repeat(offsets[owners] - places, np.diff(ends)),
        timeline=timeline,
        limit=limit,
        constant=constant,
    )


def offsets_of(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where each of so many entries after the others begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0)
