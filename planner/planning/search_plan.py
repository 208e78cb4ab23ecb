"""The search for a plan: bound the step, cost what bounding problems propose, look around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct, field

from planner.planning.bounds.additive_search import AdditiveSearch
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.bounds.certificate import certify
from planner.planning.bounds.layer_bounds import LayerBounds
from planner.planning.bounds.memory_certificate import certify_under_limit
from planner.planning.bounds.under_limit import fit_into_memory, hold_least
from planner.planning.options import Overtaken
from planner.planning.space.costing import Costed
from planner.planning.space.formulate import Formulation
from planner.planning.space.profile import Profile
from search import Problem
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent, Watch
from search.problem.notes import Note

# What must follow the search, in times that costing one assignment takes, measured on chains of 100
# to 10,000 layers and doubled: choosing the bucket size (which costs the usual strategies again),
# simulating one assignment, and putting the plan together, for which it is simulated once more.
TUNING, SIMULATION = 12.0, 25.0
ASSEMBLY = 4.0 + SIMULATION
# The search leaves at most that part of its time to the choice by simulation.
DECISION_SHARE = 0.3
# What takes longer on the timeline by more is taken to do so when it is simulated, too, whatever
# moves make of it: under a limit on memory what fits first is not the fastest. Of a small Llama on
# 16 GPUs with 1.55 GiB the plan takes 18 % less than that. [parts]
OFF = 0.2
# How long after the deadline the usual strategies are still costed until one fits: without one,
# there is no plan. [s]
GRACE = 0.5


class PlanSearchResult(Struct, frozen=True, kw_only=True, eq=False):
    """What the search of a plan came to.

    Parameters
    ----------
    formulation
        The network on the machine, with all candidates that came into the search.
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
    least_memory
        No assignment of any distributions needs less at its peak, what the framework reserves
        included, as far as that was looked for. [B]
    """

    formulation: Formulation
    incumbent: Incumbent[Costed]
    ranked: tuple[Costed, ...]
    tightest: Costed | None
    num_costed: int
    problem: Problem | None
    met: Mapping[tuple[int, ...], Costed] = field(default_factory=dict)
    pace: float = 0.0
    least_memory: float = 0.0

    @property
    def best(self) -> Costed | None:
        """The fastest assignment that fits."""
        return self.incumbent.choices

    @property
    def memory_binds(self) -> bool:
        """Whether the fastest assignment that was met does not fit."""
        fastest = min(self.met.values(), key=lambda costed: costed.step.total, default=None)
        limit = self.formulation.cluster.device.memory
        return fastest is not None and fastest.memory.total > limit


def search_plan(
    formulation: Formulation,
    *,
    starts: Sequence[Sequence[int]] = (),
    method: str = "auto",
    num_best: int = 4,
    seed: int = 0,
    deadline: Deadline | None = None,
    least_memory: bool = False,
    smallest_bucket: float = math.inf,
    watch: Watch | None = None,
    rival: Callable[[], float] | None = None,
    limit: float = math.inf,
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
    least_memory
        Whether to search for the assignment of least peak memory instead.
    smallest_bucket
        Size that buckets of gradients get where the limit on memory binds; by default they stay as
        they are. [B]
    watch
        Called with the best step and the bound whenever either is better. [s]
    rival, limit
        As of `planner.planning.options.SearchOptions`.

    Raises
    ------
    Overtaken
        When what fits is slower than the rival or the limit.
    """
    least = 0.0
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
            least = _look_everywhere(
                search,
                num_best,
                least_memory=least_memory,
                smallest_bucket=smallest_bucket,
                rival=rival,
                limit=limit,
            )
    except KeyboardInterrupt:
        search.incumbent.stopped_by = "interrupt"
    if search.stopped and not search.certified:
        # a bound takes as long as a plan, which is late already
        late = deadline is not None and deadline.passed
        search.bound_everything(0.0 if late else LayerBounds.of(search.formulation, 0.0).bound)
        search.incumbent.add_note(Note.of("no-time-to-price"))
    met = search.seen.values()
    tightest = min(met, key=lambda costed: (costed.memory.total, costed.step.total), default=None)
    ranked = tuple(sorted(filter(search.fits, met), key=lambda costed: costed.step.total))
    if least_memory and ranked and tightest is not None:
        ranked = (tightest,)
        search.incumbent.choices, search.incumbent.cost = tightest, tightest.step.total
    return PlanSearchResult(
        formulation=search.formulation,
        incumbent=search.incumbent,
        ranked=ranked,
        tightest=tightest,
        num_costed=len(met),
        problem=_best_problem(search),
        met=search.seen,
        pace=search.pace,
        least_memory=least and least + formulation.cluster.device.reserved_memory,
    )


def _best_problem(search: AdditiveSearch) -> Problem | None:
    """The problem with the best bound: one with prices on memory if any has them."""
    known = search.bounding
    if known is None or (known.memory is None and search.limited is not None):
        return search.limited
    return known.problem(search.formulation)


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


def _least_known(rival: Callable[[], float] | None, limit: float) -> float:
    """The least step of a rival, if there is one, and of a plan that is known. [s]"""
    return limit if rival is None else min(limit, rival())


def _is_overtaken(search: AdditiveSearch, limit: float) -> bool:
    """Whether the best that fits is slower than a plan that is known, whatever moves make of it."""
    return search.incumbent.cost * (1.0 - OFF) > limit and not search.stopped


def _look_everywhere(
    search: AdditiveSearch,
    num_best: int,
    *,
    least_memory: bool,
    smallest_bucket: float,
    rival: Callable[[], float] | None,
    limit: float,
) -> float:
    """Bound the step, and look for assignments where the best ones are likely.

    Parameters
    ----------
    search
        What is known so far.
    num_best
        How many best distinct assignments to cost on the timeline. [items]
    least_memory
        Whether those of least memory are the best.
    smallest_bucket
        Where the limit on memory binds, buckets of gradients are no larger. [B]
    rival, limit
        As of `planner.planning.options.SearchOptions`.

    Returns
    -------
    What no assignment of any distributions holds less than, as far as it was looked for. [B]
    """
    profile = Profile.of(maximise_bound(search).weights)
    if not search.seen:
        return 0.0
    least, free, every = 0.0, search.incumbent.bound, math.inf
    if free > limit and not search.stopped:
        # what the search does not see may be faster
        every = certify(search, profile, widen=False, enough=limit)
        if every >= limit:
            raise Overtaken(min(free, every))
    if limit < math.inf:
        rival = partial(_least_known, rival, limit)
    binds = not search.fits(search.fastest)
    if binds and smallest_bucket < search.formulation.machine.training.bucket_bytes:
        search.with_buckets(smallest_bucket)
    if least_memory:
        least = hold_least(search, profile)
    elif binds:
        try:
            least = fit_into_memory(search, profile, rival)
        except Overtaken as error:
            # that is known of the candidates that the search sees
            every = certify(search, profile, widen=False, enough=error.bound)
            every = max(every, certify_under_limit(search))
            raise Overtaken(min(error.bound, every)) from None
    if search.incumbent.choices is None:
        return least  # there is no plan to bound
    if binds and rival is not None and not search.stopped:
        limit = rival()
    if binds and _is_overtaken(search, limit):
        raise Overtaken(min(search.incumbent.bound, every), search.incumbent.cost)
    under_limit = certify_under_limit(search) if binds else 0.0
    # what is cheap without a memory limit need not be under one
    search.incumbent.bound = free
    bound = certify(search, profile, widen=not least_memory)
    if not least_memory:
        # on a timeline messages of branches and skips count, unlike in the bound; and where the
        # limit binds on the fastest of all, it need not bind on what takes little more
        for seen in (search.formulation, search.formulation.as_on_timeline):
            for choices in search.next_best(seen.problem(profile), num_best):
                search.cost_once(choices)
        if _is_overtaken(search, limit):
            raise Overtaken(min(bound, every), search.incumbent.cost)
    search.bound_everything(max(bound, under_limit))
    return least
