"""The heuristic of Dryden et al. 2019, section V.C, for networks that branch, under its own name.

Models: the longest path through the DAG by computation (here: by the least cost of every node) is
given its shortest-path assignment, which is then fixed; the next longest path that contains as few
fixed nodes as possible follows, until every node has a candidate. Pair costs towards nodes that
are fixed already are counted, on the path and beside it; those between two nodes of one path that
do not follow each other are not. Where no allowed candidate is left, the answer is that nothing was
found, not that nothing exists.
Accepts DAGs (an edge's direction is its DAG direction) whose usage limit cannot be exceeded;
refuses all others. Nothing about the answer is proven.
"""

from __future__ import annotations

import numpy as np

from search.elimination.chains import cheapest_path, pair_matrices
from search.elimination.infeasible import why_forbidden
from search.problem import Assignment, Problem, ProblemError
from search.problem.answers import (
    make_assignment,
    no_assignment,
    require_slack,
    trivial_bound,
)
from search.problem.cut_short import stopped_answer
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import Watch
from search.problem.notes import Note

NAME = "longest-path"


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
) -> Assignment:
    """Fix one longest path after the other.

    Parameters
    ----------
    problem
        The problem; its edges must form a DAG.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Not used: nothing is random here.
    work
        Not used: no work is counted here.
    watch
        Not called: nothing is known before the end.
    """
    require_slack(problem, NAME)
    order, successors = topological_order(problem)
    links = pair_matrices(problem)
    # The least cost weighs a path; a forbidden node cannot make it any longer.
    weights = [float(c.min()) if np.isfinite(c.min()) else 0.0 for c in problem.costs]
    fixed: dict[int, int] = {}
    neighbours: list[list[int]] = [[] for _ in problem.costs]
    for a, b in links:
        neighbours[a].append(b)
    deadline = Deadline(time_limit)
    paths = 0
    try:
        while len(fixed) < problem.num_nodes:
            path = longest_path(order, successors, weights, fixed)
            paths += 1
            if not _fix(problem, path, links, neighbours, fixed, deadline):
                return _dead_end(problem, path)
    except (OutOfTime, KeyboardInterrupt) as stop:
        return stopped_answer(problem, solver=NAME, stop=stop)
    choices = [fixed[v] for v in range(problem.num_nodes)]
    if not problem.flat.fits(choices):
        return _dead_end(problem, order)
    return make_assignment(
        problem,
        choices,
        lower_bound=trivial_bound(problem),
        solver=NAME,
        notes=[Note.of("paths-fixed", paths=paths)],
    )


def topological_order(problem: Problem) -> tuple[list[int], list[list[int]]]:
    """The nodes in an order that follows the edges, and the successors of each; or refuse."""
    pairs = sorted({(e.source, e.target) for e in problem.edges})
    successors: list[list[int]] = [[] for _ in problem.costs]
    missing = [0] * problem.num_nodes
    for a, b in pairs:
        successors[a].append(b)
        missing[b] += 1
    order = [v for v, count in enumerate(missing) if count == 0]
    for v in order:
        for u in successors[v]:
            missing[u] -= 1
            if missing[u] == 0:
                order.append(u)
    if len(order) < problem.num_nodes:
        left = next(v for v, count in enumerate(missing) if count)
        raise ProblemError(
            f"the solver {NAME} takes edges that form no cycle, but {problem.name_of(left)} lies on"
            " or behind one; turn an edge round or use the solver auto"
        )
    return order, successors


def longest_path(
    order: list[int],
    successors: list[list[int]],
    weights: list[float],
    fixed: dict[int, int],
) -> list[int]:
    """The path from a source to a sink with the fewest fixed nodes, of these the longest.

    A path must contain a node that is not fixed, or the search would never end.

    Parameters
    ----------
    order
        The nodes in an order that follows the edges.
    successors
        The nodes to which the edges of each node lead.
    weights
        The weight of each node.
    fixed
        The candidate of each node that is fixed.
    """
    # best[v][k]: value of the best path from v on, with (k=1) or without (k=0) a free node,
    # as (fixed nodes, minus length, next node).
    best: dict[int, list[tuple[int, float, int] | None]] = {}
    for v in reversed(order):
        is_fixed = v in fixed
        rows: list[tuple[int, float, int] | None] = [None, None]
        tails = [(u, k, best[u][k]) for u in successors[v] for k in (0, 1)]
        if not successors[v]:
            tails = [(-1, 0, (0, 0.0, -1))]
        for u, k, tail in tails:
            if tail is None:
                continue
            k = k if is_fixed else 1
            value = (tail[0] + is_fixed, tail[1] - weights[v], u)
            row = rows[k]
            if row is None or value < row:
                rows[k] = value
        best[v] = rows
    with_predecessor = {u for around in successors for u in around}
    starts = [
        (row[:2], v) for v in order if v not in with_predecessor and (row := best[v][1]) is not None
    ]
    node = min(starts)[1]
    path, k = [], 1
    while node >= 0:
        path.append(node)
        row = best[node][k]
        assert row is not None
        nxt = row[2]
        if nxt >= 0 and node not in fixed:
            # Behind a free node either kind of rest may have been taken: the better one.
            options = [(r[:2], j) for j, r in enumerate(best[nxt]) if r is not None]
            k = min(options)[1]
        node = nxt
    return path


def _fix(
    problem: Problem,
    path: list[int],
    links: dict[tuple[int, int], np.ndarray],
    neighbours: list[list[int]],
    fixed: dict[int, int],
    deadline: Deadline,
) -> bool:
    """Give the free nodes of a path the candidates of its shortest path."""
    costs, matrices = [], []
    for place, v in enumerate(path):
        if v in fixed:
            cost = np.where(np.arange(problem.costs[v].size) == fixed[v], 0.0, np.inf)
        else:
            around = [u for u in neighbours[v] if u in fixed and u not in _beside(path, place)]
            cost = problem.costs[v] + sum(links[v, u][:, fixed[u]] for u in around)
        costs.append(cost)
        if place:
            matrices.append(links[path[place - 1], v])
    found = cheapest_path(costs, matrices, deadline)
    if found is None:
        return False
    fixed.update(zip(path, found, strict=True))
    return True


def _beside(path: list[int], place: int) -> list[int]:
    """The neighbours on the path, whose pair costs the path itself counts."""
    return path[max(0, place - 1) : place] + path[place + 1 : place + 2]


def _dead_end(problem: Problem, path: list[int]) -> Assignment:
    bound = trivial_bound(problem)
    if bound == np.inf:
        return no_assignment(solver=NAME, notes=[why_forbidden(problem)])
    return no_assignment(
        solver=NAME,
        lower_bound=bound,
        notes=[Note.of("dead-end", node=problem.name_of(path[0]))],
    )
