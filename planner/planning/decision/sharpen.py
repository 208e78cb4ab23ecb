"""Where a plan may be far from the best, look once more with gradients in their order.

That bounds the step as sharply as is known, and proposes assignments, of candidates too that the
search left out. It takes some seconds, which plans near their bounds do without.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from costmodels.distribution import Distribution
from planner.planning.bounds.sharper import NUM_PROPOSED, Sharper, TooMuchIsNear
from planner.planning.decision.choice import EQUAL
from planner.planning.decision.decide import Judged
from planner.planning.decision.finalists import Patterns
from planner.planning.decision.moves import NEAR_ENOUGH
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.options import SearchOptions
from planner.planning.space.widen import with_splits
from planner.simulation.run import OVERLAP_FACTOR
from search.problem.deadline import Deadline, OutOfTime

# The plan must be put together in what is left of the time.
SHARE = 0.5
# What is asked for first, of what lies between the bound and the plan; then twice as much more each
# time, up to half of what is left, until it is too much for the second time. By trial: the whole at
# once is mostly too much, which costs all the work that is allowed for nothing.
FIRST_PART = 0.125
MAX_TRIES = 6


def sharpened(
    judged: Judged, options: SearchOptions, deadline: Deadline, rival: float = math.inf
) -> Judged:
    """What was judged, with a sharper bound and with what that found, if anything is to be gained.

    Parameters
    ----------
    judged
        What was simulated of a search.
    options
        How to search: where each setting of the step has its own search, there is no bound to
        sharpen; what takes longer than a plan that is known does not matter.
    deadline
        When the plan must be there.
    rival
        What takes longer does not matter, nor does a bound. [s]
    """
    finals, formulation = judged.finals, judged.attempt.formulation
    result, known = judged.attempt.result, min(rival, options.limit)
    if judged.stopped_by or options.tune_trials or result.memory_binds or not finals.fits:
        return judged
    if not finals.best_of or _is_near(judged) or result.incumbent.bound >= known * (1.0 - EQUAL):
        return judged
    if formulation.shared or not formulation.machine.training.gradient_overlap:
        return judged
    reduced = finals.simulator.planned_step(finals.fastest.choices).gradients
    # all-reduces that slow what they run beside by less are no reason for a gap
    if sum(reduced.values()) < finals.fastest.seconds * NEAR_ENOUGH / OVERLAP_FACTOR:
        return judged
    sizes, first = (min(finals.buckets), max(finals.buckets)), finals.simulator.runtime.first_bucket
    deadline = deadline.part(SHARE)
    try:
        sharper = Sharper.of(formulation, sizes, first, deadline)
    except (TooMuchIsNear, OutOfTime):
        return judged
    return _below_its_step(judged, sharper, deadline, known, asks_plans=rival < math.inf)


def _is_near(judged: Judged) -> bool:
    """Whether the fastest is as near to its bound as is asked for."""
    bound = judged.attempt.result.incumbent.bound
    return bound >= judged.finals.fastest.seconds * (1.0 - NEAR_ENOUGH)


def _below_its_step(
    judged: Judged, sharper: Sharper, deadline: Deadline, known: float, *, asks_plans: bool
) -> Judged:
    """What was judged, with what is found below its step.

    Little is below a low step and soon found, and what is simulated of it may be so fast that
    nothing higher need be asked for.

    Parameters
    ----------
    judged
        What was simulated of a search.
    sharper
        Finds more.
    deadline, known
        When to end with what is known, and what takes longer does not matter. [s]
    asks_plans
        Whether a bound does not matter.
    """
    done, most = judged.attempt.result.incumbent.bound, math.inf
    more = (min(judged.finals.fastest.seconds, known) - done) * FIRST_PART
    for _ in range(MAX_TRIES):
        before = judged.finals.fastest
        worst = min(before.seconds * (1.0 - EQUAL), known, most)
        if _is_near(judged) or done >= worst:
            break
        close = worst - done <= NEAR_ENOUGH / 2.0 * worst
        asked = worst if close and worst < most else min(done + more, (done + worst) / 2.0)
        try:
            found = sharper.below(asked, deadline)
            judged = _proposed(_bounded(judged, found.bound), found.splits, deadline)
        except TooMuchIsNear:
            if most < math.inf or asks_plans:
                break
            most = asked
        except OutOfTime:
            break
        else:
            done, more = asked, 2.0 * more
            # the bound is that of the first of them then, and others are further above it
            if len(found.splits) == NUM_PROPOSED and judged.finals.fastest is before:
                break
    return judged


def _bounded(judged: Judged, bound: float) -> Judged:
    """What was judged, with what no step is below. [s]"""
    result = judged.attempt.result
    known = dataclasses.replace(result.incumbent, bound=max(result.incumbent.bound, bound))
    attempt = replace(judged.attempt, result=replace(result, incumbent=known))
    return replace(judged, attempt=attempt)


def _proposed(
    judged: Judged, splits: Sequence[Mapping[str, Distribution]], deadline: Deadline
) -> Judged:
    """What was judged, with what is proposed if any of that is faster.

    Parameters
    ----------
    judged
        What was simulated so far.
    splits
        How layers are split in what is proposed.
    deadline
        When to give up by raising `OutOfTime`.
    """
    if not splits:
        return judged
    attempt, before = judged.attempt, judged.finals.fastest
    wide = with_splits(attempt.formulation, splits, deadline)
    best_of = {**judged.finals.best_of}
    finals = replace(judged.finals, simulator=PlanSimulator(wide), best_of=best_of)
    finals.simulate(wide.choices(split) for split in splits)
    if finals.fastest is before:
        return judged
    finals.tune(finals.fastest)
    result = replace(attempt.result, formulation=wide)
    return replace(
        judged,
        finals=finals,
        patterns=Patterns(wide),
        attempt=replace(attempt, formulation=wide, result=result),
    )
