"""Put a costed assignment into a plan, with what it costs by cause and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from costmodels.distribution import Distribution, devices_at_work
from costmodels.step.training import Training
from costmodels.step.utilisation import model_flops
from costmodels.units import format_bytes
from planner.notes import AnyNote, words
from planner.plan import (
    Baseline,
    LayerPlan,
    Plan,
    Recost,
    SearchSummary,
    cluster_digest,
    digest,
    network_digest,
    tables_digest,
)
from planner.planning.prepare import UsualStrategies
from planner.planning.space.costing import Costed, cost
from planner.planning.space.formulate import Formulation
from planner.request.plans import carried_for
from planner.request.setting import Setting
from planner.request.usual_strategies import Infeasible
from planner.simulation.notes import estimate_notes
from search.problem.deadline import Deadline
from search.problem.notes import Note

# Above this part of the memory a plan says that fragmentation is not modelled: PyTorch's allocator
# may well lose the rest of it. An assumption.
NEARLY_FULL = 0.9


def assemble_plan(
    setting: Setting,
    formulation: Formulation,
    costed: Costed,
    summary: SearchSummary,
    *,
    usual: UsualStrategies,
    notes: Sequence[AnyNote] = (),
    simulated: tuple[Recost, ...] = (),
    met: Mapping[tuple[int, ...], Costed] | None = None,
    starts: Sequence[tuple[int, ...]] = (),
    simulated_usual: Mapping[tuple[int, ...], float] | None = None,
    deadline: Deadline | None = None,
) -> Plan:
    """A plan from an assignment.

    Parameters
    ----------
    setting
        The question.
    formulation
        The network on the machine, with the options of the step that were decided on.
    costed
        The assignment.
    summary
        How it was found.
    usual
        The usual strategies, which must be among the candidates.
    notes
        What is worth knowing of how it was found.
    simulated
        The best assignments, simulated.
    met
        Assignments that are costed already, by their choices.
    starts
        The usual strategies that can be used as assignments, in their order, where known.
    simulated_usual
        Their steps as simulated, by their choices. [s]
    deadline
        After which no further usual strategy is costed.
    """
    cluster, training = setting.cluster, formulation.machine.training
    usable = (name for name, rows in usual.items() if not isinstance(rows, Infeasible))
    choices = dict(zip(usable, starts, strict=False))
    known = {name: (met or {}).get(start) for name, start in choices.items()}
    steps = {name: (simulated_usual or {}).get(start) for name, start in choices.items()}
    baselines = tuple(
        replace(
            _baseline(formulation, name, rows, known.get(name), deadline),
            simulated_s=steps.get(name),
        )
        for name, rows in usual.items()
    )
    if not all(row.costed for row in baselines):
        notes = (*notes, Note.of("no-time-for-baselines"))
    remarks: tuple[AnyNote, ...] = (
        *_idle_notes(setting, formulation, costed),
        *estimate_notes(costed.sources, formulation.machine),
        *_memory_notes(formulation, costed),
        *notes,
    )
    return Plan(
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
        hashes=_hashes(setting, training),
        step_time_s=costed.step.total,
        breakdown_s=_breakdown(costed),
        memory_bytes=dict(costed.memory.holders),
        memory_moment=costed.memory.moment,
        memory_capacity_bytes=cluster.device.memory,
        communication_bytes=costed.communication_bytes,
        search=summary,
        layers=_layer_plans(formulation, costed),
        baselines=baselines,
        compute_sources_s=dict(costed.sources),
        provenance=dict(formulation.machine.compute.describe()),
        fallbacks=tuple(map(words, remarks)),
        defaults=setting.defaults,
        simulated=simulated,
        carried=carried_for(setting),
        model_flops=model_flops(setting.graph),
        device_peak_flops=cluster.device.peak_flops[training.precision],
    )


def _hashes(setting: Setting, training: Training) -> dict[str, str]:
    """SHA-256 of each input."""
    return {
        "network": network_digest(setting.model, setting.batch),
        "cluster": cluster_digest(setting.cluster),
        "training": digest(training),
        "tables": tables_digest([table.text for table in setting.tables]),
    }


def _breakdown(costed: Costed) -> dict[str, float]:
    """The step by cause. [s]"""
    return {
        "compute": costed.total("forward") + costed.total("backward"),
        "update": costed.total("update"),
        "halo": costed.total("halo"),
        "reduction": costed.total("reduction"),
        "shuffle": costed.total("shuffle"),
        "gradient_exposed": costed.step.exposed,
        "gradient_hidden": costed.step.hidden,
    }


def _layer_plans(formulation: Formulation, costed: Costed) -> dict[str, LayerPlan]:
    """Every layer in the order of the forward pass."""
    distributions = formulation.distributions(costed.choices)
    plans = {}
    for layer in formulation.layers:
        times, sizes = costed.layers[layer.name], costed.sizes[layer.name]
        plans[layer.name] = LayerPlan(
            name=layer.name,
            kind=layer.kind,
            degrees=dict(distributions[layer.name].degrees),
            shape=formulation.machine.topology.shape,
            **{f"{key}_s": value for key, value in asdict(times).items()},
            weights_bytes=sizes.weights,
            gradients_bytes=sizes.gradients,
            state_bytes=sizes.state,
            output_bytes=sizes.output,
            saved_bytes=sizes.saved,
        )
    return plans


def _baseline(
    formulation: Formulation,
    name: str,
    rows: Mapping[str, Distribution] | Infeasible,
    costed: Costed | None,
    deadline: Deadline | None,
) -> Baseline:
    """What a usual strategy costs, or why it cannot be used.

    Parameters
    ----------
    formulation
        The network on the machine.
    name
        The strategy.
    rows
        How it splits every layer, or why it cannot.
    costed
        What it costs, if that is known already.
    deadline
        After which it is not costed.
    """
    if isinstance(rows, Infeasible):
        return Baseline(
            name=name, step_time_s=None, peak_memory_bytes=None, fits=False, reason=rows.reason
        )
    if costed is None:
        if deadline is not None and deadline.passed:
            return Baseline(
                name=name,
                step_time_s=None,
                peak_memory_bytes=None,
                fits=False,
                reason="the time limit left no time",
                costed=False,
            )
        costed = cost(formulation, formulation.choices(rows))
    short = costed.memory.total - formulation.cluster.device.memory
    return Baseline(
        name=name,
        step_time_s=costed.step.total,
        peak_memory_bytes=costed.memory.total,
        fits=short <= 0,
        reason=f"{format_bytes(short)} over the memory" if short > 0 else "",
    )


def _idle_notes(setting: Setting, formulation: Formulation, costed: Costed) -> tuple[Note, ...]:
    """Whether some devices have no work of their own."""
    enough = devices_at_work(formulation.distributions(costed.choices).values())
    idle = setting.gpus - enough
    return (
        (Note.of("gpus-without-work", idle=idle, gpus=setting.gpus, enough=enough),) if idle else ()
    )


def _memory_notes(formulation: Formulation, costed: Costed) -> tuple[Note, ...]:
    """Whether the plan fits by so little that it may not fit."""
    part = costed.memory.total / formulation.cluster.device.memory
    return (Note.of("memory-nearly-full", part=part),) if NEARLY_FULL < part <= 1.0 else ()
