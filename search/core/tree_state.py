"""What tree moves keep to, what they change, and the room they take; see `search.core.tree_moves`.

Assumes: compiled loops take these as they are, so every field always has the same type.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from search.core.core import Core


class MoveRules(NamedTuple):
    """What moves keep to.

    Parameters
    ----------
    longest
        The most nodes in one tree.
    temperature
        What the noise on a cost is multiplied by.
    limit
        The most that may be used in a row, which must hold already; +inf for no limit. [B]
    rise
        What the price of a row is multiplied by when a move would exceed the limit there.
    decay
        What all prices are multiplied by from time to time.
    """

    longest: int
    temperature: float = 0.0
    limit: float = np.inf
    rise: float = 1.0
    decay: float = 1.0


class Moving(NamedTuple):
    """The assignment that moves and what belongs to it; changed in place.

    Parameters
    ----------
    choices
        The candidate of each node.
    usage
        Usage per row. [B]
    prices
        Price per unit in every row.
    random
        State of the generator of random numbers, a single one.
    best
        The cheapest assignment met.
    best_cost
        Its cost without the core's constant, a single number; -inf to keep none.
    """

    choices: np.ndarray
    usage: np.ndarray
    prices: np.ndarray
    random: np.ndarray
    best: np.ndarray
    best_cost: np.ndarray


class Workspace(NamedTuple):
    """Room for one move after the other.

    Parameters
    ----------
    place
        Per node its place in the tree, -1 where it is not in it.
    tree
        The nodes of the tree, each after the one that it hangs on.
    up
        Per node of the tree the edge to the node that it hangs on.
    frontier
        Nodes that may join the tree.
    local
        Cost per candidate, given the choices outside the tree.
    decisions
        The best candidate of a node for every candidate of the node that it hangs on.
    decided
        Per node where its decisions begin.
    chosen
        The candidate that the move would give each node.
    change
        By how much usage would change from one row to the next. [B]
    paid
        Prices summed up to a row.
    """

    place: np.ndarray
    tree: np.ndarray
    up: np.ndarray
    frontier: np.ndarray
    local: np.ndarray
    decisions: np.ndarray
    decided: np.ndarray
    chosen: np.ndarray
    change: np.ndarray
    paid: np.ndarray


def make_workspace(core: Core, choices: np.ndarray) -> Workspace:
    """Room for moves from an assignment."""
    graph, size = core.graph, core.num_nodes
    widest = np.zeros(size, dtype=np.int64)
    np.maximum.at(widest, graph.owners, graph.sizes[graph.neighbours])
    return Workspace(
        place=np.full(size, -1, dtype=np.int64),
        tree=np.empty(size, dtype=np.int64),
        up=np.empty(size, dtype=np.int64),
        frontier=np.empty(graph.neighbours.size + 1, dtype=np.int64),
        local=np.empty(core.costs.size),
        # The most entries that the decisions of any forest can take.
        decisions=np.empty(int(widest.sum()) + 1, dtype=np.int32),
        decided=np.empty(size, dtype=np.int64),
        chosen=choices.copy(),
        change=np.zeros(core.num_rows + 1),
        paid=np.zeros(core.num_rows + 1),
    )
