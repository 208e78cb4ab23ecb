"""Put a costed assignment into a plan, or say why there is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from costmodels.distribution import Distribution
from costmodels.units import format_bytes
from planner.errors import InfeasibleError
from planner.plan import Baseline, LayerPlan, Plan, SearchSummary, digest
from planner.planning.costing import Costed, cost
from planner.planning.find import Found
from planner.planning.formulate import Formulation
from planner.request.plans import cluster_digest, network_digest
from planner.request.setting import Setting
from planner.request.usual_strategies import Infeasible
from planner.simulation.notes import estimate_notes


def assemble_plan(
    setting: Setting,
    formulation: Formulation,
    costed: Costed,
    summary: SearchSummary,
    usual: Mapping[str, Mapping[str, Distribution] | Infeasible],
    notes: Sequence[str],
) -> Plan:
    cluster, training = setting.cluster, formulation.machine.training
    rows = []
    for name, distributions in usual.items():
        if isinstance(distributions, Infeasible):
            row = Baseline(
                name=name,
                step_time_s=None,
                peak_memory_bytes=None,
                fits=False,
                reason=distributions.reason,
            )
        else:
            other = cost(formulation, formulation.choices(distributions))
            short = other.memory.total - cluster.device.memory
            row = Baseline(
                name=name,
                step_time_s=other.step.total,
                peak_memory_bytes=other.memory.total,
                fits=short <= 0,
                reason=f"{format_bytes(short)} over the memory" if short > 0 else "",
            )
        rows.append(row)
    layers = {}
    distributions = formulation.distributions(costed.choices)
    for layer in formulation.layers:
        times, sizes = costed.layers[layer.name], costed.sizes[layer.name]
        layers[layer.name] = LayerPlan(
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
    step = costed.step
    compute = costed.total("forward") + costed.total("backward")
    sources = dict(costed.sources)
    fallbacks = estimate_notes(sources, training)
    if 0.9 * cluster.device.memory < costed.memory.total <= cluster.device.memory:
        fallbacks.append(
            f"the peak is {costed.memory.total / cluster.device.memory:.0%} of the memory, and the "
            "fragmentation of the framework's allocator is not modelled: try it before use"
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
        hashes={
            "network": network_digest(setting.model, setting.batch),
            "cluster": cluster_digest(cluster),
            "training": digest(training),
            "tables": digest(setting.tables),
        },
        step_time_s=step.total,
        breakdown_s={
            "compute": compute,
            "update": costed.total("update"),
            "halo": costed.total("halo"),
            "reduction": costed.total("reduction"),
            "shuffle": costed.total("shuffle"),
            "gradient_exposed": step.exposed,
            "gradient_hidden": step.hidden,
        },
        memory_bytes=dict(costed.memory.holders),
        memory_moment=costed.memory.moment,
        memory_capacity_bytes=cluster.device.memory,
        communication_bytes=costed.communication_bytes,
        search=summary,
        layers=layers,
        baselines=tuple(rows),
        compute_sources_s=sources,
        provenance=dict(formulation.machine.compute.describe()),
        fallbacks=(*fallbacks, *notes),
        defaults=setting.defaults,
    )


def infeasible_error(setting: Setting, found: Found) -> InfeasibleError:
    """Which layer, how many bytes short, and what would make it fit."""
    capacity = setting.cluster.device.memory
    tightest = found.tightest
    assert tightest is not None, "every search costs at least one assignment"
    missing = tightest.memory.total - capacity
    layer = max(
        tightest.sizes,
        key=lambda n: (
            tightest.sizes[n].output
            + tightest.sizes[n].weights
            + tightest.sizes[n].gradients
            + tightest.sizes[n].state
            + tightest.sizes[n].saved
        ),
    )
    largest = max(
        (k for k in tightest.memory.holders if k != "reserved"),
        key=lambda k: tightest.memory.holders[k],
    )
    per_gpu = tightest.memory.total - tightest.memory.holders["reserved"]
    usable = setting.cluster.device.usable_memory
    advice = [f"devices with {format_bytes(tightest.memory.total)}"]
    shrinking = ("activations", "activation gradients", "workspace", "communication buffers")
    fixed = per_gpu - sum(tightest.memory.holders[k] for k in shrinking)
    if fixed < usable:
        batch = int(setting.batch * (usable - fixed) / (per_gpu - fixed))
        if 1 <= batch < setting.batch:
            advice.append(f"a global batch of about {batch} instead of {setting.batch}")
    gpus = setting.gpus * math.ceil(per_gpu / usable)
    if gpus <= setting.cluster.num_devices:
        advice.append(f"about {gpus} GPUs")
    if (
        setting.machine.training.activation_size == 4
        and "bf16" in setting.cluster.device.peak_flops
    ):
        advice.append("precision bf16")
    return InfeasibleError(
        f"no plan found fits in memory: the smallest needs {format_bytes(tightest.memory.total)} a "
        f"GPU, {format_bytes(missing)} more than the {format_bytes(capacity)} of "
        f"{setting.cluster.device.name}, mostly {largest}, with layer '{layer}' holding most "
        f"({tightest.memory.moment}); try {' or '.join(advice)}",
        missing_bytes=missing,
        layer=layer,
    )
