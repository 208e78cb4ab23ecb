"""What a solver without intermediate answers hands in when it is cut short.

Models: a local optimum from the cheapest candidates, or else from the smallest ones; its bound is
the sum of all least costs.
"""

from __future__ import annotations

from search.problem.answers import make_assignment, no_assignment, trivial_bound
from search.problem.deadline import Deadline
from search.problem.local_moves import cheap_start
from search.problem.notes import Note
from search.problem.problem import Assignment, Problem

# How long to look for any assignment once a solver was cut short. [s]
LAST_RESORT = 0.5


def stopped_answer(problem: Problem, *, solver: str, stop: BaseException) -> Assignment:
    """A local optimum, said to be one.

    Parameters
    ----------
    problem
        The problem.
    solver
        The solver that was cut short.
    stop
        What it was cut short by: a KeyboardInterrupt, or else its deadline.
    """
    reason = "interrupt" if isinstance(stop, KeyboardInterrupt) else "time limit"
    notes = (Note.of("stopped", solver=solver, by=reason),)
    bound, found = trivial_bound(problem), cheap_start(problem, Deadline(LAST_RESORT))
    if found is None:
        return no_assignment(solver=solver, lower_bound=bound, notes=notes, stopped_by=reason)
    return make_assignment(
        problem,
        found,
        lower_bound=bound,
        solver=f"{solver} > descent",
        notes=notes,
        stopped_by=reason,
    )
