"""Additive problems solved one after the other, each assignment met on the way costed once.

An additive problem bounds the step and proposes an assignment; costing that assignment on the
timeline tells how long it really takes and whether it fits. What is known so far is one
`Incumbent`: its answer is the fastest assignment that fits, its bound holds for every assignment.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from planner.planning.memory.prices import MemoryPrices
from planner.planning.space.costing import Costed, cost, searched_step
from planner.planning.space.formulate import Formulation
from planner.planning.space.profile import Profile
from search import SOLVERS, Assignment, Problem, ProblemError
from search.elimination.k_best import k_best
from search.problem.deadline import Deadline
from search.problem.incumbent import RELATIVE_TOLERANCE, Incumbent
from search.problem.notes import Note

Floats = NDArray[np.float64]

# Solvers that take graphs of any width.
SOLVERS_OF_WIDE = ("auto",)
# Solvers after which the K best of the last problem are looked at: those are found by elimination,
# and whoever asks for another solver gets the answers of that one.
SOLVERS_THAT_RANK = ("auto", "elimination")
# A graph too wide for elimination keeps message passing busy for as long as it may. Its problems
# share that much work, about as many seconds, or the time that is left; each gets a part of what is
# left of it, so that the first, whose answer all others start from, gets most.
WIDE_WORK = 12.0
WIDE_SHARE = 0.3
# A solver that is called at all gets that much time: enough for its first answer. [s]
LEAST_SECONDS = 0.01


class BoundingProblem(Struct, frozen=True, kw_only=True, eq=False):
    """An additive problem that bounds the step, and its bound.

    Parameters
    ----------
    profile
        How much of each layer counts.
    memory
        Prices on memory, or None where it costs nothing.
    bound
        What its solver proved of all assignments that fit. [s]
    """

    profile: Profile
    memory: MemoryPrices | None
    bound: float

    def says_more_than(self, other: BoundingProblem | None) -> bool:
        """Whether it is the better one: with prices if any has them, then by its bound."""
        if other is None:
            return True
        known = (other.memory is not None, other.bound)
        return (self.memory is not None, self.bound) > known

    def problem(self, formulation: Formulation) -> Problem:
        """The problem; one with prices is also under the limit on what is kept.

        What the limit is worth is taken off, so that the optimum bounds the step.
        """
        problem = formulation.problem(self.profile)
        if self.memory is None:
            return problem
        priced = self.memory.priced(problem)
        costs = (priced.costs[0] - self.memory.worth, *priced.costs[1:])
        limit = self.memory.limit
        return dataclasses.replace(
            priced, costs=costs, usages=formulation.usages(limit), usage_limit=limit
        )


class AdditiveSearch(Struct, kw_only=True, eq=False):
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
    limited
        That with the best bound under a limit on memory, before more candidates came in.
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
    limited: Problem | None = None
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
                self._offer(costed, searched_step(self.formulation, costed))
        return self.seen[key]

    def _offer(self, costed: Costed, seconds: float) -> None:
        """Keep an assignment that fits if it is the best so far.

        Parameters
        ----------
        costed
            The assignment.
        seconds
            What it costs. Of those that cost the same, the timeline tells which is better. [s]
        """
        known = self.incumbent
        alike = abs(seconds - known.cost) <= RELATIVE_TOLERANCE * seconds
        if known.choices is not None and alike:
            if costed.step.total < known.choices.step.total:
                known.choices = costed
        else:
            known.offer(costed, seconds)

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
        if self.bounding is not None and self.bounding.memory is not None:
            self.limited = self.bounding.problem(self.formulation)
        self.formulation = formulation
        self.bounding = None
        self.incumbent.bound = 0.0

    def with_buckets(self, bucket_bytes: float) -> None:
        """Search under other buckets of gradients: bounds stay, and what was met is costed again.

        Parameters
        ----------
        bucket_bytes
            Their size. [B]
        """
        training = self.formulation.machine.training
        self.formulation = self.formulation.with_training(
            replace(training, bucket_bytes=bucket_bytes)
        )
        met, self.seen = tuple(self.seen), {}
        self.incumbent.choices, self.incumbent.cost = None, math.inf
        for choices in met:
            self.cost_once(choices)

    def solve(self, profile: Profile, memory: MemoryPrices | None = None) -> Assignment:
        """Solve one additive problem, and keep what it tells.

        Parameters
        ----------
        profile
            How much of each layer counts, as of `Formulation.problem`.
        memory
            Prices on memory, or None where it costs nothing.

        Returns
        -------
        The answer, with what it pays for memory among its cost and its bound.
        """
        problem = self.formulation.problem(profile)
        priced = problem if memory is None else memory.priced(problem)
        answer = self._answer(priced)
        # what exceeds the limit by the rows does so by the timeline
        if answer.choices and (memory is None or memory.may_fit(answer.choices)):
            self.cost_once(answer.choices)
        bound = answer.lower_bound if memory is None else memory.bound(answer.lower_bound)
        self.incumbent.raise_bound(bound)
        solved = BoundingProblem(profile=profile, memory=memory, bound=bound)
        if solved.says_more_than(self.bounding):
            self.bounding = solved
        return answer

    def next_best(self, problem: Problem, count: int) -> list[tuple[int, ...]]:
        """The best distinct assignments of an additive problem, to be costed: its order need not be
        that of the steps.

        Parameters
        ----------
        problem
            The problem.
        count
            How many; fewer than two are none, as the best one is known. [items]
        """
        if self.stopped or count < 2 or self.method not in SOLVERS_THAT_RANK:
            return []
        try:
            answers = k_best(problem, count, time_limit=time_left(self.deadline))
        except ProblemError:
            self.incumbent.add_note(Note.of("too-wide-to-rank"))
            return []
        for answer in answers:
            self.incumbent.stopped_by = self.incumbent.stopped_by or answer.stopped_by
        return [answer.choices for answer in answers if answer.choices]

    def solve_timeless(self, memory: MemoryPrices) -> Assignment:
        """Look for an assignment that holds least at some moments, whatever time it takes.

        Parameters
        ----------
        memory
            How much each moment counts; numbers that add up to 1.

        Returns
        -------
        The answer, whose cost and bound are in bytes.
        """
        return self._answer(memory.priced(self.formulation.without_times()))

    def _answer(self, problem: Problem) -> Assignment:
        """Solve a problem."""
        left, work = time_left(self.deadline), None
        if self.method in SOLVERS_OF_WIDE:
            work = WIDE_SHARE * (self.wide_work if left is None else left)
        answer: Assignment = SOLVERS[self.method](
            problem, time_limit=left, seed=self.seed, work=work
        )
        self.incumbent.path = answer.solver
        self._keep_notes(answer)
        if left is None and work is not None and answer.stopped_by == "work limit":
            self.wide_work -= work
        return answer

    def _keep_notes(self, answer: Assignment) -> None:
        """Keep the notes of an answer, and what stopped it if that ends the whole search."""
        for note in answer.notes:
            self.incumbent.add_note(note)
        late = self.deadline.passed
        if answer.stopped_by == "work limit":
            self.incumbent.add_note(Note.of("wide-unproven"))
            if late:
                self.incumbent.stopped_by = "time limit"
        elif answer.stopped_by or late:
            self.incumbent.stopped_by = answer.stopped_by or "time limit"


def time_left(deadline: Deadline) -> float | None:
    """Time that a solver gets until a deadline, None without one. [s]"""
    left = deadline.remaining
    return max(left, LEAST_SECONDS) if left < math.inf else None
