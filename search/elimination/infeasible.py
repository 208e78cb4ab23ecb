"""Why nothing fits.

Models: an assignment can be impossible because costs forbid every one, or because some time step
needs more than the limit whatever is chosen. The least usage at one step over all assignments that
are not forbidden is itself a problem without a limit, solved exactly by elimination; where tables
grow too large, the nodes' least usages are added up instead, which is a bound still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from search.elimination.buckets import eliminate, plan
from search.elimination.order import EliminationOrder
from search.problem import Problem, ProblemError, Shortage
from search.problem.deadline import Deadline
from search.problem.notes import Note
from search.problem.pairwise import Limited, PairCosts, PairEdge

# How many of the fullest time steps are looked into, and how many nodes are named.
STEPS_TRIED = 8
HOLDERS_NAMED = 8
HOLDERS_NOTED = 3


class LeastUsage(NamedTuple):
    """The position of a step in the timeline, a bound on what is used there, and choices that use
    little."""

    position: int
    bound: float
    choices: list[int]


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
    problem: Limited,
    position: int,
    order: EliminationOrder | None,
    deadline: Deadline | None = None,
) -> LeastUsage:
    """The least usage at one of the timeline's steps, and an assignment (or, without an order,
    a choice per node) that has it; +inf where costs forbid every assignment.

    Parameters
    ----------
    problem
        The problem or core.
    position
        The position of the step in the timeline.
    order
        An order from `plan`; None where elimination refuses the problem.
    deadline
        When to give up by raising `OutOfTime`.
    """
    flat = problem.flat
    used = flat.charges(flat.timeline.covers(position))
    costs = flat.per_node(np.where(np.isfinite(flat.costs), used, np.inf))
    base = float(flat.timeline.base[position])
    if order is None:
        choices = [int(c.argmin()) for c in costs]
        least = float(sum(c[i] for c, i in zip(costs, choices, strict=True)))
        return LeastUsage(position, base + least, choices)
    edges = without_costs(problem.edges)
    eliminated = eliminate(problem, order, costs=costs, edges=edges, deadline=deadline)
    return LeastUsage(position, base + eliminated.minimum, eliminated.decode())


def without_costs(edges: Iterable[PairEdge]) -> list[PairCosts]:
    """The same edges with every allowed pair at cost 0."""
    zeroed: dict[int, np.ndarray] = {}
    found = []
    for edge in edges:
        matrix = zeroed.get(id(edge.matrix))
        if matrix is None:
            matrix = np.where(np.isfinite(edge.matrix), 0.0, np.inf)
            zeroed[id(edge.matrix)] = matrix
        found.append(PairCosts(edge.source, edge.target, matrix))
    return found


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
        least_here = least_usage_at(problem, int(position), order)
        peak = least_here.bound
        if problem.usage_limit < peak < np.inf and (worst is None or peak > worst.peak_bound):
            worst = shortage_at(problem, least_here)
        if order is None:
            break
    return worst


def shortage_at(problem: Problem, least: LeastUsage) -> Shortage:
    """Describe the shortage at one step by the choices that use little there."""
    assert problem.usage_limit is not None
    covering = np.flatnonzero(problem.timeline.covers(least.position)).tolist()
    held = [(float(problem.usages[v][least.choices[v]]), v) for v in covering]
    held.sort(key=lambda pair: (-pair[0], pair[1]))
    return Shortage(
        time_step=int(problem.timeline.steps[least.position]),
        usage_limit=problem.usage_limit,
        peak_bound=least.bound,
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
