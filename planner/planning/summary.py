"""How a plan was found and how good it is known to be, for the plan to say."""

from __future__ import annotations

import math

from costmodels.units import format_bytes
from planner.plan import SearchSummary
from planner.planning.decision.decide import Decision
from planner.planning.tuning import Attempt
from search.problem.notes import Note

# A plan this close to its bound is called proven optimal: costs and bounds are sums of hundreds of
# terms, and solvers stop at such gaps themselves.
PROVEN_GAP = 1e-6


def summarise(found: Attempt, decision: Decision) -> SearchSummary:
    """How the plan was found and how good it is.

    Parameters
    ----------
    found
        The search.
    decision
        The assignment that becomes the plan.
    """
    known = found.result.incumbent
    # the bound is one of the simulated step; where there was no time to simulate it is compared
    # with what the search knows of it
    step = decision.seconds if decision.seconds < math.inf else known.cost
    # a bound that is reached may lie above the step by rounding
    bound = min(known.bound, step)
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
    )


def summary_notes(summary: SearchSummary) -> tuple[Note, ...]:
    """What a reader of the plan must know of how it was found."""
    notes = []
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


def least_memory_notes(found: Attempt, decision: Decision) -> tuple[Note, ...]:
    """The least memory that was found, and what was proven.

    Parameters
    ----------
    found
        The search.
    decision
        The assignment that becomes the plan.
    """
    least = format_bytes(decision.best.memory.total)
    bound = format_bytes(min(found.result.least_memory, decision.best.memory.total))
    return (Note.of("least-memory", found=least, bound=bound),)
