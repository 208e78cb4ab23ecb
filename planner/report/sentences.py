"""What a plan amounts to, a sentence at a time."""

from __future__ import annotations

from costmodels.units import format_bytes, format_items, format_seconds
from planner.notes import words
from planner.plan import Plan
from planner.report import figures
from planner.report.parallelism import split_words
from planner.simulation.run import gradient_buckets
from search.problem.notes import Note

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved",
    "zero-bubble": "zero-bubble",
}


def memory_sentence(plan: Plan) -> str:
    """Peak against capacity."""
    peak, capacity = plan.peak_memory, plan.memory_capacity_bytes
    share = figures.percent(peak / capacity)
    text = f"{format_bytes(peak)} of {format_bytes(capacity)} a GPU ({share})"
    if not plan.fits:
        text += f", DOES NOT FIT: {format_bytes(peak - capacity)} too much"
    return f"{text}, at {plan.memory_moment}"


def idle_sentence(plan: Plan) -> str:
    """How many GPUs are left idle or repeat the work of others; empty where all have their own."""
    enough, gpus = plan.gpus_at_work, plan.gpus + plan.idle_gpus
    if plan.idle_gpus:
        return words(Note.of("gpus-left-idle", idle=gpus - enough, gpus=gpus))
    if enough == gpus:
        return ""
    return words(Note.of("gpus-without-work", idle=gpus - enough, gpus=gpus, enough=enough))


def quality_sentence(plan: Plan) -> str:
    """How good the plan is known to be."""
    found = plan.search
    if found.status == "given":
        return "a given strategy was costed; nothing was searched"
    if found.proven_optimal:
        text = f"proven optimal under the cost model, among {searched(plan)}"
    elif found.lower_bound_s > 0.0:
        text = (
            f"gap {figures.percent(found.gap)}: under the cost model, {_all_of(plan)} "
            f"takes less than {format_seconds(found.lower_bound_s)}"
        )
    else:
        text = "no bound was proven"
    return f"{text}; stopped early by {found.stopped_by}" if found.stopped_by else text


def gap_figure(plan: Plan) -> str:
    """The gap of a plan in tables: a dash where no bound was proven."""
    return figures.percent(plan.search.gap) if plan.search.lower_bound_s > 0.0 else "-"


def shares_sentence(plan: Plan) -> str:
    """What shares of a step are of where several groups work; empty where one does."""
    if plan.num_groups == 1:
        return ""
    return (
        "Groups work at the same time, so times of layers are parts of "
        f"{plan.num_groups} times the step"
    )


def training_sentence(plan: Plan) -> str:
    """Stages, micro-batches, sharding and recomputation beside the splits of layers.

    Empty for the splits of one stage alone.
    """
    if not plan.is_staged:
        return ""
    strategy, count = plan.strategy, plan.schedule.micro_batches
    groups = plan.num_groups
    parts = []
    if groups > 1:
        sizes = sorted({end - first for first, end in strategy.groups})
        several = (*(f"{size:,}" for size in sizes[:-1]), format_items(sizes[-1], "GPU"))
        each = f"{groups} groups of {' or '.join(several)}"
        stages = len(strategy.stages)
        chunks = f", {stages // groups} stages each" if stages > groups else ""
        parts.append(f"a pipeline of {each}{chunks} ({SCHEDULES[plan.schedule.kind]})")
    samples = figures.sample_word(plan.input_shape)
    size = plan.global_batch_size // count
    if plan.shares:
        parts.append(f"{samples} {figures.shares_words(plan.shares)}")
    else:
        micro_batches = format_items(count, "micro-batch")
        parts.append(f"{micro_batches} of {format_items(size, samples.removesuffix('s'))}")
    stage = stage_of_zero(plan)
    if stage:
        sizes = sorted({layer.shard_size for layer in plan.layers.values() if layer.shard_size})
        over = f" over {' or '.join(map(str, sizes))} GPUs" if sizes else ""
        parts.append(f"ZeRO {stage}{over}")
    again = {name for stage in strategy.stages for rows in stage.recompute for name in rows}
    if again:
        attends = all(plan.layers[name].kind == "attention" for name in again)
        what = "attention" if attends else f"{len(again)} of {len(plan.layers)} layers"
        if plan.keep_products:
            what = "what is cheap of blocks"
        parts.append(f"{what} computed again for backward")
    if plan.offload:
        parts.append(f"{' and '.join(plan.offload)} in the memory of the hosts")
    return ", ".join(parts)


def stage_of_zero(plan: Plan) -> int:
    """The stage of ZeRO that cuts what a plan has cut over replicas."""
    cut = {what for layer in plan.layers.values() for what in layer.sharded}
    return 3 if "weights" in cut else 2 if "gradients" in cut else int(bool(cut))


def how(plan: Plan) -> str:
    """How a plan trains, in a few words."""
    return ", ".join(part for part in (training_sentence(plan), split_words(plan)) if part)


def searched(plan: Plan) -> str:
    """What a proof is about."""
    splits, choices = "all splits of the layers", plan.search.num_choices
    if not choices:
        return splits
    split = plan.search.num_candidates
    return f"{splits} and {_ways_beside(plan)}" if split else f"{choices:,} ways to train"


def _ways_beside(plan: Plan) -> str:
    """What was searched besides splits of the layers."""
    return f"{plan.search.num_choices:,} other ways to train"


def _all_of(plan: Plan) -> str:
    """What a bound holds for."""
    if not plan.search.num_choices:
        return "no split of the layers"
    if plan.search.num_candidates:
        return f"no split of the layers and none of {_ways_beside(plan)}"
    return f"none of the {searched(plan)} that were searched"


def space_sentence(plan: Plan) -> str:
    """How much was searched."""
    found = plan.search
    if found.status == "given":
        return found.solver
    if found.num_choices and not found.num_candidates:
        return (
            f"{found.num_choices:,} ways to train (stages, micro-batches, degrees, sharding, "
            f"recomputation), of which {found.num_costed:,} were simulated; by {found.solver}"
        )
    if not found.cap:
        return f"the usual strategies alone, {found.num_costed:,} of them; by {found.solver}"
    left_out = found.num_sensible - found.num_candidates
    text = f"{found.num_candidates:,} candidates of {len(plan.layers)} layers"
    if left_out > 0:
        text += f", out of {found.num_sensible:,} sensible ones (at most about {found.cap} a layer)"
    else:
        text += ", all sensible ones"
    text += f"; {found.num_costed:,} assignments costed" if found.num_costed > 1 else ""
    if found.num_choices:
        text += f"; {_ways_beside(plan)} (stages, micro-batches, sharding, recomputation)"
    return f"{text}; by {found.solver}"


def simulation_sentence(plan: Plan) -> str:
    """How the step was found, and what the best of the others take."""
    under = f"under the runtime {plan.runtime}"
    if size := gradient_buckets(plan):
        under += f" with gradient buckets of {format_bytes(size)}"
    if plan.search.status == "given" or not plan.finalists:
        return f"simulated {under}"
    others = [row.step_time_s for row in plan.finalists if not row.chosen]
    if not others:
        return f"simulated {under}; no other assignment was"
    were = "was" if len(others) == 1 else "were"
    return (
        f"simulated {under}, as {were} {format_items(len(others), 'other assignment')}, the "
        f"fastest of which takes {format_seconds(min(others))}"
    )
