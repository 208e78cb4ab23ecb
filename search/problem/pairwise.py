"""What a problem and a core have in common: what elimination, prices and local moves look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from search.problem.flat import Flat


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


class PairCosts(NamedTuple):
    """An edge that nobody has to check."""

    source: int
    target: int
    matrix: np.ndarray


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


class Limited(Pairwise, Protocol):
    """Nodes and edges with their costs, and what is used under a limit."""

    @property
    def flat(self) -> Flat:
        """The same numbers end to end, with the holdings and the limit."""
