"""Exact solution by bucket elimination, for any graph whose tables stay small.

Models: see `search.elimination.buckets`. Accepts problems whose usage limit cannot be exceeded, and
whose tables stay within a stated number of entries; refuses all others.
"""

from __future__ import annotations

import math

from search.elimination.buckets import eliminate, plan
from search.elimination.infeasible import why_forbidden
from search.elimination.order import EliminationOrder
from search.problem import Assignment, Problem
from search.problem.answers import make_assignment, no_assignment, require_slack
from search.problem.cut_short import stopped_answer
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import Watch

NAME = "elimination"


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
) -> Assignment:
    """Find a cheapest assignment by eliminating nodes.

    Parameters
    ----------
    problem
        The problem; its usage limit, if any, must be slack.
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
    return solve_in_order(problem, plan(problem), Deadline(time_limit))


def solve_in_order(problem: Problem, order: EliminationOrder, deadline: Deadline) -> Assignment:
    """Find a cheapest assignment where the order is known already.

    Parameters
    ----------
    problem
        The problem; its usage limit, if any, must be slack.
    order
        An order from `plan` for this problem.
    deadline
        When to hand in what there is.
    """
    try:
        eliminated = eliminate(problem, order, deadline=deadline)
    except (OutOfTime, KeyboardInterrupt) as stop:
        return stopped_answer(problem, solver=NAME, stop=stop)
    if eliminated.is_forbidden:
        return no_assignment(solver=NAME, notes=[why_forbidden(problem)])
    return make_assignment(problem, eliminated.decode(), lower_bound=math.inf, solver=NAME)
