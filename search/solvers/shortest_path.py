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

from search.elimination.chains import cheapest_path, find_chains, pair_matrices
from search.elimination.infeasible import why_forbidden
from search.problem import Assignment, Problem, ProblemError
from search.problem.answers import make_assignment, no_assignment, require_slack
from search.problem.cut_short import stopped_answer
from search.problem.deadline import Deadline, OutOfTime
from search.problem.incumbent import Watch

NAME = "shortest-path"


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
) -> Assignment:
    """Find a cheapest assignment of a chain.

    Parameters
    ----------
    problem
        The problem; no node may have more than two neighbours, and none may close a cycle.
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
    chains = find_chains(problem)
    if chains is None:
        raise ProblemError(
            f"the solver {NAME} takes chains, where every node has at most two neighbours and none"
            f" closes a cycle, but the {problem.num_nodes} nodes here branch; use the solver"
            " elimination or auto"
        )
    links = pair_matrices(problem)
    choices = [0] * problem.num_nodes
    deadline = Deadline(time_limit)
    try:
        for chain in chains:
            found = cheapest_path(
                [problem.costs[v] for v in chain],
                [links[a, b] for a, b in pairwise(chain)],
                deadline,
            )
            if found is None:
                return no_assignment(solver=NAME, notes=[why_forbidden(problem)])
            for v, choice in zip(chain, found, strict=True):
                choices[v] = choice
    except (OutOfTime, KeyboardInterrupt) as stop:
        return stopped_answer(problem, solver=NAME, stop=stop)
    return make_assignment(problem, choices, lower_bound=math.inf, solver=NAME)
