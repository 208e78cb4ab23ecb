"""What a plan amounts to, a sentence at a time."""

from __future__ import annotations

from costmodels.units import format_bytes, format_seconds
from planner.notes import words
from planner.plan import Plan
from planner.report import figures
from search.problem.notes import Note


def memory_sentence(plan: Plan) -> str:
    """Peak against capacity."""
    peak, capacity = plan.peak_memory, plan.memory_capacity_bytes
    share = figures.percent(peak / capacity)
    text = f"{format_bytes(peak)} of {format_bytes(capacity)} a GPU ({share})"
    if not plan.fits:
        text += f", DOES NOT FIT: {format_bytes(peak - capacity)} too much"
    return f"{text}, at {plan.memory_moment}"


def idle_sentence(plan: Plan) -> str:
    """How many GPUs would be enough, where some have no work of their own."""
    enough = plan.gpus_at_work
    return words(
        Note.of("gpus-without-work", idle=plan.gpus - enough, gpus=plan.gpus, enough=enough)
    )


def quality_sentence(plan: Plan) -> str:
    """How good the plan is known to be."""
    found = plan.search
    if found.status == "given":
        return "a given strategy was costed; nothing was searched"
    if found.proven_optimal:
        text = "proven optimal under the cost model, among all splits of the layers"
    elif found.lower_bound_s > 0.0:
        text = (
            f"gap {figures.percent(found.gap)}: under the cost model, no split of the "
            f"layers is faster than {format_seconds(found.lower_bound_s)}"
        )
    else:
        text = "no bound was proven"
    return f"{text}; stopped early by {found.stopped_by}" if found.stopped_by else text


def space_sentence(plan: Plan) -> str:
    """How much was searched."""
    found = plan.search
    if found.status == "given":
        return found.solver
    if not found.cap:
        return f"the usual strategies alone, {found.num_costed:,} of them; by {found.solver}"
    left_out = found.num_sensible - found.num_candidates
    text = f"{found.num_candidates:,} candidates of {len(plan.layers)} layers"
    if left_out > 0:
        text += f", out of {found.num_sensible:,} sensible ones (at most about {found.cap} a layer)"
    else:
        text += ", all sensible ones"
    assignments = "assignment" if found.num_costed == 1 else "assignments"
    return f"{text}; {found.num_costed:,} {assignments} costed on the timeline; by {found.solver}"


def simulation_sentence(plan: Plan) -> str:
    """What the best assignments take when they are simulated, and whether their order changed."""
    rows = plan.simulated
    if not rows:
        return "not simulated: see 'planner simulate'"
    place = next(n for n, row in enumerate(rows) if row.chosen)
    text = f"{format_seconds(rows[place].simulated_s)} a step"
    if len(rows) == 1:
        return f"{text}; no other assignment was found"
    others = [row.simulated_s for n, row in enumerate(rows) if n != place]
    text += f", the fastest of {len(others)} others {format_seconds(min(others))}"
    if place:
        return f"{text}; the plan is number {place + 1} on the timeline"
    return f"{text}; the plan is the fastest on the timeline"
