"""Why nothing fits.

Models: an assignment can be impossible because costs forbid every one, or because some time step
needs more than the limit whatever is chosen. The least usage at one step over all assignments that
are not forbidden is itself a problem without a limit, solved exactly by elimination; where tables
grow too large, the nodes' least usages are added up instead, which is a bound still.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from search.elimination.buckets import eliminate, plan
from search.elimination.order import EliminationOrder
from search.problem import CostEdge, Problem, ProblemError, Shortage
from search.problem.notes import Note

# How many of the fullest time steps are looked into, and how many nodes are named.
STEPS_TRIED = 8
HOLDERS_NAMED = 8
HOLDERS_NOTED = 3


def why_forbidden(problem: Problem) -> Note:
    """Why costs forbid every assignment."""
    alive = allowed_candidates(problem)
    for node, mask in enumerate(alive):
        if not mask.any():
            return Note.of("node-forbidden", node=problem.name_of(node))
    return Note.of("pairs-forbidden")


def allowed_candidates(problem: Problem) -> list[np.ndarray]:
    """Per node which candidates are allowed and have an allowed partner along every edge."""
    alive = [np.isfinite(c) for c in problem.costs]
    allowed = {id(e.matrix): np.isfinite(e.matrix) for e in problem.edges}
    strict = {key for key, mask in allowed.items() if not mask.all()}
    incident: list[list[tuple[int, np.ndarray]]] = [[] for _ in alive]
    for edge in problem.edges:
        if id(edge.matrix) in strict:
            mask = allowed[id(edge.matrix)]
            incident[edge.source].append((edge.target, mask))
            incident[edge.target].append((edge.source, mask.T))
    queue = deque(range(len(alive)))
    queued = [True] * len(alive)
    while queue:
        node = queue.popleft()
        queued[node] = False
        for other, mask in incident[node]:
            supported = alive[other] & mask[alive[node]].any(axis=0)
            if supported.sum() < alive[other].sum():
                alive[other] = supported
                if not queued[other]:
                    queue.append(other)
                    queued[other] = True
    return alive


def least_usage_at(
    problem: Problem, position: int, order: EliminationOrder | None
) -> tuple[float, list[int]]:
    """The least usage at one of the timeline's steps, and an assignment (or, without an order,
    a choice per node) that has it; +inf where costs forbid every assignment.

    Parameters
    ----------
    problem
        The problem.
    position
        The position of the step in the timeline.
    order
        An order from `plan`; None where elimination refuses the problem.
    """
    timeline = problem.timeline
    live = (timeline.first <= position) & (position < timeline.last)
    costs = [
        np.where(np.isfinite(c), u if on else 0.0, np.inf)
        for c, u, on in zip(problem.costs, problem.usages, live, strict=True)
    ]
    if order is None:
        choices = [int(c.argmin()) for c in costs]
        return float(sum(c[i] for c, i in zip(costs, choices, strict=True))), choices
    eliminated = eliminate(without_edge_costs(problem), order, costs=costs)
    return eliminated.minimum, eliminated.decode()


def without_edge_costs(problem: Problem) -> Problem:
    """The same problem with every allowed pair at cost 0."""
    zeroed: dict[int, np.ndarray] = {}
    edges = []
    for edge in problem.edges:
        matrix = zeroed.get(id(edge.matrix))
        if matrix is None:
            matrix = np.where(np.isfinite(edge.matrix), 0.0, np.inf)
            zeroed[id(edge.matrix)] = matrix
        edges.append(CostEdge(source=edge.source, target=edge.target, matrix=matrix))
    return replace(problem, edges=tuple(edges))


def find_shortage(problem: Problem) -> Shortage | None:
    """Look for a time step that needs more than the limit, among the fullest ones."""
    if problem.usage_limit is None or not problem.timeline.steps.size:
        return None
    alive = allowed_candidates(problem)
    if not all(mask.any() for mask in alive):
        return None
    least = np.array([u[mask].min() for u, mask in zip(problem.usages, alive, strict=True)])
    profile = problem.timeline.profile(least)
    try:
        order: EliminationOrder | None = plan(problem)
    except ProblemError:
        order = None
    worst: Shortage | None = None
    for position in np.argsort(-profile, kind="stable")[:STEPS_TRIED]:
        if worst is not None and profile[position] <= problem.usage_limit:
            break
        bound, choices = least_usage_at(problem, int(position), order)
        if problem.usage_limit < bound < np.inf and (worst is None or bound > worst.peak_bound):
            worst = shortage_at(problem, int(position), bound, choices)
        if order is None:
            break
    return worst


def shortage_at(problem: Problem, position: int, bound: float, choices: list[int]) -> Shortage:
    """Describe the shortage at one step by the choices that use least there.

    Parameters
    ----------
    problem
        The problem.
    position
        The position of the step in the timeline.
    bound
        What is used there at the least. [B]
    choices
        The candidate of each node.
    """
    assert problem.usage_limit is not None
    held = [(float(problem.usages[v][choices[v]]), v) for v in problem.timeline.nodes_at(position)]
    held.sort(key=lambda pair: (-pair[0], pair[1]))
    return Shortage(
        time_step=int(problem.timeline.steps[position]),
        usage_limit=problem.usage_limit,
        peak_bound=bound,
        holders=tuple((problem.name_of(v), usage) for usage, v in held[:HOLDERS_NAMED]),
    )


def shortage_note(shortage: Shortage) -> Note:
    """A shortage, and who holds most there."""
    return Note(
        "shortage",
        (
            ("time_step", shortage.time_step),
            ("needed", shortage.peak_bound),
            ("limit", shortage.usage_limit),
            ("missing", shortage.missing),
            *shortage.holders[:HOLDERS_NOTED],
        ),
    )
