"""Constraint programming (OR-Tools CP-SAT), for problems with a usage limit; proves its bound.

Models: see `search.cp_model`, on the problem that `search.presolve` leaves. Accepts any problem
whose model stays within a stated number of pairs; refuses all others. Two workers, in the mode
whose result depends on the seed only.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from search.answers import make_assignment, no_assignment, reached_by, trivial_bound
from search.cp_model import Built, build_model, build_peak_model
from search.deadline import Deadline
from search.elimination import stopped
from search.improve import cheap_start
from search.infeasible import find_shortage, shortage_at, shortage_note, why_forbidden
from search.presolve import presolve
from search.problem import Assignment, Problem, Shortage, evaluate

NAME = "cp-sat"
WORKERS = 2
# Saying how far off an impossible limit is may take this long. [s]
EXPLAIN_TIME = 5.0


def solve(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
) -> Assignment:
    """Find a cheapest assignment within the usage limit.

    Parameters
    ----------
    problem
        The problem.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Seed of CP-SAT's random choices.
    work
        Limit of CP-SAT's work, see `Deadline`.
    """
    deadline = Deadline(time_limit, work)
    try:
        return _solve(problem, deadline, seed)
    except KeyboardInterrupt as stop:
        # Before or after CP-SAT, which handles interrupts itself.
        return stopped(problem, solver=NAME, stop=stop)


def _solve(problem: Problem, deadline: Deadline, seed: int) -> Assignment:
    reduction = presolve(problem)
    if reduction is None:
        return nothing_fits(problem, solver="presolve", deadline=deadline)
    hint = cheap_start(reduction.problem, deadline)
    answer = solve_core(reduction.problem, hint=hint, deadline=deadline, seed=seed)
    return restored(problem, answer, reduction.restore, deadline)


def restored(problem: Problem, answer: Assignment, restore: Any, deadline: Deadline) -> Assignment:
    """An answer to the presolved problem as one to the original."""
    if answer.choices:
        back = make_assignment(
            problem,
            restore(answer.choices),
            lower_bound=answer.lower_bound,
            solver=answer.solver,
            notes=answer.notes,
            stopped_by=answer.stopped_by,
        )
        return reached_by(back, "presolve")
    if answer.lower_bound == math.inf:
        answer = nothing_fits(problem, solver=answer.solver, deadline=deadline)
    return reached_by(answer, "presolve")


def solve_core(
    problem: Problem,
    *,
    hint: Sequence[int] | None,
    deadline: Deadline,
    seed: int,
    known_bound: float = -math.inf,
) -> Assignment:
    """Run CP-SAT on a problem as it is.

    Parameters
    ----------
    problem
        The problem.
    hint
        An assignment that fits, to start from.
    deadline
        When to return the best assignment so far.
    seed
        Seed of CP-SAT's random choices.
    known_bound
        A lower bound proven elsewhere.
    """
    from ortools.sat.python import cp_model

    known_cost = math.inf if hint is None else evaluate(problem, hint)[0]
    built = build_model(problem, known_cost=known_cost)
    if hint is not None:
        for literals, choice in zip(built.chosen, hint, strict=True):
            for i, literal in enumerate(literals):
                built.model.add_hint(literal, i == choice)
    solver, status = _run(built, deadline, seed)
    if status == cp_model.INFEASIBLE:
        return no_assignment(solver=NAME)
    assert status != cp_model.MODEL_INVALID, built.model.validate()
    bound = max(known_bound, trivial_bound(problem))
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        choices = [
            next(i for i, x in enumerate(literals) if solver.boolean_value(x))
            for literals in built.chosen
        ]
        # Rounding may have hidden that the hint was cheaper.
        if hint is not None and known_cost < evaluate(problem, choices)[0]:
            choices = list(hint)
    elif hint is not None:
        choices = list(hint)
    else:
        choices = []
    bound = max(bound, built.scale.bound(solver.best_objective_bound))
    stopped_by = ""
    if status == cp_model.OPTIMAL and hint is None and not deadline.passed:
        answer = make_assignment(problem, choices, lower_bound=bound, solver=NAME)
        if answer.gap == 0:
            return answer
        # Without a known cost the rounding was chosen blindly; now it can be chosen well.
        return solve_core(problem, hint=choices, deadline=deadline, seed=seed, known_bound=bound)
    if status != cp_model.OPTIMAL:
        # CP-SAT does not say why it stopped, and near its limit it may stop a little early.
        limit = solver.parameters.max_time_in_seconds
        stopped_by = "interrupt" if solver.wall_time < limit / 2 and limit > 1 else "time limit"
        if deadline.work and solver.response_proto.deterministic_time > 0.9 * deadline.work:
            stopped_by = "work limit"
    if not choices and problem.num_nodes:
        return no_assignment(solver=NAME, lower_bound=bound, stopped_by=stopped_by)
    return make_assignment(problem, choices, lower_bound=bound, solver=NAME, stopped_by=stopped_by)


def nothing_fits(problem: Problem, *, solver: str, deadline: Deadline) -> Assignment:
    """Say why nothing fits, for a problem of which that is proven."""
    shortage = None
    if not problem.limit_is_slack:
        shortage = find_shortage(problem) or _least_peak(problem, deadline)
    if shortage is None:
        return no_assignment(solver=solver, notes=why_forbidden(problem))
    return no_assignment(solver=solver, notes=(shortage_note(shortage),), shortage=shortage)


def _least_peak(problem: Problem, deadline: Deadline) -> Shortage | None:
    """The least peak of a problem that no single step shows to be impossible."""
    from ortools.sat.python import cp_model

    assert problem.usage_limit is not None
    built = build_peak_model(problem)
    limited = Deadline(min(deadline.remaining, EXPLAIN_TIME) + 0.1)
    solver, status = _run(built, limited, 0)
    if status == cp_model.INFEASIBLE:
        return None
    # Usages are whole numbers, so a limit that cannot be kept is missed by one at least.
    bound = max(solver.best_objective_bound, problem.usage_limit + 1)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        choices = [int(u.argmin()) for u in problem.usages]
    else:
        choices = [
            next(i for i, x in enumerate(literals) if solver.boolean_value(x))
            for literals in built.chosen
        ]
    used = np.array([u[i] for u, i in zip(problem.usages, choices, strict=True)])
    step = int(problem.timeline.profile(used).argmax())
    return shortage_at(problem, step, bound, choices)


def _run(built: Built, deadline: Deadline, seed: int) -> tuple[Any, Any]:
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = WORKERS
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = seed
    if deadline.remaining < math.inf:
        solver.parameters.max_time_in_seconds = max(deadline.remaining, 0.01)
    if deadline.work is not None:
        solver.parameters.max_deterministic_time = deadline.work
    # CP-SAT takes an interrupt as a wish to stop, and keeps what it has. Afterwards it leaves the
    # signal to the system, which would end the process: hand it back to Python.
    in_main = threading.current_thread() is threading.main_thread()
    solver.parameters.catch_sigint_signal = in_main
    handler = signal.getsignal(signal.SIGINT)
    try:
        return solver, solver.solve(built.model)
    finally:
        if in_main and handler is not None:
            signal.signal(signal.SIGINT, handler)
