"""The search for a plan: bound the step, cost what the bounding problems propose, look around it.

Where memory binds, two things leave room for what the additive model leaves out: a price on memory,
and a limit below the true one, corrected by the true peak of its answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.planning.additive_search import AdditiveSearch, Floats, time_left
from planner.planning.best_bound import Weighted, exposure, maximise_bound
from planner.planning.costing import Costed
from planner.planning.formulate import Formulation
from search import Problem, ProblemError
from search.elimination.k_best import k_best
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent, Watch
from search.problem.notes import Note

# Prices of memory that are tried, in steps a peak of the fastest assignment: from where memory
# hardly counts to where nothing else does. Each is about three times the one before, at the end ten
# times; chosen by trial.
PRICES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
# Rounds in which the memory limit of the additive model is corrected by the true peak. Halving
# alone would need seven to tell limits as close as `LIMITS_APART`; the true peak guesses better.
MAX_MEMORY_ROUNDS = 6
# Limits closer together than this part of the memory are not told apart: the costs of plans differ
# little between them, and each takes a solve.
LIMITS_APART = 0.01
# Solvers after which the K best of the last problem are looked at: those are found by elimination,
# and whoever asks for another solver gets the answers of that one.
SOLVERS_THAT_RANK = ("auto", "elimination")
# What must follow the search, in times that costing one assignment takes, measured on chains of 100
# to 10,000 layers and doubled: putting the plan together, choosing the bucket size (which costs the
# usual strategies again), and simulating one assignment.
ASSEMBLY, TUNING, SIMULATION = 4.0, 12.0, 25.0
# The search leaves at most that part of its time to the choice by simulation.
DECISION_SHARE = 0.3
# How long after the deadline the usual strategies are still costed until one fits: without one,
# there is no plan. [s]
GRACE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanSearchResult:
    """What the search of a plan came to.

    Parameters
    ----------
    incumbent
        The fastest assignment that fits, the bound that no step is below [s], the path taken,
        notes, and what cut the search short.
    ranked
        All assignments met that fit, the fastest first.
    tightest
        The assignment of least peak memory that was met, or None where none was costed.
    num_costed
        Assignments costed on the timeline. [items]
    problem
        The additive problem with the best bound, among those under the memory limit if any.
    met
        All assignments that were costed, by their choices.
    pace
        Time that costing one takes. [s]
    clipped
        Whether candidates were left out of the search.
    """

    incumbent: Incumbent[Costed]
    ranked: tuple[Costed, ...]
    tightest: Costed | None
    num_costed: int
    problem: Problem | None
    met: Mapping[tuple[int, ...], Costed] = field(default_factory=dict)
    pace: float = 0.0
    clipped: bool = False

    @property
    def best(self) -> Costed | None:
        """The fastest assignment that fits."""
        return self.incumbent.choices


def search_plan(
    formulation: Formulation,
    *,
    starts: Sequence[Sequence[int]] = (),
    method: str = "auto",
    num_best: int = 4,
    seed: int = 0,
    deadline: Deadline | None = None,
    watch: Watch | None = None,
) -> PlanSearchResult:
    """Search for the fastest assignment that fits.

    Parameters
    ----------
    formulation
        The network on the machine.
    starts
        Assignments to cost in any case, such as the usual strategies.
    method
        Name of a solver in `search.SOLVERS`.
    num_best
        How many best distinct assignments to cost on the timeline. [items]
    seed
        Seed of solvers that need one.
    deadline
        When the plan must be there: the search ends so much earlier that it can be put together.
    watch
        Called with the best step and the bound whenever either is better. [s]
    """
    search = AdditiveSearch(
        formulation=formulation, method=method, seed=seed, deadline=deadline or Deadline(None)
    )
    search.incumbent.watch = watch
    try:
        _cost_starts(search, starts)
        search.deadline = search.deadline.earlier(_reserve(search, num_best))
        if search.deadline.passed and search.seen:
            search.incumbent.stopped_by = "time limit"
        else:
            _look_everywhere(search, num_best)
    except KeyboardInterrupt:
        search.incumbent.stopped_by = "interrupt"
    met = search.seen.values()
    return PlanSearchResult(
        incumbent=search.incumbent,
        ranked=tuple(sorted(filter(search.fits, met), key=lambda costed: costed.step.total)),
        tightest=min(met, key=lambda costed: costed.memory.total, default=None),
        num_costed=len(met),
        problem=None if search.bounding is None else search.bounding.problem,
        met=search.seen,
        pace=search.pace,
        clipped=formulation.num_candidates < formulation.num_sensible,
    )


def _cost_starts(search: AdditiveSearch, starts: Sequence[Sequence[int]]) -> None:
    """Cost the starts: all of them if time allows, and else until one fits."""
    late = search.deadline.earlier(-GRACE)
    for start in starts:
        enough = search.deadline.earlier(ASSEMBLY * search.pace)
        if search.seen and (late.passed or (search.incumbent.choices and enough.passed)):
            break
        search.cost_once(start)


def _reserve(search: AdditiveSearch, num_best: int) -> float:
    """Time to keep for deciding by simulation and putting the plan together. [s]"""
    left = search.deadline.remaining
    if left == math.inf:
        return 0.0
    wanted = (ASSEMBLY + TUNING + num_best * SIMULATION) * search.pace
    return max(min(wanted, DECISION_SHARE * left), ASSEMBLY * search.pace)


def _look_everywhere(search: AdditiveSearch, num_best: int) -> None:
    """Bound the step, and look for assignments where the best ones are likely."""
    profile = exposure(maximise_bound(search, None).weights)
    if not search.seen:
        return
    if search.fits(search.fastest):
        _cost_next_best(search, profile, num_best)
        return
    # memory binds: bound with all of it, then leave room for what the additive model leaves out
    usable = float(search.formulation.cluster.device.usable_memory)
    _pay_for_memory(search, profile)
    _fit_into_memory(search, maximise_bound(search, usable), usable)


def _pay_for_memory(search: AdditiveSearch, profile: Floats) -> None:
    """Look at what is best when memory costs more and more: quick, and its peak falls as a whole.

    A limit only sees what is kept; a price also counts what a layer needs while it runs.
    """
    fastest = search.fastest
    unit = fastest.step.total / fastest.memory.total
    for factor in PRICES:
        if search.stopped:
            return
        search.solve(profile, None, price=factor * unit, bounds=False)


def _fit_into_memory(search: AdditiveSearch, bounding: Weighted, usable: float) -> None:
    """Look for the largest limit of the additive model whose answer truly fits.

    Parameters
    ----------
    search
        What is known so far.
    bounding
        The weights of the best bound, and the answer to their problem under all of the memory.
    usable
        Memory of a device less what is reserved. [B]
    """
    capacity = search.formulation.cluster.device.memory
    profile, answer = exposure(bounding.weights), bounding.answer
    limit, fits, exceeds = usable, 0.0, usable
    for round_number in range(MAX_MEMORY_ROUNDS):
        if search.stopped or exceeds - fits < LIMITS_APART * usable:
            break
        if round_number:
            answer = search.solve(profile, limit, bounds=False)
        excess, guess = 0.0, 0.0
        if answer.choices:
            excess = search.cost_once(answer.choices).memory.total - capacity
        if excess > 0.0:
            exceeds = min(limit, answer.peak_usage)
            guess = exceeds - excess
        elif limit == usable:
            break  # all of it fits, or nothing does
        else:
            fits = limit
        limit = guess if fits < guess < exceeds else (fits + exceeds) / 2.0


def _cost_next_best(search: AdditiveSearch, profile: Floats, num_best: int) -> None:
    """Cost the K best distinct assignments: the additive order need not be that of the steps."""
    known = search.incumbent
    if (
        known.choices is None
        or known.closed
        or search.stopped
        or num_best < 2
        or search.method not in SOLVERS_THAT_RANK
    ):
        return
    try:
        answers = k_best(
            search.formulation.problem(profile),
            num_best,
            time_limit=time_left(search.deadline),
        )
    except ProblemError:
        known.add_note(Note.of("too-wide-to-rank"))
        return
    for answer in answers:
        search.cost_once(answer.choices)
        known.stopped_by = known.stopped_by or answer.stopped_by
