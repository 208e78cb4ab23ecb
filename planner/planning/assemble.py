"""Put a costed assignment into a plan, with what it costs by cause and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from costmodels.distribution import Distribution, devices_at_work
from costmodels.step.training import Training
from costmodels.step.utilisation import model_flops
from costmodels.strategy import Stage, Strategy
from costmodels.units import format_bytes
from planner.notes import NO_TIME, AnyNote, words
from planner.plan import (
    Baseline,
    Finalist,
    LayerPlan,
    Plan,
    SearchSummary,
    Sharding,
    cluster_digest,
    digest,
    network_digest,
    shard_plan,
    tables_digest,
)
from planner.plan.edited import with_splits_digest
from planner.planning.decision.simulator import PlannedStep, PlanSimulator, SimulatedChoices
from planner.planning.prepare import UsualStrategies
from planner.planning.space.costing import Costed
from planner.planning.space.formulate import Formulation
from planner.request.plans import carried_for
from planner.request.setting import Setting
from planner.request.usual_strategies import Infeasible
from planner.simulation.notes import estimate_notes
from planner.simulation.run import ASSUMED
from search.problem.deadline import Deadline
from search.problem.notes import Note

# Above this part of the memory a plan says that fragmentation is not modelled: PyTorch's allocator
# may well lose the rest of it. An assumption.
NEARLY_FULL = 0.9


def assemble_plan(
    setting: Setting,
    simulator: PlanSimulator,
    costed: Costed,
    step: PlannedStep,
    summary: SearchSummary,
    *,
    usual: UsualStrategies,
    notes: Sequence[AnyNote] = (),
    finalists: tuple[Finalist, ...] = (),
    simulated_usual: Mapping[str, SimulatedChoices] | None = None,
    deadline: Deadline | None = None,
) -> Plan:
    """A plan from an assignment.

    Parameters
    ----------
    setting
        The question.
    simulator
        Of the network on the machine, with the options of the step that were decided on.
    costed
        The assignment.
    step
        Its step as simulated.
    summary
        How it was found.
    usual
        The usual strategies, which must be among the candidates.
    notes
        What is worth knowing of how it was found.
    finalists
        The best assignments, simulated.
    simulated_usual
        The usual strategies that were simulated already, by their names.
    deadline
        After which no further usual strategy is simulated.
    """
    formulation = simulator.formulation
    cluster, training = setting.cluster, formulation.machine.training
    known = simulated_usual or {}
    baselines = tuple(
        _baseline(simulator, name, rows, known.get(name), deadline) for name, rows in usual.items()
    )
    if not all(row.costed for row in baselines):
        notes = (*notes, Note.of("no-time-for-baselines"))
    layers = _layer_plans(formulation, costed, step)
    remarks: tuple[AnyNote, ...] = (
        *opaque_notes(layers),
        *_idle_notes(setting, formulation, costed),
        *((ASSUMED,) if setting.gpus > 1 else ()),
        *estimate_notes(costed.sources, formulation.machine),
        *memory_notes(step.memory.total / cluster.device.memory),
        *notes,
    )
    plan = Plan(
        model=setting.model.name,
        input_shape=dict(setting.model.input_shape),
        global_batch_size=setting.batch,
        cluster=cluster.name,
        device=cluster.device.name,
        gpus=setting.gpus,
        shape=formulation.machine.topology.shape,
        level_names=tuple(level.name for level in cluster.levels),
        host_level=cluster.host_level,
        training=training,
        hashes=input_hashes(setting, training),
        runtime=simulator.runtime.name,
        step_time_s=step.seconds,
        breakdown_s=_causes(step),
        hidden_s=dict(step.breakdown.hidden),
        memory_bytes=dict(step.memory.holders),
        memory_moment=step.memory.moment,
        memory_capacity_bytes=cluster.device.memory,
        communication_bytes=step.received,
        search=summary,
        layers=layers,
        baselines=baselines,
        compute_sources_s=dict(costed.sources),
        provenance=dict(formulation.machine.compute.describe()),
        fallbacks=tuple(map(words, remarks)),
        defaults=setting.defaults,
        finalists=finalists,
        carried=carried_for(setting),
        model_flops=model_flops(setting.graph),
        device_peak_flops=cluster.mean_peak_flops(training.precision),
        sharding=_plan_sharding(formulation, costed, [level.name for level in cluster.levels]),
    )
    return with_splits_digest(plan)


def _plan_sharding(
    formulation: Formulation, costed: Costed, level_names: Sequence[str]
) -> Sharding:
    """Where every tensor of an assignment lies.

    Parameters
    ----------
    formulation, costed
        The network on the machine, and the assignment.
    level_names
        Levels of the machine, from the inside out.
    """
    distributions = formulation.distributions(costed.choices)
    whole = Stage(
        layers=tuple(distributions), first_device=0, shape=formulation.machine.topology.shape
    )
    strategy = Strategy(stages=(whole,), distributions=distributions)
    return shard_plan(formulation.graph, strategy, level_names)


def input_hashes(setting: Setting, training: Training) -> dict[str, str]:
    """SHA-256 of each input."""
    return {
        "network": network_digest(setting.model, setting.batch),
        "cluster": cluster_digest(setting.cluster),
        "training": digest(training),
        "tables": tables_digest([table.text for table in setting.tables]),
    }


def _causes(step: PlannedStep) -> dict[str, float]:
    """The step by cause. [s]"""
    causes = dict(step.breakdown.causes)
    # whether it is for tasks of other devices or for slower ones
    causes["waiting"] = causes.pop("idle") + step.waiting
    return causes


def _layer_plans(
    formulation: Formulation, costed: Costed, step: PlannedStep
) -> dict[str, LayerPlan]:
    """Every layer in the order of the forward pass.

    Parameters
    ----------
    formulation
        The network on the machine.
    costed, step
        The assignment, and its step as simulated.
    """
    distributions = formulation.distributions(costed.choices)
    plans = {}
    for layer in formulation.layers:
        spent, sizes = step.breakdown.layers.get(layer.name, {}), costed.sizes[layer.name]
        plans[layer.name] = LayerPlan(
            name=layer.name,
            kind=layer.kind,
            degrees=dict(distributions[layer.name].degrees),
            shape=formulation.machine.topology.shape,
            forward_s=spent.get("forward", 0.0),
            backward_s=spent.get("backward", 0.0),
            halo_s=spent.get("halo", 0.0),
            reduction_s=spent.get("reduction", 0.0),
            shuffle_s=spent.get("shuffle", 0.0),
            # one task updates the weights of all layers
            update_s=costed.layers[layer.name].update,
            gradient_s=step.gradients[layer.name],
            weights_bytes=sizes.weights,
            gradients_bytes=sizes.gradients,
            state_bytes=sizes.state,
            output_bytes=sizes.output,
            saved_bytes=sizes.saved,
        )
    return plans


def _baseline(
    simulator: PlanSimulator,
    name: str,
    rows: Mapping[str, Distribution] | Infeasible,
    trial: SimulatedChoices | None,
    deadline: Deadline | None,
) -> Baseline:
    """What a usual strategy costs, or why it cannot be used.

    Parameters
    ----------
    simulator
        Of the network on the machine.
    name
        The strategy.
    rows
        How it splits every layer, or why it cannot.
    trial
        Its step, if that is known already.
    deadline
        After which it is not simulated.
    """
    reason, costed = "", True
    if isinstance(rows, Infeasible):
        reason = rows.reason
    elif trial is None and deadline is not None and deadline.passed:
        reason, costed = NO_TIME, False
    if reason:
        return Baseline(
            name=name,
            step_time_s=None,
            peak_memory_bytes=None,
            fits=False,
            reason=reason,
            costed=costed,
        )
    if trial is None:
        assert not isinstance(rows, Infeasible), "those have a reason"
        formulation = simulator.formulation
        bucket = formulation.machine.training.bucket_bytes
        trial = simulator.simulate(formulation.choices(rows), bucket)
    short = trial.peak_memory - simulator.formulation.cluster.device.memory
    return Baseline(
        name=name,
        step_time_s=trial.seconds,
        peak_memory_bytes=trial.peak_memory,
        fits=short <= 0,
        reason=f"{format_bytes(short)} over the memory" if short > 0 else "",
        bucket_bytes=trial.bucket_bytes,
    )


def _idle_notes(setting: Setting, formulation: Formulation, costed: Costed) -> tuple[Note, ...]:
    """Whether some devices have no work of their own."""
    enough = devices_at_work(formulation.distributions(costed.choices).values())
    idle = setting.gpus - enough
    return (
        (Note.of("gpus-without-work", idle=idle, gpus=setting.gpus, enough=enough),) if idle else ()
    )


def opaque_notes(layers: Mapping[str, LayerPlan]) -> tuple[Note, ...]:
    """Layers of which nothing is known but what they read and write, the longest first.

    Parameters
    ----------
    layers
        The layers of a plan.
    """
    spent = {name: layer.forward_s + layer.backward_s for name, layer in layers.items()}
    total = sum(spent.values()) or 1.0
    opaque = [name for name, layer in layers.items() if layer.kind == "opaque"]
    opaque.sort(key=lambda name: -spent[name])
    if not opaque:
        return ()
    shares = ", ".join(f"{name} {spent[name] / total:.1%}" for name in opaque)
    part = sum(spent[name] for name in opaque) / total
    return (Note.of("opaque-layers", part=part, layers=shares),)


def memory_notes(part: float) -> tuple[Note, ...]:
    """Whether the plan fits by so little that it may not fit.

    Parameters
    ----------
    part
        Its peak as a part of the memory.
    """
    return (Note.of("memory-nearly-full", part=part),) if NEARLY_FULL < part <= 1.0 else ()
