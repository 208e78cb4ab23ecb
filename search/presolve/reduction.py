"""Smaller problems with the same optimum, and the way there and back.

Models: steps that keep a cheapest assignment that fits are taken until there is none left to take:
candidates go that are forbidden, too large or never better than another one, nodes go whose
candidate follows from those of their neighbours, and rows (time steps) go that cannot exceed the
limit or that others imply. What stays is a `Core`.
Assumes: one cheapest assignment is enough; assignments that tie may go.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from search.core.core import Core, make_core
from search.presolve.rows import check_base, drop_rows, drop_too_large
from search.presolve.rules import drop_dominated, reduce_edge, reduce_node
from search.presolve.state import Impossible, State, Step
from search.presolve.tables import Pool, PooledArray
from search.problem import Problem
from search.problem.deadline import Deadline

# Where fewer than this part of the rows are left, looking at all else again is cheaper than before;
# found by trial on the contest's four published problems.
MANY_ROWS = 0.9


class Reduction(Struct, frozen=True, kw_only=True, eq=False):
    """A smaller problem, and the way to it and back.

    Parameters
    ----------
    core
        What is left.
    num_nodes
        How many nodes there were.
    nodes
        Those of them that are left.
    kept
        Per node that is left the candidates that are left.
    steps
        How the candidates of the other nodes follow, in the order in which these went.
    """

    core: Core
    num_nodes: int
    nodes: tuple[int, ...]
    kept: tuple[np.ndarray, ...]
    steps: tuple[Step, ...]

    def restore(self, choices: Sequence[int] | np.ndarray) -> list[int]:
        """The assignment before the reduction that stands for one of the core.

        Parameters
        ----------
        choices
            The candidate of each node of the core.
        """
        found = [0] * self.num_nodes
        for node, kept, choice in zip(self.nodes, self.kept, choices, strict=True):
            found[node] = int(kept[choice])
        for step in reversed(self.steps):
            found[step.node] = step.choice(found)
        return found

    def reduce(self, choices: Sequence[int] | np.ndarray) -> np.ndarray | None:
        """What is left of an assignment, or None where it takes a candidate that is gone.

        A node that is gone may take another candidate than the one that `restore` will give it.

        Parameters
        ----------
        choices
            The candidate of each node before the reduction.
        """
        found = np.zeros(len(self.nodes), dtype=np.int64)
        for place, (node, kept) in enumerate(zip(self.nodes, self.kept, strict=True)):
            found[place] = at = np.searchsorted(kept, choices[node])
            if at == kept.size or kept[at] != choices[node]:
                return None
        return found


def presolve(problem: Problem, *, deadline: Deadline | None = None) -> Reduction | None:
    """Let go what does not change the optimum; None where nothing is allowed and fits.

    Parameters
    ----------
    problem
        The problem.
    deadline
        When to stop with what is reached.
    """
    try:
        return _reduced(_from_problem(problem), deadline)
    except Impossible:
        return None


def shrink(core: Core, alive: np.ndarray, *, deadline: Deadline | None = None) -> Reduction | None:
    """Keep only some candidates of a core, then let go what that makes superfluous; None where
    nothing that is left is allowed and fits.

    Parameters
    ----------
    core
        The core.
    alive
        Whether to keep a candidate, node after node.
    deadline
        When to stop with what is reached.
    """
    try:
        state = _from_core(core)
        bounds = core.graph.offsets.tolist()
        for node, (start, end) in enumerate(pairwise(bounds)):
            if not alive[start:end].all():
                state.restrict(node, state.pool.table(np.flatnonzero(alive[start:end])))
        return _reduced(state, deadline)
    except Impossible:
        return None


def _from_problem(problem: Problem) -> State:
    pool = Pool()
    known: dict[int, PooledArray] = {}

    def table(array: np.ndarray) -> PooledArray:
        found = known.get(id(array))
        if found is None:
            found = known[id(array)] = pool.table(array)
        return found

    limited = problem.usage_limit is not None and bool(problem.usages)
    timeline = problem.timeline
    state = State(
        pool,
        [table(c) for c in problem.costs],
        base=np.zeros(timeline.steps.size if limited else 0),
        limit=math.inf if problem.usage_limit is None else problem.usage_limit,
        constant=0.0,
    )
    if limited:
        bounds = zip(timeline.first.tolist(), timeline.last.tolist(), strict=True)
        for node, (first, last) in enumerate(bounds):
            if first < last:
                state.hold(node, first, last, table(problem.usages[node]))
    for edge in problem.edges:
        state.add_edge(edge.source, edge.target, table(edge.matrix))
    for node, costs in enumerate(state.costs):
        state.set_costs(node, costs)
    return state


def _from_core(core: Core) -> State:
    pool = Pool()
    graph, held = core.graph, core.holdings
    sizes, offsets = graph.sizes.tolist(), graph.offsets.tolist()
    state = State(
        pool,
        [pool.table(c) for c in np.split(core.costs, offsets[1:-1])] if sizes else [],
        base=core.base,
        limit=core.limit,
        constant=core.constant,
    )
    matrices = np.where(graph.matrices < core.penalty, graph.matrices, np.inf)
    known: dict[tuple[int, int, int], PooledArray] = {}
    for node, (rows, start) in enumerate(zip(sizes, graph.starts.tolist(), strict=False)):
        for edge in range(start, int(graph.starts[node + 1])):
            other, place = int(graph.neighbours[edge]), int(graph.places[edge])
            if node < other:
                key = (place, rows, sizes[other])
                if key not in known:
                    flat = matrices[place : place + rows * sizes[other]]
                    known[key] = pool.table(flat.reshape(rows, sizes[other]))
                state.set_edge(node, other, known[key])
        for holding in range(int(held.starts[node]), int(held.starts[node + 1])):
            place = int(held.places[holding])
            usage = pool.table(held.usages[place : place + rows])
            state.hold(node, int(held.first[holding]), int(held.last[holding]), usage)
        state.touch(node)
    return state


def _reduced(state: State, deadline: Deadline | None) -> Reduction:
    _reduce_fully(state, deadline or Deadline(None))
    nodes = state.nodes()
    held = [state.segments(v) for v in nodes]  # before the base is read, which this can raise
    base = check_base(state)
    place = {node: number for number, node in enumerate(nodes)}
    core = make_core(
        [state.costs[v].array for v in nodes],
        [
            (place[v], place[other], matrix.array)
            for v in nodes
            for other, matrix in state.edges[v].items()
            # Of a matrix and its transpose always the same one, so that both are stored once.
            if (matrix.number, v) < (state.edges[other][v].number, other)
        ],
        [
            (number, first, last, usage.array)
            for number, holdings in enumerate(held)
            for first, last, usage in holdings
        ],
        base=base,
        limit=state.limit,
        constant=state.constant,
    )
    return Reduction(
        core=core,
        num_nodes=len(state.alive),
        nodes=tuple(nodes),
        kept=tuple(state.labels[v].array for v in nodes),
        steps=tuple(state.steps),
    )


def _reduce_fully(state: State, deadline: Deadline) -> None:
    """Take all steps that there are to take; the state is a problem after each of them."""
    exhausted = False
    while not deadline.passed:
        _settle(state, deadline)
        num_rows = state.num_rows
        exhausted = not drop_rows(state) and exhausted
        if state.num_rows < MANY_ROWS * num_rows:
            continue  # fewer rows make all other steps cheaper
        if exhausted:
            return
        _exhaust(state, deadline)
        exhausted = True


def _exhaust(state: State, deadline: Deadline) -> None:
    """Take all steps but those that let rows go."""
    some = True
    while some and not deadline.passed:
        _settle(state, deadline)
        some = drop_too_large(state) or _drop_dominated(state, deadline)


def _settle(state: State, deadline: Deadline) -> None:
    """Look at all edges and nodes that are pending, edges first."""
    edges, nodes = state.pending_edges, state.pending_nodes
    while (edges or nodes) and not deadline.passed:
        if edges:
            pair = edges.popleft()
            state.queued_edges.remove(pair)
            reduce_edge(state, *pair)
        else:
            node = nodes.popleft()
            state.queued[node] = False
            if state.alive[node]:
                reduce_node(state, node)


def _drop_dominated(state: State, deadline: Deadline) -> bool:
    """Look at all nodes that changed for candidates that others dominate."""
    some = False
    for node in state.nodes():
        if state.changed[node] and not deadline.passed:
            state.changed[node] = False
            some = drop_dominated(state, node) or some
    return some
