"""Running CP-SAT so that it stops when asked to, and does the same on every run.

Models: one worker, which repeats itself exactly and is no slower on these models than two that take
turns. An interrupt stops the search, which then hands in what it has. The linear relaxation is what
proves an optimum here, so all of the work goes there: probing and the search for overlaps among
constraints take longer than all that follows, and help little.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from search.problem import interrupts
from search.problem.deadline import Deadline

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import (
        CpModel,
        CpSolver,
        CpSolverSolutionCallback,
        CpSolverStatus,
    )

# How long to wait until a search that was asked to stop is asked again. [s]
ASK_AGAIN = 0.1
# CP-SAT takes a time limit of 0 for none. [s]
LEAST_TIME = 0.01
# What part of its work CP-SAT has done at least where that is why it stopped.
NEARLY = 0.9


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of a run.

    Parameters
    ----------
    solver
        The solver, to ask for values.
    optimal, feasible, infeasible
        What it says; a solution is there if it is feasible.
    bound
        Its lower bound on the objective.
    work
        The work that it has done, see `Deadline`.
    stopped_by
        "time limit" or "work limit" where it was cut short, "interrupt" where it was asked to
        stop, else empty.
    """

    solver: CpSolver
    optimal: bool
    feasible: bool
    infeasible: bool
    bound: float
    work: float
    stopped_by: str


def run_model(
    model: CpModel,
    *,
    deadline: Deadline,
    seed: int,
    work: float | None = None,
    found: Callable[[CpSolverSolutionCallback], None] | None = None,
) -> Outcome:
    """Solve a model.

    Parameters
    ----------
    model
        The model.
    deadline
        When to stop; its limit of work is not looked at.
    seed
        Seed of what is random.
    work
        Limit of the work, None for none.
    found
        Called with something that has `boolean_value`, for every solution.
    """
    from ortools.sat.python import cp_model

    solver = _configured(deadline, seed, work)
    callback = None if found is None else _telling(found)
    status, interrupted = _interruptible(solver, lambda: solver.solve(model, callback))
    assert status != cp_model.MODEL_INVALID, model.validate()
    done = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    spent = float(solver.response_proto.deterministic_time)
    stopped_by = "interrupt" if interrupted else ""
    if not (done or interrupted):
        # CP-SAT does not say why it stopped, and near its limit it may stop a little early.
        worked = work is not None and spent > NEARLY * work
        stopped_by = "work limit" if worked else "time limit"
    return Outcome(
        solver=solver,
        optimal=status == cp_model.OPTIMAL,
        feasible=status in (cp_model.OPTIMAL, cp_model.FEASIBLE),
        infeasible=status == cp_model.INFEASIBLE,
        bound=float(solver.best_objective_bound),
        work=spent,
        stopped_by=stopped_by,
    )


def _configured(deadline: Deadline, seed: int, work: float | None) -> CpSolver:
    """A CP-SAT solver with its parameters."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = 1
    parameters.random_seed = seed
    parameters.linearization_level = 2
    parameters.cp_model_probing_level = 0
    parameters.presolve_inclusion_work_limit = 0
    # Python's own handler stops it below; another one would end the process later on.
    parameters.catch_sigint_signal = False
    if deadline.remaining < math.inf:
        parameters.max_time_in_seconds = max(deadline.remaining, LEAST_TIME)
    if work is not None:
        parameters.max_deterministic_time = work
    return solver


def _telling(found: Callable[[CpSolverSolutionCallback], None]) -> CpSolverSolutionCallback:
    """A callback of CP-SAT that hands every solution on."""
    from ortools.sat.python import cp_model

    class Callback(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            found(self)

    return Callback()


def _interruptible(
    solver: CpSolver, solve: Callable[[], CpSolverStatus]
) -> tuple[CpSolverStatus, bool]:
    """Run a search in a thread of its own: Python looks at signals in its main thread only.

    An interrupt is noted instead of raised, since wherever it were raised between the start of the
    thread and its end, nobody would stop the thread, and the process would wait for it for ever.
    """
    with interrupts.held_back(), ThreadPoolExecutor(max_workers=1) as pool:
        future = pool.submit(solve)
        while True:
            if interrupts.noted():
                # It may not have begun when it was first asked.
                solver.stop_search()
            with suppress(TimeoutError):
                return future.result(timeout=ASK_AGAIN), interrupts.noted()
