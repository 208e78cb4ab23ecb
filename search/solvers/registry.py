"""All solvers by name; each is imported when it is first called.

Models: a module of `search.solvers` is a solver, and its name is that of the solver; dashes stand
for its underscores. So a file is all that a new solver takes.
Assumes: whoever asks for a solver by name wants one signature, whatever the solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Protocol

from search import solvers
from search.errors import ProblemError
from search.problem import Assignment, Problem, interrupts
from search.problem.incumbent import Watch

# Modules of the folder that are no solvers.
OTHERS = ("registry",)
# Those shown first, in this order; all others follow by name.
FIRST_SHOWN = ("auto", "shortest-path", "longest-path", "elimination", "cp-sat", "lagrangian")


class Solver(Protocol):
    """What every solver looks like."""

    def __call__(
        self,
        problem: Problem,
        *,
        time_limit: float | None = None,
        seed: int = 0,
        work: float | None = None,
        watch: Watch | None = None,
    ) -> Assignment:
        """Solve a problem, or refuse it by a `ProblemError`.

        Parameters
        ----------
        problem
            The problem.
        time_limit
            Time after which the best assignment so far is returned. [s]
        seed
            Seed of what is random.
        work
            Limit of the work, see `Deadline`; solvers that count none do not look at it.
        watch
            Called with the best cost and the bound whenever either is better, and at the end.
        """


class Solvers(Mapping[str, Solver]):
    """The solvers by name, as their files are found."""

    def __getitem__(self, name: str) -> Solver:
        if name not in self.names():
            raise KeyError(name)
        return _lazy(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        """All names, in the order in which they are shown."""
        found = {m.name for m in iter_modules(solvers.__path__)} - set(OTHERS)
        names = sorted(name.replace("_", "-") for name in found)
        first = [name for name in FIRST_SHOWN if name in names]
        return [*first, *(name for name in names if name not in first)]


SOLVERS: Mapping[str, Solver] = Solvers()


@cache
def _lazy(name: str) -> Solver:
    """A solver that is imported when it is called."""
    module = f"{solvers.__name__}.{name.replace('-', '_')}"

    def call(
        problem: Problem,
        *,
        time_limit: float | None = None,
        seed: int = 0,
        work: float | None = None,
        watch: Watch | None = None,
    ) -> Assignment:
        solver: Solver = import_module(module).solve
        with interrupts.listening():
            answer = solver(problem, time_limit=time_limit, seed=seed, work=work, watch=watch)
        if watch is not None:
            watch(answer.cost, answer.lower_bound)
        return answer

    call.__name__ = call.__qualname__ = name.replace("-", "_")
    call.__doc__ = f"Solve by `{module}`; see there."
    return call


def solve(
    problem: Problem,
    *,
    solver: str = "auto",
    time_limit: float | None = None,
    seed: int = 0,
    work: float | None = None,
    watch: Watch | None = None,
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
        Called with the best cost and the bound: at the end, and by solvers that know something
        earlier whenever either is better.

    Returns
    -------
    An assignment with its cost and a bound, or the finding that there is none.

    Raises
    ------
    ProblemError
        When there is no such solver, or when it does not take problems like this one.
    """
    if solver not in SOLVERS:
        raise ProblemError.rule(
            "the solver", f"be one of {', '.join(SOLVERS)}", repr(solver), "choose one"
        )
    return SOLVERS[solver](problem, time_limit=time_limit, seed=seed, work=work, watch=watch)
