"""The least peak of any assignment, to say by how much an impossible limit is missed.

Models: one Boolean per candidate, one row per time step at which the limit could be exceeded; the
largest row is the objective. Only asked where no single time step shows that nothing fits.
"""

from __future__ import annotations

import math

import numpy as np

from search.cpsat.run import run_model
from search.elimination.infeasible import (
    LeastUsage,
    find_shortage,
    shortage_at,
    shortage_note,
    why_forbidden,
)
from search.problem import Assignment, Problem, Shortage
from search.problem.answers import no_assignment
from search.problem.deadline import Deadline

# Saying how far off an impossible limit is may take this long. [s]
EXPLAIN_TIME = 5.0
# ... and this long it may take also where time is up: a reason is worth it. [s]
LEAST_EXPLAIN_TIME = 0.1
# With more candidates than this, building the model would take longer than that.
MAX_CANDIDATES = 20_000


def nothing_fits(problem: Problem, *, solver: str, deadline: Deadline) -> Assignment:
    """Say why nothing fits, for a problem of which that is proven.

    Parameters
    ----------
    problem
        The problem.
    solver
        The path that led to the proof.
    deadline
        When to stop looking for the reason.
    """
    shortage = None
    if not problem.limit_is_slack:
        shortage = find_shortage(problem) or least_peak(problem, deadline)
    if shortage is None:
        return no_assignment(solver=solver, notes=[why_forbidden(problem)])
    return no_assignment(solver=solver, notes=[shortage_note(shortage)], shortage=shortage)


def least_peak(problem: Problem, deadline: Deadline) -> Shortage | None:
    """A shortage at the least peak found, or None where costs alone forbid everything."""
    assert problem.usage_limit is not None
    # Usages are whole numbers, so a limit that cannot be kept is missed by one at least.
    bound = problem.usage_limit + 1
    choices = [int(u.argmin()) for u in problem.usages]
    if sum(problem.sizes) <= MAX_CANDIDATES:
        solved = _solved(
            problem, Deadline(min(deadline.remaining, EXPLAIN_TIME) + LEAST_EXPLAIN_TIME)
        )
        if solved is None:
            return None
        bound, choices = max(bound, solved[0]), solved[1] or choices
    used = np.array([u[i] for u, i in zip(problem.usages, choices, strict=True)])
    step = int(problem.timeline.profile(used).argmax())
    return shortage_at(problem, LeastUsage(step, bound, choices))


def _solved(problem: Problem, deadline: Deadline) -> tuple[float, list[int]] | None:
    """A bound on the peak and, if one was found, an assignment; None where all is forbidden."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    chosen = [[model.new_bool_var("") for _ in range(size)] for size in problem.sizes]
    for literals, costs in zip(chosen, problem.costs, strict=True):
        model.add_exactly_one(literals)
        for literal, cost in zip(literals, costs.tolist(), strict=True):
            if cost == math.inf:
                model.add(literal == 0)
    for edge in problem.edges:
        for i, j in np.argwhere(np.isinf(edge.matrix)).tolist():
            model.add_bool_or([~chosen[edge.source][i], ~chosen[edge.target][j]])
    timeline, usages = problem.timeline, problem.usages
    worst = timeline.profile(np.array([u.max() for u in usages]))
    peak = model.new_int_var(0, int(worst.max()), "peak")
    for step in np.flatnonzero(worst > (problem.usage_limit or 0.0)).tolist():
        nodes = np.flatnonzero(timeline.covers(step)).tolist()
        literals = [literal for v in nodes for literal in chosen[v]]
        sizes = [int(u) for v in nodes for u in usages[v].tolist()]
        model.add(cp_model.LinearExpr.weighted_sum(literals, sizes) <= peak)
    model.minimize(peak)
    outcome = run_model(model, deadline=deadline, seed=0)
    if outcome.infeasible:
        return None
    value = outcome.solver.boolean_value
    found = (
        [next(i for i, x in enumerate(literals) if value(x)) for literals in chosen]
        if (outcome.feasible)
        else []
    )
    return outcome.bound, found
