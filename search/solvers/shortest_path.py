"""Exact solution of a chain by the shortest path through its candidates.

Models: the "line" networks of Dryden et al. 2019, section V.C: a vertex for every candidate of
every node, an edge between the candidates of neighbours weighted with the pair cost, and the
shortest path from the first node to the last by dynamic programming.
Accepts problems whose nodes form one or more chains (parallel edges add up) and whose usage limit
cannot be exceeded; refuses all others.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from search.elimination.infeasible import why_forbidden
from search.problem import Assignment, Problem, ProblemError
from search.problem.answers import make_assignment, no_assignment
from search.problem.deadline import Deadline, OutOfTime
from search.solvers.elimination import require_slack, stopped

NAME = "shortest-path"


def solve(problem: Problem, *, time_limit: float | None = None, seed: int = 0) -> Assignment:
    """Find a cheapest assignment of a chain.

    Parameters
    ----------
    problem
        The problem; no node may have more than two neighbours, and none may close a cycle.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Not used: nothing is random here.
    """
    require_slack(problem, NAME)
    chains = find_chains(problem)
    if chains is None:
        raise ProblemError(
            f"The solver {NAME} takes chains, where every node has at most two neighbours and none"
            f" closes a cycle, but the {problem.num_nodes} nodes here branch; use the solver"
            " elimination or auto."
        )
    links = pair_matrices(problem)
    choices = [0] * problem.num_nodes
    deadline = Deadline(time_limit)
    try:
        for chain in chains:
            found = shortest_path(
                [problem.costs[v] for v in chain],
                [links[a, b] for a, b in pairwise(chain)],
                deadline,
            )
            if found is None:
                return no_assignment(solver=NAME, notes=why_forbidden(problem))
            for v, choice in zip(chain, found, strict=True):
                choices[v] = choice
    except (OutOfTime, KeyboardInterrupt) as stop:
        return stopped(problem, solver=NAME, stop=stop)
    return make_assignment(problem, choices, lower_bound=math.inf, solver=NAME)


def shortest_path(
    costs: list[np.ndarray], matrices: list[np.ndarray], deadline: Deadline
) -> list[int] | None:
    """Candidates on the shortest path, or None where every path is forbidden.

    Parameters
    ----------
    costs
        Cost per candidate of every node along the path.
    matrices
        Pair costs from each node to the next.
    deadline
        When to give up by raising `OutOfTime`.
    """
    distance = costs[0]
    arrivals = []
    for cost, matrix in zip(costs[1:], matrices, strict=True):
        deadline.check()
        paths = distance[:, None] + matrix
        best = paths.argmin(axis=0)
        arrivals.append(best)
        distance = paths[best, np.arange(cost.size)] + cost
    choice = int(distance.argmin())
    if distance[choice] == math.inf:
        return None
    found = [choice]
    for best in reversed(arrivals):
        choice = int(best[choice])
        found.append(choice)
    return found[::-1]


def pair_matrices(problem: Problem) -> dict[tuple[int, int], np.ndarray]:
    """The summed pair costs of every two neighbours, under both orders of the two."""
    links: dict[tuple[int, int], np.ndarray] = {}
    for e in problem.edges:
        known = links.get((e.source, e.target))
        total = e.matrix if known is None else known + e.matrix
        links[e.source, e.target] = total
        links[e.target, e.source] = total.T
    return links


def find_chains(problem: Problem) -> list[list[int]] | None:
    """The nodes of each chain from end to end, or None where the graph is not made of chains."""
    neighbours: list[set[int]] = [set() for _ in problem.costs]
    for e in problem.edges:
        neighbours[e.source].add(e.target)
        neighbours[e.target].add(e.source)
    if any(len(around) > 2 for around in neighbours):
        return None
    chains, placed = [], [False] * problem.num_nodes
    for start, around in enumerate(neighbours):
        if placed[start] or len(around) == 2:
            continue
        chain = [start]
        placed[start] = True
        while step := [u for u in neighbours[chain[-1]] if not placed[u]]:
            chain.append(step[0])
            placed[step[0]] = True
        chains.append(chain)
    # A node that no walk from an end has reached lies on a cycle.
    return chains if all(placed) else None


def is_chain(problem: Problem) -> bool:
    """Whether this solver accepts the graph."""
    return find_chains(problem) is not None
