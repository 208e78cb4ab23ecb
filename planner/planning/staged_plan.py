"""A simulated strategy of stages as a plan, with what it costs by cause and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle

from costmodels.simulation import Queue, SimulatedStep, load_runtime
from costmodels.simulation.executor import TaskTimes
from costmodels.simulation.parts import Breakdown, beyond
from costmodels.step.utilisation import model_flops
from costmodels.strategy import MemoryConfig, Stage
from planner.notes import AnyNote, words
from planner.plan import (
    Baseline,
    Finalist,
    LayerPlan,
    Plan,
    SearchSummary,
    given_solver,
    shard_plan,
)
from planner.plan.edited import with_splits_digest
from planner.planning.assemble import input_hashes, memory_notes, opaque_notes
from planner.planning.staged import StagedStep
from planner.planning.usual import usual_trials
from planner.request.plans import carried_for
from planner.request.setting import DEFAULT_RUNTIME
from planner.simulation.notes import estimate_notes
from planner.simulation.run import ASSUMED
from search.problem.deadline import Deadline


def given_plan(
    found: StagedStep, name: str, notes: Sequence[AnyNote] = (), deadline: Deadline | None = None
) -> Plan:
    """A given strategy as a plan.

    Parameters
    ----------
    found
        The strategy, simulated.
    name
        What it is called.
    notes
        What is worth knowing of it.
    deadline
        After which no usual strategy is simulated.

    Raises
    ------
    InfeasibleError
        When the limit on memory is below what the framework reserves.
    """
    found.placed.setting.check_reserve()
    summary = SearchSummary(
        solver=given_solver(name),
        status="given",
        lower_bound_s=0.0,
        proven_optimal=False,
        gap=1.0,
        num_sensible=0,
        num_candidates=0,
        cap=0,
        num_costed=1,
    )
    usual = usual_trials(
        found.placed.setting, load_runtime(DEFAULT_RUNTIME), deadline or Deadline(None)
    )
    return plan_of_stages(
        found, summary, notes=notes, baselines=tuple(one.baseline for one in usual)
    )


def plan_of_stages(
    found: StagedStep,
    summary: SearchSummary,
    *,
    notes: Sequence[AnyNote] = (),
    baselines: tuple[Baseline, ...] = (),
    finalists: tuple[Finalist, ...] = (),
) -> Plan:
    """A plan from a simulated strategy.

    Parameters
    ----------
    found
        The strategy, simulated.
    summary
        How it was found.
    notes
        What is worth knowing of that.
    baselines
        The usual strategies.
    finalists
        The best strategies, simulated.
    """
    setting, strategy, step = found.placed.setting, found.placed.strategy, found.step
    cluster, machine = setting.cluster, setting.machine
    shown = step.roles.index(step.slowest)
    parts = [step.break_down(role) for role in range(len(step.roles))]
    slowest = parts[shown]
    causes = dict(slowest.causes)
    # whether it is for tasks of other devices or for slower ones
    causes["waiting"] = causes.pop("idle") + found.waiting + found.outside
    layers = _staged_layers(found, parts)
    remarks: tuple[AnyNote, ...] = (
        *opaque_notes(layers),
        *((ASSUMED,) if setting.gpus > 1 else ()),
        *estimate_notes(found.compiler.sources, machine),
        *memory_notes(found.peak_memory / found.capacity),
        *notes,
    )
    one_stage = len(strategy.stages) == 1 and not strategy.stages[0].recompute
    plan = Plan(
        model=setting.model.name,
        input_shape=dict(setting.model.input_shape),
        global_batch_size=setting.batch,
        cluster=cluster.name,
        device=cluster.device.name,
        gpus=setting.gpus,
        shape=machine.topology.shape,
        level_names=tuple(level.name for level in cluster.levels),
        host_level=cluster.host_level,
        training=machine.training,
        hashes=input_hashes(setting, machine.training),
        runtime=found.runtime.name,
        step_time_s=found.seconds,
        breakdown_s=causes,
        hidden_s=dict(slowest.hidden),
        memory_bytes=dict(step.peak.memory.holders),
        memory_moment=_peak_moment(step),
        memory_capacity_bytes=found.capacity,
        communication_bytes=max(role.received for role in step.roles),
        search=summary,
        layers=layers,
        baselines=baselines,
        compute_sources_s=dict(found.compiler.sources),
        provenance=dict(machine.compute.describe()),
        fallbacks=tuple(map(words, remarks)),
        defaults=setting.defaults,
        finalists=finalists,
        carried=carried_for(setting),
        model_flops=model_flops(setting.graph),
        device_peak_flops=cluster.mean_peak_flops(machine.training.precision),
        stages=() if one_stage else strategy.stages,
        schedule=strategy.schedule,
        gather_again=strategy.gather_again,
        ring_attention=strategy.ring_attention,
        keep_products=strategy.keep_products,
        offload=strategy.offload,
        shares=strategy.shares,
        sharding=shard_plan(found.placed.graph, strategy, [level.name for level in cluster.levels]),
    )
    return with_splits_digest(plan)


def _peak_moment(step: SimulatedStep) -> str:
    """When the peak is reached, and on which devices where not all do the same."""
    peak = step.peak
    return f"{peak.memory.moment} of {peak.name}" if len(step.roles) > 1 else peak.memory.moment


def _staged_layers(found: StagedStep, parts: Sequence[Breakdown]) -> dict[str, LayerPlan]:
    """Every layer in the order of the forward pass.

    Parameters
    ----------
    found
        The strategy, simulated.
    parts
        What each role spends the step on.
    """
    strategy = found.placed.strategy
    role_of = {group: role for role, group in enumerate(strategy.groups)}
    gradients = _gradients(found)
    plans = {}
    for stage in strategy.stages:
        spent = parts[role_of[stage.group]].layers
        for name in stage.layers:
            plans[name] = _layer_plan(
                found, stage, name, spent.get(name, {}), gradients.get(name, 0.0)
            )
    order = [layer.name for layer in found.placed.graph.compute_layers]
    return {name: plans[name] for name in order}


def _layer_plan(
    found: StagedStep, stage: Stage, name: str, spent: Mapping[str, float], gradient: float
) -> LayerPlan:
    """One layer.

    Parameters
    ----------
    found, stage, name
        The strategy, and the layer in its stage.
    spent, gradient
        Its times, and its part of the all-reduces. [s]
    """
    strategy = found.placed.strategy
    piece = found.compiler.view.pieces[name]
    config = strategy.memory.get(name, found.runtime.memory)
    ranks = min(math.prod(piece.gradient_group), config.shard_size or math.inf)
    sharded = _sharded(config) if piece.numbers and ranks > 1 else ()
    if not piece.parameters and "weights" not in sharded:
        sharded = ()  # what is not trained has nothing else
    cuts = {what: ranks if what in sharded else 1 for what in ("weights", "gradients", "state")}
    return LayerPlan(
        name=name,
        kind=found.placed.graph.layers[name].kind,
        degrees=dict(strategy.distributions[name].degrees),
        shape=stage.shape,
        forward_s=spent.get("forward", 0.0),
        backward_s=spent.get("backward", 0.0),
        halo_s=spent.get("halo", 0.0),
        reduction_s=spent.get("reduction", 0.0),
        shuffle_s=spent.get("shuffle", 0.0),
        update_s=piece.update / cuts["state"],
        gradient_s=gradient,
        weights_bytes=piece.weights / cuts["weights"],
        gradients_bytes=piece.gradients / cuts["gradients"],
        state_bytes=piece.state / cuts["state"],
        output_bytes=piece.output,
        saved_bytes=piece.saved,
        sharded=sharded,
        shard_size=config.shard_size if sharded else None,
    )


def _sharded(config: MemoryConfig) -> tuple[str, ...]:
    return tuple(what for what in ("weights", "gradients", "state") if getattr(config, what))


def _gradients(found: StagedStep) -> dict[str, float]:
    """Of the exchange of each gradient bucket what falls to each of its layers, by bytes. [s]"""
    gradients = _gradients_of_tasks(found, found.step.task_times)
    if found.step.told_from is None:
        return gradients
    less, times = found.step.told_from
    return beyond(_gradients_of_tasks(found, less.task_times), gradients, times)


def _gradients_of_tasks(found: StagedStep, times: TaskTimes) -> dict[str, float]:
    """As `_gradients`, of the tasks of a step that may have fewer micro-batches.

    Parameters
    ----------
    found, times
        The strategy, and when the tasks ran.
    """
    total: dict[str, float] = {}
    weights = found.compiler.weights
    buckets = {number: cycle(work.buckets) for number, work in enumerate(weights) if work.buckets}
    for task, start, end in zip(times.graph.tasks, times.starts, times.ends, strict=True):
        # of uneven shares all groups have the same buckets
        if task.queue != Queue.GRADIENT or (found.placed.strategy.shares and task.role):
            continue
        if task.kind in ("exchange", "send_recv"):
            total[task.name] = total.get(task.name, 0.0) + end - start
            continue
        bucket = next(buckets[task.stage])
        for name in bucket.layers:
            part = weights[task.stage].pieces[name].gradient_bytes / bucket.num_bytes
            total[name] = total.get(name, 0.0) + part * (end - start)
    return total
