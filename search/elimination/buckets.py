"""Bucket elimination: the exact minimum of a sum of node and edge costs.

Models: nodes are eliminated one by one. The bucket of a node holds all tables that mention it; its
message is their sum minimised over the node, a table over the neighbours that remain (Dechter
1999). Read backwards, a bucket gives for every candidate of its node the cost of the best
completion, given the choices of the nodes eliminated later: that is how choices are decoded, and
why the next best ones can be enumerated without searching.
Assumes: tables that are one object stand for one table, so a bucket whose tables were all seen
before, in the same positions, has the same message: repeated blocks of a network cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from search.elimination.order import EliminationOrder, plan_elimination
from search.elimination.tables import Part, arrange, min_sum
from search.problem import ProblemError
from search.problem.deadline import Deadline
from search.problem.pairwise import PairEdge, Pairwise

# The most entries of all tables of one elimination: 0.5 GiB.
MAX_ELEMENTS = 2.0**26
# Entries that elimination visits in some seconds; beyond that message passing has a good bound
# sooner, so whoever has the choice asks for no more.
MOST_WORK = 2.0e9


class EliminationBucket(Struct, frozen=True, kw_only=True, eq=False):
    """What is left of one node once it is eliminated.

    Parameters
    ----------
    node
        The eliminated node.
    scope
        The neighbours it had then, first eliminated first.
    parts
        The tables that mention the node, over (node, *scope).
    message
        Their sum minimised over the node, a table over `scope`.
    """

    node: int
    scope: tuple[int, ...]
    parts: tuple[Part, ...]
    message: np.ndarray

    def completions(self, choices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Per candidate of the node the cost of this bucket, given the choices in its scope."""
        total: np.ndarray | None = None
        for axes, array in self.parts:
            picked = array[(slice(None), *(choices[self.scope[a - 1]] for a in axes[1:]))]
            total = picked if total is None else total + picked
        assert total is not None
        return total


class Eliminated(Struct, frozen=True, kw_only=True, eq=False):
    """A problem with all of its nodes eliminated.

    Parameters
    ----------
    buckets
        One per node, first eliminated first.
    minimum
        The least cost of any assignment; +inf where all are forbidden.
    order
        The order followed.
    """

    buckets: tuple[EliminationBucket, ...]
    minimum: float
    order: EliminationOrder

    @property
    def is_forbidden(self) -> bool:
        """Whether every assignment is forbidden."""
        return self.minimum == math.inf

    def decode(self) -> list[int]:
        """A cheapest assignment; of equal candidates the first is taken."""
        choices = [0] * len(self.buckets)
        for bucket in reversed(self.buckets):
            choices[bucket.node] = int(bucket.completions(choices).argmin())
        return choices


def plan(problem: Pairwise, *, max_work: float = math.inf) -> EliminationOrder:
    """Plan the elimination of a problem's nodes, or refuse where that takes too much.

    Parameters
    ----------
    problem
        The problem.
    max_work
        The most entries that may be visited; those of all tables are limited in any case.
    """
    pairs = [(e.source, e.target) for e in problem.edges]
    order = plan_elimination(problem.sizes, pairs, max_elements=MAX_ELEMENTS)
    if order.work > max_work:
        raise ProblemError(
            f"elimination must visit at most {max_work:.3g} entries here but would visit"
            f" {order.work:.3g}; use the solver auto, which falls back on a heuristic with a bound"
        )
    return order


def eliminate(
    problem: Pairwise,
    order: EliminationOrder,
    *,
    costs: Sequence[np.ndarray] | None = None,
    edges: Sequence[PairEdge] | None = None,
    deadline: Deadline | None = None,
) -> Eliminated:
    """Eliminate every node in the given order.

    Parameters
    ----------
    problem
        The nodes and edges; what is used is not looked at.
    order
        An order from `plan` for this problem.
    costs
        Node costs to use instead of the problem's.
    edges
        Matrices to use instead of the problem's, between the same nodes.
    deadline
        When to give up by raising `OutOfTime`.
    """
    incident, constant = _initial_tables(
        problem.costs if costs is None else costs, problem.edges if edges is None else edges
    )
    seen: dict[tuple[object, ...], np.ndarray] = {}
    buckets: list[EliminationBucket] = []
    for node, scope in zip(order.nodes, order.scopes, strict=True):
        if deadline is not None:
            deadline.check()
        position = {node: 0} | {u: i + 1 for i, u in enumerate(scope)}
        tables = incident[node]
        # The key holds ids; `incident` and `buckets` keep the arrays alive, so ids stay unique.
        key = (
            len(scope),
            *sorted((tuple(position[u] for u in t_scope), id(t)) for t_scope, t in tables),
        )
        parts = tuple(arrange(t_scope, t, position) for t_scope, t in tables)
        message = seen.get(key)
        if message is None:
            shape = tuple(problem.costs[u].size for u in (node, *scope))
            message = seen[key] = min_sum(parts, shape, deadline)
        buckets.append(EliminationBucket(node=node, scope=scope, parts=parts, message=message))
        for u in scope:
            incident[u] = [x for x in incident[u] if node not in x[0]]
        if scope:
            for u in scope:
                incident[u].append((scope, message))
        else:
            constant += float(message)
    return Eliminated(buckets=tuple(buckets), minimum=constant, order=order)


Table = tuple[tuple[int, ...], np.ndarray]


def _initial_tables(
    costs: Sequence[np.ndarray], edges: Sequence[PairEdge]
) -> tuple[list[list[Table]], float]:
    """Per node the tables that mention it; nodes with one candidate are cut out of edges."""
    interned: dict[bytes, np.ndarray] = {}
    incident: list[list[Table]] = []
    for v, cost in enumerate(costs):
        # Equal cost vectors are made one object, so that buckets of repeated blocks are alike.
        incident.append([((v,), interned.setdefault(cost.tobytes(), cost))])
    rows: dict[tuple[int, int], np.ndarray] = {}
    constant = 0.0
    for edge in edges:
        single_source = edge.matrix.shape[0] == 1
        single_target = edge.matrix.shape[1] == 1
        if single_source and single_target:
            constant += float(edge.matrix[0, 0])
        elif single_source or single_target:
            node = edge.target if single_source else edge.source
            row = rows.setdefault((id(edge.matrix), node), edge.matrix.ravel())
            incident[node].append(((node,), row))
        else:
            table = ((edge.source, edge.target), edge.matrix)
            incident[edge.source].append(table)
            incident[edge.target].append(table)
    return incident, constant
