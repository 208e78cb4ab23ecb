"""How a plan was found and how good it is known to be, for the plan to say."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from costmodels.units import format_bytes, format_seconds
from planner.plan import Plan, SearchSummary
from planner.planning.decision.decide import Decision
from planner.planning.tuning import Attempt
from search.problem.notes import Note

# A plan this close to its bound is called proven optimal: costs and bounds are sums of hundreds of
# terms, and solvers stop at such gaps themselves.
PROVEN_GAP = 1e-6


def summarise(found: Attempt, decision: Decision, step: float) -> SearchSummary:
    """How the plan was found and how good it is.

    Parameters
    ----------
    found
        The search.
    decision
        The assignment that becomes the plan.
    step
        Its step as simulated. [s]
    """
    known = found.result.incumbent
    # a bound that is reached may lie above the step by rounding; one that lies further above it is
    # none of the simulated step, and says nothing
    bound = min(known.bound, step) if known.bound <= (1.0 + PROVEN_GAP) * step else 0.0
    gap = (step - bound) / step
    return SearchSummary(
        solver=known.path or "none: there was no time to search",
        status="optimal" if gap <= PROVEN_GAP else "feasible",
        lower_bound_s=bound,
        proven_optimal=gap <= PROVEN_GAP,
        gap=gap,
        num_sensible=found.formulation.num_sensible,
        num_candidates=found.formulation.num_candidates,
        cap=found.cap,
        num_costed=found.result.num_costed,
        stopped_by=decision.stopped_by,
        memory_binds=found.result.memory_binds,
    )


def bounded(plan: Plan, least: float) -> Plan:
    """A plan as the answer over a larger space, some steps of which take no less than a bound.

    Parameters
    ----------
    plan, least
        The plan, and the bound of what its own does not hold for. [s]
    """
    bound = min(plan.search.lower_bound_s, least)
    gap = (plan.step_time_s - bound) / plan.step_time_s
    search = replace(
        plan.search,
        lower_bound_s=bound,
        gap=gap,
        proven_optimal=gap <= PROVEN_GAP,
        status="optimal" if gap <= PROVEN_GAP else "feasible",
    )
    return dataclasses.replace(plan, search=search)


def summary_notes(summary: SearchSummary, bound_found: float) -> tuple[Note, ...]:
    """What a reader of the plan must know of how it was found.

    Parameters
    ----------
    summary
        As of `summarise`.
    bound_found
        The bound of the search, whether the summary states it or not. [s]
    """
    notes = []
    if bound_found > summary.lower_bound_s == 0.0:
        notes.append(Note.of("bound-withdrawn", bound=format_seconds(bound_found)))
    if summary.cap and summary.num_candidates < summary.num_sensible:
        clipped = Note.of(
            "space-clipped",
            searched=summary.num_candidates,
            sensible=summary.num_sensible,
            cap=summary.cap,
        )
        notes.append(clipped)
    if summary.stopped_by:
        notes.append(Note.of("search-stopped", reason=summary.stopped_by))
    return tuple(notes)


def least_memory_notes(found: Attempt, peak: float) -> tuple[Note, ...]:
    """The least memory that was found, and what was proven.

    Parameters
    ----------
    found
        The search.
    peak
        Peak memory of the plan. [B]
    """
    least, bound = format_bytes(peak), format_bytes(min(found.result.least_memory, peak))
    return (Note.of("least-memory", found=least, bound=bound),)
