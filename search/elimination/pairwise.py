"""What elimination looks at: nodes with costs and edges with matrices, of a problem or a core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class PairEdge(Protocol):
    """A cost for every pair of candidates of two nodes; +inf forbids the pair."""

    @property
    def source(self) -> int:
        """Node whose candidates index the rows."""

    @property
    def target(self) -> int:
        """Node whose candidates index the columns."""

    @property
    def matrix(self) -> np.ndarray:
        """Cost per pair."""


class Pairwise(Protocol):
    """Nodes and edges with their costs, as a `Problem` has them and a core does in `PairwiseCosts`;
    whatever is used under a limit is left out."""

    @property
    def costs(self) -> tuple[np.ndarray, ...]:
        """Cost per candidate, one array per node."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many candidates each node has."""

    @property
    def edges(self) -> Sequence[PairEdge]:
        """The edges; several between two nodes add up."""
