"""Additive problems solved one after the other, each assignment met on the way costed once.

An additive problem bounds the step and proposes an assignment; costing that assignment on the
timeline tells how long it really takes and whether it fits. What is known so far is one
`Incumbent`: its answer is the fastest assignment that fits, its bound holds for every assignment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.planning.costing import Costed, cost
from planner.planning.formulate import Formulation
from search import SOLVERS, Assignment, Problem
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent
from search.problem.notes import Note

Floats = NDArray[np.float64]

# A problem under a memory limit may take hours to prove, while its answer and its bound are good
# long before: each gets that much time, or this part of the time that is left. [s]
MEMORY_SECONDS = 2.0
MEMORY_SHARE = 0.125
# Solvers that take graphs of any width.
SOLVERS_OF_WIDE = ("auto",)
# Without a time limit, work is limited instead, about as much: the same plan on every run.
MEMORY_WORK = 2.0
# A graph too wide for elimination keeps message passing busy for as long as it may. Its problems
# share that much work, about as many seconds, or the time that is left; each gets a part of what is
# left of it, so that the first, whose answer all others start from, gets most.
WIDE_WORK = 12.0
WIDE_SHARE = 0.3
# A solver that is called at all gets that much time: enough for its first answer. [s]
LEAST_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundingProblem:
    """An additive problem that bounds the step, and its bound.

    Parameters
    ----------
    problem
        The problem.
    limited
        Whether it is under the memory limit.
    bound
        What its solver proved. [s]
    """

    problem: Problem
    limited: bool
    bound: float

    def says_more_than(self, other: BoundingProblem | None) -> bool:
        """Whether it is the better one: under the limit if any is, then by its bound."""
        known = (False, -math.inf) if other is None else (other.limited, other.bound)
        return (self.limited, self.bound) > known


@dataclass(slots=True, kw_only=True, eq=False)
class AdditiveSearch:
    """What a search of a plan works on and knows.

    Parameters
    ----------
    formulation
        The network on the machine.
    method
        Name of a solver in `search.SOLVERS`.
    seed
        Seed of solvers that need one.
    deadline
        When to stop with the best so far.
    incumbent
        The fastest assignment that fits, the bound, the path, notes, and what cut the search short.
    seen
        Every assignment met so far by its choices, in the order in which they were met.
    bounding
        The problem with the best bound so far.
    wide_work
        Work that is left for problems too wide for elimination, without a time limit.
    seconds
        Time that costing took so far. [s]
    certified
        Whether the bound holds for every distribution, not just for those that the search sees.
    """

    formulation: Formulation
    method: str
    seed: int
    deadline: Deadline
    incumbent: Incumbent[Costed] = field(default_factory=lambda: Incumbent(bound=0.0))
    seen: dict[tuple[int, ...], Costed] = field(default_factory=dict)
    bounding: BoundingProblem | None = None
    wide_work: float = WIDE_WORK
    seconds: float = 0.0
    certified: bool = False

    @property
    def stopped(self) -> bool:
        """Whether the search was cut short."""
        return bool(self.incumbent.stopped_by)

    @property
    def pace(self) -> float:
        """Time that costing one assignment takes. [s]"""
        return self.seconds / max(len(self.seen), 1)

    @property
    def fastest(self) -> Costed:
        """The fastest assignment met so far, whether it fits or not."""
        return min(self.seen.values(), key=lambda costed: costed.step.total)

    def fits(self, costed: Costed) -> bool:
        """Whether the peak of an assignment is within the memory of a device."""
        return costed.memory.total <= self.formulation.cluster.device.memory

    def cost_once(self, choices: Sequence[int]) -> Costed:
        """Cost an assignment unless it was met before, and keep it if it is the best that fits."""
        key = tuple(int(choice) for choice in choices)
        if key not in self.seen:
            began = time.monotonic()
            costed = self.seen[key] = cost(self.formulation, key)
            self.seconds += time.monotonic() - began
            if self.fits(costed):
                self.incumbent.offer(costed, costed.step.total)
        return self.seen[key]

    def bound_everything(self, bound: float) -> None:
        """Replace the bound of the candidates that the search sees by one that always holds.

        That nothing fits is proven for what the search sees, and stays.
        """
        self.certified = True
        if not self.incumbent.infeasible:
            self.incumbent.bound = min(bound, self.incumbent.cost)

    def widen(self, formulation: Formulation) -> None:
        """Search among more candidates; what is bounded so far holds for fewer.

        Parameters
        ----------
        formulation
            The same with further candidates, behind those that were there.
        """
        self.formulation = formulation
        self.bounding = None
        self.incumbent.bound = 0.0

    def solve(
        self,
        profile: Floats,
        limit: float | None,
        *,
        price: float = 0.0,
        bounds: bool = True,
    ) -> Assignment:
        """Solve one additive problem, and keep what it tells.

        Parameters
        ----------
        profile
            How much of each layer's all-reduce counts, as of `Formulation.problem`.
        limit
            Memory for what is kept, or None for no limit. [B]
        price
            Added for each byte of memory. [s/B]
        bounds
            Whether the problem bounds the step: not with a price on memory, and not with less of
            it than there is.
        """
        problem = self.formulation.problem(profile, limit, price=price)
        allowed, work = self._allowance(limited=limit is not None)
        answer: Assignment = SOLVERS[self.method](
            problem, time_limit=allowed, seed=self.seed, work=work
        )
        self.incumbent.path = answer.solver
        self._keep_notes(answer, limited=limit is not None)
        if limit is None and work is not None and answer.stopped_by == "work limit":
            self.wide_work -= work
        if answer.choices:
            self.cost_once(answer.choices)
        if bounds:
            self.incumbent.raise_bound(answer.lower_bound)
            solved = BoundingProblem(
                problem=problem, limited=limit is not None, bound=answer.lower_bound
            )
            if solved.says_more_than(self.bounding):
                self.bounding = solved
        return answer

    def _allowance(self, *, limited: bool) -> tuple[float | None, float | None]:
        """Time [s] and work that the next problem gets, each None where it is not limited."""
        left = time_left(self.deadline)
        if not limited:
            counted = self.wide_work if left is None else left
            return left, WIDE_SHARE * counted if self.method in SOLVERS_OF_WIDE else None
        if left is None:
            return None, MEMORY_WORK
        return min(MEMORY_SECONDS, MEMORY_SHARE * left), None

    def _keep_notes(self, answer: Assignment, *, limited: bool) -> None:
        """Keep the notes of an answer, and what stopped it if that ends the whole search.

        Parameters
        ----------
        answer
            The answer of a solver.
        limited
            Whether the problem was under a memory limit: then it had a part of the time only.
        """
        for note in answer.notes:
            self.incumbent.add_note(note)
        late = self.deadline.passed
        if answer.stopped_by == "work limit" and not limited:
            self.incumbent.add_note(Note.of("wide-unproven"))
            if late:
                self.incumbent.stopped_by = "time limit"
        elif answer.stopped_by in ("work limit", "time limit") and limited and not late:
            self.incumbent.add_note(Note.of("memory-unproven", seconds=MEMORY_SECONDS))
        elif answer.stopped_by or late:
            self.incumbent.stopped_by = answer.stopped_by or "time limit"


def time_left(deadline: Deadline) -> float | None:
    """Time that a solver gets until a deadline, None without one. [s]"""
    left = deadline.remaining
    return max(left, LEAST_SECONDS) if left < math.inf else None
