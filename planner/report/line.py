"""A plan in one line, apart from tables: what draws these takes long to import."""

from __future__ import annotations

from costmodels.units import format_items
from planner.plan import Plan
from planner.report import figures, sentences


def plan_line(plan: Plan) -> str:
    """The plan in one line."""
    parts = [
        f"{plan.model} on {plan.gpus} x {plan.device} of {plan.cluster}",
        f"{figures.seconds(plan.step_time_s)} a step",
        f"{figures.count(plan.throughput)} {figures.sample_word(plan.input_shape)}/s",
        *([figures.mfu_words(plan.mfu)] if plan.mfu is not None else []),
        f"{figures.size(plan.peak_memory)} of {figures.size(plan.memory_capacity_bytes)} a GPU",
        sentences.how(plan),
    ]
    found = plan.search
    if found.status != "given":
        parts.append("proven optimal" if found.proven_optimal else _gap(plan))
    parts += figures.chosen_batch(plan.global_batch_size, plan.gpus, plan.defaults)
    if found.stopped_by:
        parts.append(f"stopped early by {found.stopped_by}")
    if plan.gpus_at_work < plan.gpus:
        parts.append(f"{format_items(plan.gpus_at_work, 'GPU')} would be enough")
    if plan.idle_gpus:
        parts.append(f"{format_items(plan.idle_gpus, 'GPU')} left without work")
    if not plan.fits:
        parts.append("DOES NOT FIT")
    return ", ".join(parts)


def _gap(plan: Plan) -> str:
    if plan.search.lower_bound_s <= 0.0:
        return "no bound"
    return f"gap {figures.percent(plan.search.gap)}"
