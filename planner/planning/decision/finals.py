"""The finals: what may be the best assignment is simulated, under the buckets that suit it.

Finalists are all usual strategies, the best of the search, those of each promising
pattern, and what moves of runs of layers make of the best of them. Estimates choose which of them
to simulate.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
from msgspec import Struct, field

from planner.planning.decision.estimate import StepEstimates
from planner.planning.decision.finalists import Patterns
from planner.planning.decision.local_search import made_to_fit, neighbours, simplified
from planner.planning.decision.room import Room
from planner.planning.decision.simulator import Choices, PlanSimulator, SimulatedChoices
from planner.planning.search_plan import ASSEMBLY, SIMULATION
from planner.planning.space.costing import Costed
from planner.planning.tuning import Attempt, buckets_between
from search.problem.deadline import Deadline

# How much slower than the fastest a simpler plan may be.
SIMPLER_WITHIN = 0.01
# A finalist so many times as slow as the fastest under the usual buckets is not tried under others:
# on the built-in networks they change a step by up to a fifth.
TUNED_WITHIN = 1.25
# Estimates of assignments that are unlike each other are off by so much more for one of them.
UNSURE = 0.03
# Devices mostly repeat the work of others where more of the computation is done more than once.
MOSTLY = 0.5
# What judging moves takes, in times that costing one assignment takes.
MOVES = 60.0
# Assignments between the simplest that the estimates allow and the fastest that are simulated.
SIMPLER_TRIALS = 2
# Of what should fit so many are simulated until one does. [items]
MOST_MISSES = 8


class TimeToDecide(Struct, frozen=True, kw_only=True):
    """The time until a plan must be there, and how long things take.

    Parameters
    ----------
    deadline
        When the plan must be there.
    pace
        Time that costing one assignment takes. [s]
    """

    deadline: Deadline
    pace: float

    def allows(self, costings: float) -> bool:
        """Whether so many costings can end before the plan must be put together."""
        return self.deadline.remaining >= (costings + ASSEMBLY) * self.pace


class Finals(Struct, kw_only=True, eq=False):
    """What was simulated so far.

    Parameters
    ----------
    simulator
        Simulates assignments.
    buckets
        Sizes of gradient buckets that may be chosen, the usual one first. [B]
    time
        The time until a plan must be there.
    best_of
        By assignment its best trial, in the order in which they were simulated.
    wanted
        Assignments that were to be simulated. [items]
    """

    simulator: PlanSimulator
    buckets: Sequence[float]
    time: TimeToDecide
    best_of: dict[Choices, SimulatedChoices] = field(default_factory=dict)
    wanted: int = 0

    def simulate(self, finalists: Iterable[Choices], bucket_bytes: float | None = None) -> None:
        """Simulate assignments, each under the buckets that suit it, as long as time allows.

        Parameters
        ----------
        finalists
            The assignments.
        bucket_bytes
            The size of buckets that others are tried after; the usual one by default. [B]
        """
        first = bucket_bytes or self.buckets[0]
        for choices in finalists:
            if choices in self.best_of:
                continue
            self.wanted += 1
            if not self.time.allows(SIMULATION):
                continue
            trial = self.best_of[choices] = self.simulator.simulate(choices, first)
            if trial.seconds <= self._tuned_within(bucket_bytes) * self.fastest.seconds:
                others = [self.simulator.simulate(choices, size) for size in self.buckets]
                self.best_of[choices] = min([trial, *others], key=self._rank)

    def tune(self, trial: SimulatedChoices) -> None:
        """Try buckets of further sizes on an assignment that was simulated, if time allows."""
        for size in buckets_between(self.buckets):
            if self.time.allows(SIMULATION):
                other = self.simulator.simulate(trial.choices, size)
                best = self.best_of[trial.choices]
                self.best_of[trial.choices] = min(best, other, key=self._rank)

    @staticmethod
    def _tuned_within(bucket_bytes: float | None) -> float:
        """How many times as slow as the fastest one may be to be tried under other buckets."""
        return TUNED_WITHIN if bucket_bytes is None else 1.0

    def _rank(self, trial: SimulatedChoices) -> tuple[bool, float]:
        return not self.simulator.fits(trial), trial.seconds

    @property
    def fits(self) -> bool:
        """Whether any of them fits when it is simulated, or none was."""
        return not self.best_of or self.simulator.fits(self.fastest)

    @property
    def misfits(self) -> list[SimulatedChoices]:
        """Those that do not fit, the fastest first."""
        return [one for one in self.ranked if not self.simulator.fits(one)]

    @property
    def ranked(self) -> list[SimulatedChoices]:
        """All of them, those that fit first, each by its step."""
        return sorted(self.best_of.values(), key=self._rank)

    @property
    def fastest(self) -> SimulatedChoices:
        """The fastest that fits when it is simulated, or the fastest if none does."""
        return self.fastest_of(None)

    def fastest_of(self, among: Container[Choices] | None) -> SimulatedChoices:
        """The same of some assignments, None for all."""
        rows = self.best_of.items()
        return min((t for c, t in rows if among is None or c in among), key=self._rank)


def simulate_smaller(finals: Finals, met: Mapping[Choices, Costed]) -> None:
    """Simulate what was found to need less memory, the fastest first, until one fits.

    The search counts memory a little otherwise than the simulation does. What it met is taken to
    fit where it does so with all that the count was seen to be short of.

    Parameters
    ----------
    finals
        What was simulated so far, none of which fits.
    met
        All assignments that the search costed.
    """
    memory = finals.simulator.formulation.cluster.device.memory
    for _ in range(MOST_MISSES):
        counted = [(t, met[c].memory.total) for c, t in finals.best_of.items() if c in met]
        short = max((trial.peak_memory - total for trial, total in counted), default=0.0)
        left = [
            one
            for choices, one in met.items()
            if choices not in finals.best_of and one.memory.total + short <= memory
        ]
        if not left or finals.fits or not finals.time.allows(SIMULATION):
            return
        fastest = min(left, key=lambda one: (one.step.total, one.choices))
        finals.simulate([fastest.choices], min(finals.buckets))


def simulate_finalists(finals: Finals, patterns: Patterns, attempt: Attempt, num_best: int) -> None:
    """Simulate what may be the fastest, then what moves make of the fastest of it.

    Parameters
    ----------
    finals
        What was simulated so far.
    patterns
        Of the formulation.
    attempt
        The search.
    num_best
        Assignments of the search and of the patterns to simulate. [items]
    """
    estimates = StepEstimates(finals.simulator.formulation)
    finals.simulate(dict.fromkeys(attempt.starts))
    ranked = [costed.choices for costed in attempt.result.ranked]
    alike = patterns.assignments(patterns.promising())
    pool = list(dict.fromkeys([*ranked, *alike]))
    table = np.array(pool)
    judged = estimates.least(table, finals.buckets)
    order = np.argsort(judged, kind="stable")
    finals.simulate(pool[n] for n in order[:num_best])
    # plans of one split are further from the rest than these from each other, and so are estimates
    whole, unsure = set(alike), judged.min() * (1.0 + UNSURE)
    near: dict[float, Choices] = {}
    for n in order:
        if judged[n] <= unsure and pool[n] in whole:
            near.setdefault(round(judged[n] / unsure, 6), pool[n])  # several come to the same
    finals.simulate(list(near.values())[:num_best])
    if num_best < 2:
        return
    room = Room(formulation=finals.simulator.formulation)
    pool += _make_fit(finals, patterns, estimates, pool, room, num_best)
    other = _of_the_other_kind(finals, patterns)
    for _ in range(num_best):
        if not _climb(finals, patterns, estimates, pool, room, num_best):
            return
        if other is not None:
            # moves do not lead from the one kind to the other
            start, other = {other.choices}, None
            if not _climb(finals, patterns, estimates, pool, room, num_best, start):
                return
        climbed = finals.fastest
        estimate = partial(estimates.steps, bucket_bytes=climbed.bucket_bytes)
        simpler = simplified(estimate, patterns, climbed.choices, SIMPLER_WITHIN)
        finals.simulate(simpler[-1 : -1 - SIMPLER_TRIALS : -1])
        _tune_simpler(finals, patterns)
        if finals.fastest is climbed:
            return  # else a simpler one is the fastest under its own buckets: go on from there


def _make_fit(
    finals: Finals,
    patterns: Patterns,
    estimates: StepEstimates,
    pool: Sequence[Choices],
    room: Room,
    most: int,
) -> list[Choices]:
    """Simulate what the fastest that do not fit become with as little else as lets them fit.

    Parameters
    ----------
    finals, patterns, estimates, pool, room
        As of `_climb`.
    most
        Of which that is looked at. [items]

    Returns
    -------
    Those that do not fit, from which runs may be taken.
    """
    least = finals.fastest.seconds if finals.fits else np.inf
    faster = [one for one in finals.misfits if one.seconds < least]
    passed: set[Choices] = set()
    has_time = partial(finals.time.allows, MOVES)
    for one in faster[:most]:
        estimate = partial(estimates.steps, bucket_bytes=one.bucket_bytes)
        beyond = partial(room.beyond, off=room.off(one))
        other = made_to_fit(estimate, patterns, one.choices, pool, beyond, passed, has_time)
        if other is not None:
            finals.simulate([other], one.bucket_bytes)
    return [one.choices for one in faster]


def _climb(
    finals: Finals,
    patterns: Patterns,
    estimates: StepEstimates,
    pool: Sequence[Choices],
    room: Room,
    rounds: int,
    among: set[Choices] | None = None,
) -> bool:
    """Simulate what moves make of the fastest, until it stays the fastest.

    Parameters
    ----------
    finals, patterns
        As of `simulate_finalists`.
    estimates
        Judge moves.
    pool, room
        Assignments from which runs are taken, and the memory that they have.
    rounds
        The most moves from one fastest to the next. [items]
    among
        Those of which the fastest is meant, to which what is simulated is added; all by default.

    Returns
    -------
    Whether time allowed it.
    """
    for _ in range(rounds):
        finals.tune(finals.fastest_of(among))
        if not finals.time.allows(MOVES):
            return False
        base = finals.fastest_of(among)
        # the buckets of what exchanges nothing are not those that suit a move
        size = base.bucket_bytes if base.received > 0.0 else None
        sizes = finals.buckets if size is None else (size,)
        beyond = None
        if finals.misfits and finals.simulator.fits(base):
            beyond = partial(room.beyond, off=room.off(base))
        judge = partial(estimates.least, sizes=sizes)
        moved = neighbours(judge, patterns, base.choices, pool, beyond)
        finals.simulate(moved, size)
        if among is not None:
            among.update(moved)
        if finals.fastest_of(among) is base:
            break
    return True


def _of_the_other_kind(finals: Finals, patterns: Patterns) -> SimulatedChoices | None:
    """The best that uses all devices where the best of all does not, or the other way round.

    Parameters
    ----------
    finals, patterns
        As of `simulate_finalists`.

    Returns
    -------
    None where there is none that is nearly as fast.
    """
    best = finals.fastest
    near = [one for one in finals.ranked if one.seconds <= best.seconds * (1.0 + UNSURE)]
    kinds = [patterns.replicated(one.choices) > MOSTLY for one in near]
    others = (one for one, kind in zip(near, kinds, strict=True) if kind != kinds[0])
    return next(others, None) if finals.simulator.fits(best) else None


def _tune_simpler(finals: Finals, patterns: Patterns) -> None:
    """Tune the simplest of those that would be close enough to the fastest with better buckets."""
    within = (1.0 + 2.0 * SIMPLER_WITHIN) * finals.fastest.seconds
    changes = patterns.changes(finals.fastest.choices)
    simpler = [
        (patterns.changes(trial.choices), trial.seconds, n, trial)
        for n, trial in enumerate(finals.ranked)
        if trial.seconds <= within and patterns.changes(trial.choices) < changes
    ]
    for *_, trial in sorted(simpler)[:SIMPLER_TRIALS]:
        finals.tune(trial)
