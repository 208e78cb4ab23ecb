"""Every assignment costed: the oracle that other solvers are tested against.

Models: nothing; costs all combinations. Accepts problems of at most two million combinations,
with or without a usage limit; refuses all others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from search.elimination.infeasible import find_shortage, shortage_note, why_forbidden
from search.problem import Assignment, Problem, ProblemError, costs_and_peaks
from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent, Watch
from search.problem.notes import Note

NAME = "exhaustive"
MAX_COMBINATIONS = 2_000_000
# Entries that are looked up at once: some MiB.
_CHUNK_ENTRIES = 2**20


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
) -> Assignment:
    """Find a cheapest assignment by costing them all.

    Parameters
    ----------
    problem
        The problem.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Not used: nothing is random here.
    work
        Not used: no work is counted here.
    watch
        Called with the best cost and the bound whenever either is better.
    """
    deadline = Deadline(time_limit)
    known: Incumbent[list[int]] = Incumbent(watch=watch)
    any_allowed = False
    try:
        for choices, costs, peaks in all_assignments(problem):
            any_allowed = any_allowed or bool(np.isfinite(costs).any())
            if problem.usage_limit is not None:
                costs = np.where(peaks <= problem.usage_limit, costs, np.inf)
            row = int(costs.argmin())
            known.offer(choices[row].tolist(), float(costs[row]))
            if deadline.passed:
                known.stopped_by = "time limit"
                break
    except KeyboardInterrupt:
        known.stopped_by = "interrupt"
    bound = trivial_bound(problem) if known.stopped_by else math.inf
    if known.choices is not None:
        return make_assignment(
            problem, known.choices, lower_bound=bound, solver=NAME, stopped_by=known.stopped_by
        )
    if known.stopped_by:
        return no_assignment(solver=NAME, lower_bound=bound, stopped_by=known.stopped_by)
    if not any_allowed:
        return no_assignment(solver=NAME, notes=[why_forbidden(problem)])
    shortage = find_shortage(problem)
    note = shortage_note(shortage) if shortage else Note.of("nothing-fits")
    return no_assignment(solver=NAME, notes=[note], shortage=shortage)


def all_assignments(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield (choices, costs, peaks) of all assignments in chunks, in lexicographic order."""
    count = math.prod(problem.sizes)
    if count > MAX_COMBINATIONS:
        raise ProblemError(
            f"the solver exhaustive takes at most {MAX_COMBINATIONS} combinations, but the problem"
            f" has {count:.3g}; use the solver auto"
        )
    step = max(1, _CHUNK_ENTRIES // max(1, problem.num_nodes + len(problem.edges)))
    for low in range(0, count, step):
        index = np.arange(low, min(low + step, count))
        if problem.num_nodes:
            choices = np.stack(np.unravel_index(index, problem.sizes), axis=1).astype(np.int64)
        else:
            choices = np.zeros((1, 0), dtype=np.int64)
        yield choices, *costs_and_peaks(problem, choices)
