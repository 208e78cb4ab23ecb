"""All solvers by name; each is imported when it is first called.

Assumes: whoever asks for a solver by name wants one signature, whatever the solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Protocol

from search.errors import ProblemError
from search.problem import Assignment, Problem, interrupts

# Solvers that count their work, so that it can be limited alike on every run (see `Deadline`).
LIMITED_WORK = ("auto", "cp_sat")


class Solver(Protocol):
    """What every solver looks like."""

    def __call__(
        self,
        problem: Problem,
        *,
        time_limit: float | None = None,
        seed: int = 0,
        work: float | None = None,
    ) -> Assignment: ...


def _lazy(name: str) -> Solver:
    def call(
        problem: Problem,
        *,
        time_limit: float | None = None,
        seed: int = 0,
        work: float | None = None,
    ) -> Assignment:
        solver: Solver = import_module(f"search.solvers.{name}").solve
        with interrupts.listening():
            if name not in LIMITED_WORK or work is None:
                return solver(problem, time_limit=time_limit, seed=seed)
            return solver(problem, time_limit=time_limit, seed=seed, work=work)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Solve by `search.{name}`; see there."
    return call


SOLVERS: Mapping[str, Solver] = MappingProxyType(
    {
        "auto": _lazy("auto"),
        "shortest-path": _lazy("shortest_path"),
        "longest-path": _lazy("longest_path"),
        "elimination": _lazy("elimination"),
        "cp-sat": _lazy("cp_sat"),
        "lagrangian": _lazy("lagrangian"),
        "exhaustive": _lazy("exhaustive"),
    }
)


def solve(
    problem: Problem,
    *,
    solver: str = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Callable[[float, float], None] | None = None,
) -> Assignment:
    """Solve a problem by the named solver.

    Parameters
    ----------
    problem
        The problem.
    solver
        A name in `SOLVERS`.
    time_limit
        Time after which the best assignment so far is returned. [s]
    seed
        Seed of what is random.
    work
        Limit of the work, for the solvers that count it; see `Deadline`.
    watch
        Called with the cost of the best assignment and the bound whenever either is better; by
        solvers other than auto once, at the end.
    """
    if solver not in SOLVERS:
        raise ProblemError(
            f"The solver must be one of {', '.join(SOLVERS)}, but is {solver!r}; choose one."
        )
    if solver == "auto" and watch is not None:
        from search.solvers import auto

        with interrupts.listening():
            return auto.solve(problem, time_limit=time_limit, seed=seed, work=work, watch=watch)
    answer = SOLVERS[solver](problem, time_limit=time_limit, seed=seed, work=work)
    if watch is not None:
        watch(answer.cost, answer.lower_bound)
    return answer
