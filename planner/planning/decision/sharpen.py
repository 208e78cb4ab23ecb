"""Where a plan may be far from the best, look once more with gradients in their order.

That bounds the step as sharply as is known, and proposes assignments, of candidates too that the
search left out. It takes some seconds, which plans near their bounds do without.
"""

from __future__ import annotations

from dataclasses import replace

from planner.planning.bounds.sharper import sharper_bound
from planner.planning.decision.choice import EQUAL
from planner.planning.decision.decide import Judged
from planner.planning.decision.finalists import Patterns
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.options import SearchOptions
from planner.simulation.run import OVERLAP_FACTOR
from search.problem.deadline import Deadline

# A plan that is no further above its bound is near enough: what is aimed at where all-reduces do
# not dominate a step. All-reduces that slow what they run beside by less are no reason for a gap.
NEAR_ENOUGH = 0.02
# The plan must be put together in what is left of the time.
SHARE = 0.5


def sharpened(judged: Judged, options: SearchOptions, deadline: Deadline) -> Judged:
    """What was judged, with a sharper bound and with what that found, if anything is to be gained.

    Parameters
    ----------
    judged
        What was simulated of a search.
    options
        How to search: where each setting of the step has its own search, there is no bound to
        sharpen.
    deadline
        When the plan must be there.
    """
    finals, attempt = judged.finals, judged.attempt
    known = attempt.result.incumbent
    if judged.stopped_by or options.tune_trials or attempt.result.memory_binds or not finals.fits:
        return judged
    if not finals.best_of or known.bound >= finals.fastest.seconds * (1.0 - NEAR_ENOUGH):
        return judged
    reduced = finals.simulator.planned_step(finals.fastest.choices).gradients
    if sum(reduced.values()) < finals.fastest.seconds * NEAR_ENOUGH / OVERLAP_FACTOR:
        return judged
    found = sharper_bound(
        attempt.formulation,
        (min(finals.buckets), max(finals.buckets)),
        finals.simulator.runtime.first_bucket,
        bound=known.bound,
        worst=finals.fastest.seconds * (1.0 - EQUAL),
        deadline=deadline.part(SHARE),
    )
    bounded = replace(known, bound=max(known.bound, found.bound))
    attempt = replace(attempt, result=replace(attempt.result, incumbent=bounded))
    judged = replace(judged, attempt=attempt)
    if not found.proposed:
        return judged
    finals = replace(finals, simulator=PlanSimulator(found.formulation), best_of={**finals.best_of})
    finals.simulate(found.formulation.choices(splits) for splits in found.proposed)
    if finals.fastest is judged.finals.fastest:
        return judged
    finals.tune(finals.fastest)
    result = replace(attempt.result, formulation=found.formulation)
    return replace(
        judged,
        finals=finals,
        patterns=Patterns(found.formulation),
        attempt=replace(attempt, formulation=found.formulation, result=result),
    )
