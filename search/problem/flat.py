"""A problem's numbers laid end to end, so that assignments are costed by a few gathers.

Assumes: matrices that are one object are stored once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flat:
    """Positions: node v's candidate i is at `offsets[v] + i`; edge e's pair (i, j) is at
    `bases[e] + i * columns[e] + j`."""

    costs: np.ndarray
    usages: np.ndarray
    offsets: np.ndarray
    matrices: np.ndarray
    bases: np.ndarray
    columns: np.ndarray
    sources: np.ndarray
    targets: np.ndarray


def flatten(
    costs: Sequence[np.ndarray],
    usages: Sequence[np.ndarray],
    edges: Sequence[tuple[int, int, np.ndarray]],
) -> Flat:
    """Lay node costs, usages and the distinct edge matrices end to end.

    Parameters
    ----------
    costs
        Cost per candidate, per node.
    usages
        Usage per candidate, per node, or nothing. [B]
    edges
        Both nodes and the matrix of each edge.
    """
    distinct = {id(matrix): matrix for _, _, matrix in edges}
    starts = np.cumsum([0] + [m.size for m in distinct.values()])
    base_of = dict(zip(distinct, starts.tolist(), strict=False))
    return Flat(
        costs=_joined(list(costs)),
        usages=_joined(list(usages)),
        offsets=np.cumsum([0] + [c.size for c in costs])[: len(costs)],
        matrices=_joined([m.ravel() for m in distinct.values()]),
        bases=np.array([base_of[id(m)] for _, _, m in edges], dtype=np.int64),
        columns=np.array([m.shape[1] for _, _, m in edges], dtype=np.int64),
        sources=np.array([s for s, _, _ in edges], dtype=np.int64),
        targets=np.array([t for _, t, _ in edges], dtype=np.int64),
    )


def _joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0)
