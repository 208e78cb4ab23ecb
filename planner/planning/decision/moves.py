"""What is simulated: what estimates like best, and what moves make of the fastest of it.

Finalists are all usual strategies, the best of the search, those of each promising
pattern, and what moves of runs of layers make of the best of them. Estimates choose which of them
to simulate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from costmodels.strategy.blocks import is_transformer
from planner.planning.decision.estimate import StepEstimates
from planner.planning.decision.finalists import Patterns
from planner.planning.decision.finals import SIMPLER_WITHIN, Finals
from planner.planning.decision.lighter import lighter_than
from planner.planning.decision.local_search import made_to_fit, neighbours, simplified
from planner.planning.decision.room import Room
from planner.planning.decision.simulator import Choices
from planner.planning.options import SearchOptions
from planner.planning.search_plan import OFF
from planner.planning.tuning import Attempt

# Estimates of assignments that are unlike each other are off by so much more for one of them.
UNSURE = 0.03
# A plan that is no further above its bound is near enough: what is aimed at where all-reduces do
# not dominate a step.
NEAR_ENOUGH = 0.02
# Moves gain no more from assignments unlike the fastest, or on a plan that is known: from some that
# were 8 % slower they led to what was 2 % faster. [parts]
WORTH_MOVING = 0.1
# Devices mostly repeat the work of others where more of the computation is done more than once.
MOSTLY = 0.5
# What judging moves takes, in times that costing one assignment takes.
MOVES = 60.0
# Assignments between the simplest that the estimates allow and the fastest that are simulated.
SIMPLER_TRIALS = 2


def simulate_finalists(
    finals: Finals, patterns: Patterns, attempt: Attempt, options: SearchOptions
) -> None:
    """Simulate what may be the fastest, then what moves make of the fastest of it.

    Parameters
    ----------
    finals
        What was simulated so far.
    patterns
        Of the formulation.
    attempt
        The search.
    options
        How many of the search and of the patterns to simulate, and the step of a plan that is
        known.
    """
    num_best = options.num_best
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
    gain = OFF if attempt.result.memory_binds else WORTH_MOVING
    if finals.fastest.seconds > options.limit * (1.0 + gain):
        return
    room = Room(formulation=finals.simulator.formulation)
    pool += _make_fit(finals, patterns, estimates, pool, room, num_best)
    others = _of_the_other_kind(finals, patterns)
    for turn in range(num_best):
        if not _climb(finals, patterns, estimates, pool, room, num_best):
            return
        # moves do not lead from one kind to the other, nor to what holds much less
        starts = [] if turn else [*others, *_lighter(finals, attempt, room)]
        for start in starts:
            finals.simulate([start])
            slowest = finals.fastest.seconds * (1.0 + WORTH_MOVING)
            if start not in finals.best_of or finals.best_of[start].seconds > slowest:
                continue
            if not _climb(finals, patterns, estimates, pool, room, 1, {start}):
                return
        if starts and not _climb(finals, patterns, estimates, pool, room, num_best):
            return
        climbed = finals.fastest
        if climbed.seconds > options.limit * (1.0 + WORTH_MOVING):
            return  # none is chosen, however simple
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


def _of_the_other_kind(finals: Finals, patterns: Patterns) -> list[Choices]:
    """The best that uses all devices where the best of all does not, or the other way round.

    Parameters
    ----------
    finals, patterns
        As of `simulate_finalists`.

    Returns
    -------
    Nothing where there is none that is nearly as fast.
    """
    best = finals.fastest
    near = [one for one in finals.ranked if one.seconds <= best.seconds * (1.0 + UNSURE)]
    kinds = [patterns.replicated(one.choices) > MOSTLY for one in near]
    others = [one.choices for one, kind in zip(near, kinds, strict=True) if kind != kinds[0]]
    return others[:1] if finals.simulator.fits(best) else []


def _lighter(finals: Finals, attempt: Attempt, room: Room) -> list[Choices]:
    """Assignments that hold less than the fastest, where that may be far from the best."""
    best, result = finals.fastest, attempt.result
    near = best.seconds * (1.0 - NEAR_ENOUGH) <= result.incumbent.bound
    # of others more is found where gradients are followed in their order, which begins here
    if not is_transformer(finals.simulator.formulation.graph):
        return []
    if near or not (finals.fits and finals.time.allows(MOVES)):
        return []
    return lighter_than(best.choices, best.seconds, result, room, finals.time.deadline)


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
