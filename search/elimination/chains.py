"""Chains of nodes, and the cheapest path through the candidates of one.

Models: see `search.solvers.shortest_path`.
"""

from __future__ import annotations

import math

import numpy as np

from search.problem import Problem
from search.problem.deadline import Deadline


def cheapest_path(
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
    """Whether the graph is made of chains."""
    return find_chains(problem) is not None
