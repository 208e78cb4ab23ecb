"""The functions that programs call: optimize, evaluate, scale."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.network import Network
from costmodels.compute import ComputeModel
from costmodels.distribution import Distribution, limit_reason
from costmodels.errors import InputError
from costmodels.graph import Graph, build_graph
from costmodels.graph import Network as Model
from costmodels.layer_cost import Machine
from costmodels.memory import keeps_tensor
from costmodels.training import Training
from costmodels.units import format_bytes, parse_bytes
from planner.costing import Costed, cost
from planner.errors import InfeasibleError
from planner.formulate import Formulation, formulate
from planner.models import load_network
from planner.optimize import Found, find
from planner.plan import Baseline, LayerPlan, Plan, SearchSummary, digest
from planner.strategies import STRATEGIES, Infeasible, strategy_distributions

DEFAULT_CLUSTER = "dgx-a100"
DEFAULT_BATCH_PER_GPU = 32
DEFAULT_CAP = 64
BUCKETS_MIB = (5, 25, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All inputs of a question, defaults filled in."""

    model: Model
    graph: Graph
    cluster: Cluster
    machine: Machine
    batch: int
    gpus: int
    defaults: tuple[str, ...]
    fallbacks: tuple[str, ...]


def _default_batch(model: Model, cluster: Cluster, gpus: int, activation_size: int) -> int:
    """32 samples a GPU, halved until the activations of data parallelism take half the memory."""
    graph = build_graph(model, 1)
    kept = sum(
        layer.output.size * keeps_tensor(graph, layer.name) * activation_size + layer.saved_bytes
        for layer in graph.layers.values()
    )
    batch = DEFAULT_BATCH_PER_GPU * gpus
    while batch > 1 and batch / gpus * kept > 0.5 * cluster.device.usable_memory:
        batch //= 2
    return batch


def resolve(
    model: str | Model,
    *,
    gpus: int,
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    input_size: int | None = None,
    memory: str | float | None = None,
    halo_overlap: bool = True,
    gradient_overlap: bool = True,
    all_reduce: str = "auto",
    bucket_bytes: float | None = None,
    memory_model: str = "liveness",
    tables: Sequence[str | os.PathLike[str]] = (),
) -> Setting:
    """Check the inputs of a question and fill in the defaults."""
    defaults = []
    if cluster is None:
        cluster = DEFAULT_CLUSTER
        defaults.append(f"cluster {DEFAULT_CLUSTER}, since none was given")
    if isinstance(cluster, str):
        cluster = load_cluster(cluster)
    if memory is not None:
        size = parse_bytes(memory) if isinstance(memory, str) else float(memory)
        cluster = replace(cluster, device=replace(cluster.device, memory=size))
    shape = cluster.shape(gpus)
    network = load_network(model, input_size) if isinstance(model, str) else model
    if precision is None:
        precision = cluster.default_precision
        defaults.append(f"precision {precision}, the usual one on {cluster.name}")
    if optimizer is None:
        optimizer = "sgd"
        defaults.append("optimizer sgd with momentum")
    training = Training(
        precision=precision,
        optimizer=optimizer,
        halo_overlap=halo_overlap,
        gradient_overlap=gradient_overlap,
        all_reduce=all_reduce,
        memory_model=memory_model,
        **({} if bucket_bytes is None else {"bucket_bytes": bucket_bytes}),
    )
    if global_batch_size is None:
        global_batch_size = _default_batch(network, cluster, gpus, training.activation_size)
        defaults.append(
            f"global batch of {global_batch_size} samples "
            f"({global_batch_size / gpus:g} a GPU)"
        )
    graph = build_graph(network, global_batch_size)
    machine = Machine(
        network=Network.of(cluster, shape),
        compute=_compute_model(cluster, precision, tables),
        training=training,
    )
    return Setting(
        model=network,
        graph=graph,
        cluster=cluster,
        machine=machine,
        batch=global_batch_size,
        gpus=gpus,
        defaults=tuple(defaults),
        fallbacks=(),
    )


def _compute_model(
    cluster: Cluster, precision: str, tables: Sequence[str | os.PathLike[str]]
) -> ComputeModel:
    if not tables:
        return ComputeModel(cluster.device, precision)
    from costmodels.compute import CostTable

    return ComputeModel(
        cluster.device, precision, tables=tuple(CostTable.load(path) for path in tables)
    )


def _baselines(setting: Setting) -> dict[str, Mapping[str, Distribution] | Infeasible]:
    shape, host = setting.machine.network.shape, setting.cluster.host_index
    return {
        name: strategy_distributions(setting.graph, name, shape, host) for name in STRATEGIES
    }


def optimize(
    model: str | Model,
    *,
    gpus: int,
    search: str = "auto",
    seed: int = 0,
    time_limit: float | None = None,
    cap: int = DEFAULT_CAP,
    full_space: bool = False,
    num_best: int = 4,
    **options: Any,
) -> Plan:
    """Find the fastest plan that fits in memory.

    Parameters
    ----------
    model
        A built-in network, the path of a network file, or a `costmodels.graph.Network`.
    gpus
        Number of GPUs. [items]
    search
        Solver: "auto" or a name in `search.SOLVERS`.
    seed
        Seed of solvers that need one.
    time_limit
        When to stop with the best plan so far. [s]
    cap
        Candidates that a layer may keep for the search. [items]
    full_space
        Also split levels across hosts over more than one dim besides the sample.
    num_best
        How many best distinct assignments are costed on the timeline. [items]
    options
        As of `resolve`: cluster, global_batch_size, precision, optimizer, input_size, memory, ...

    Raises
    ------
    InputError
        When an input cannot be used.
    InfeasibleError
        When no plan fits.
    """
    from search import SOLVERS

    setting = resolve(model, gpus=gpus, **options)
    if search not in SOLVERS:
        raise InputError(
            f"the search must be one of {', '.join(SOLVERS)} but is '{search}'; choose one"
        )
    usual = _baselines(setting)
    usable = [d for d in usual.values() if not isinstance(d, Infeasible)]
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=usable,
        cap=cap,
        full=full_space,
    )
    found = find(
        formulation,
        starts=[formulation.choices(d) for d in usable],
        method=search,
        num_best=num_best,
        seed=seed,
        time_limit=time_limit,
    )
    if found.best is None:
        raise _infeasible(setting, found)
    training, best = _tune_buckets(formulation, found.best, setting, options)
    machine = replace(setting.machine, training=training)
    formulation = replace(formulation, machine=machine)
    bound = min(found.lower_bound, best.step.total)
    gap = (best.step.total - bound) / best.step.total
    summary = SearchSummary(
        solver=found.solver,
        status="optimal" if gap <= 1e-6 else "feasible",
        lower_bound_s=bound,
        proven_optimal=gap <= 1e-6,
        gap=gap,
        num_sensible=formulation.num_sensible,
        num_candidates=formulation.num_candidates,
        cap=cap,
        num_costed=found.num_costed,
        stopped_by=found.stopped_by,
    )
    notes = list(found.notes)
    if formulation.num_candidates < formulation.num_sensible:
        notes.append(
            f"search space clipped: {formulation.num_candidates} of "
            f"{formulation.num_sensible} candidates searched, at most about {cap} a layer "
            "(--cap); bound and optimality hold for those"
        )
    if found.stopped_by:
        notes.append(f"search stopped early by {found.stopped_by}: best plan so far")
    return _plan(setting, formulation, best, summary, usual, notes)


def _tune_buckets(
    formulation: Formulation, best: Costed, setting: Setting, options: Mapping[str, Any]
) -> tuple[Training, Costed]:
    """The bucket size is outside the additive model: try the usual ones on the plan found."""
    training = setting.machine.training
    if options.get("bucket_bytes") is not None:
        return training, best
    chosen = training
    for size in BUCKETS_MIB:
        trial = replace(training, bucket_bytes=float(size * 2**20))
        costed = cost(formulation, best.choices, trial)
        if (
            costed.memory.total <= setting.cluster.device.memory
            and costed.step.total < best.step.total * (1 - 1e-9)
        ):
            chosen, best = trial, costed
    return chosen, best


def _infeasible(setting: Setting, found: Found) -> InfeasibleError:
    """Which layer, how many bytes short, and what would make it fit."""
    capacity = setting.cluster.device.memory
    tightest = found.tightest
    assert tightest is not None, "every search costs at least one assignment"
    missing = tightest.memory.total - capacity
    layer = max(
        tightest.sizes,
        key=lambda n: tightest.sizes[n].output
        + tightest.sizes[n].weights
        + tightest.sizes[n].gradients
        + tightest.sizes[n].state
        + tightest.sizes[n].saved,
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
    if setting.machine.training.activation_size == 4 and "bf16" in setting.cluster.device.peak_flops:
        advice.append("precision bf16")
    return InfeasibleError(
        f"no plan found fits in memory: the smallest needs {format_bytes(tightest.memory.total)} a "
        f"GPU, {format_bytes(missing)} more than the {format_bytes(capacity)} of "
        f"{setting.cluster.device.name}, mostly {largest}, with layer '{layer}' holding most "
        f"({tightest.memory.moment}); try {' or '.join(advice)}",
        missing_bytes=missing,
        layer=layer,
    )


def evaluate(
    model: str | Model,
    *,
    gpus: int,
    strategy: str | Plan = "data",
    degree: int | None = None,
    **options: Any,
) -> Plan:
    """Cost one given strategy.

    Parameters
    ----------
    model, gpus, options
        As of `optimize`.
    strategy
        A name in `planner.strategies.STRATEGIES`, the path of a plan file, or a plan.
    degree
        Ways of the dim that is not the sample in a hybrid; a host's devices by default. [ways]

    Raises
    ------
    InputError
        When an input cannot be used, or the strategy cannot be used with it.
    """
    if isinstance(strategy, str) and strategy not in STRATEGIES and (
        strategy.endswith(".json") or Path(strategy).exists()
    ):
        strategy = Plan.load(strategy)
    setting = resolve(model, gpus=gpus, **options)
    shape, host = setting.machine.network.shape, setting.cluster.host_index
    if isinstance(strategy, Plan):
        given = _from_plan(strategy, setting)
        name = "plan file"
    else:
        rows = strategy_distributions(setting.graph, strategy, shape, host, degree)
        if isinstance(rows, Infeasible):
            raise InputError(
                f"strategy {strategy} cannot be used for {setting.model.name} on {gpus} GPUs: "
                f"{rows.reason}; choose fewer GPUs, another degree or another strategy"
            )
        given, name = rows, strategy
    usual = _baselines(setting)
    usable = [d for d in usual.values() if not isinstance(d, Infeasible)]
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=[given, *usable],
        only_strategies=True,
        cap=10**9,
    )
    costed = cost(formulation, formulation.choices(given))
    summary = SearchSummary(
        solver=f"none: {name} was given",
        status="given",
        lower_bound_s=0.0,
        proven_optimal=False,
        gap=1.0,
        num_sensible=len(formulation.layers),
        num_candidates=len(formulation.layers),
        cap=1,
        num_costed=1,
    )
    return _plan(setting, formulation, costed, summary, usual, [])


def _from_plan(plan: Plan, setting: Setting) -> dict[str, Distribution]:
    names = [layer.name for layer in setting.graph.compute_layers]
    if set(names) != set(plan.layers):
        strange = sorted(set(names) ^ set(plan.layers))
        raise InputError(
            f"the plan is for {plan.model}, whose layers are not those of {setting.model.name} "
            f"('{strange[0]}' is in one only); give the network that it was made for"
        )
    shape = setting.machine.network.shape
    result = {}
    for layer in setting.graph.compute_layers:
        distribution = plan.layers[layer.name].distribution
        if tuple(distribution.shape) != tuple(shape):
            raise InputError(
                f"the plan is for {plan.gpus} GPUs as {'x'.join(map(str, plan.shape))}, but this "
                f"machine has {'x'.join(map(str, shape))}; give the same GPUs and cluster"
            )
        reason = limit_reason(layer, distribution)
        if reason is not None:
            raise InputError(f"the plan does not fit the network: {reason}; make it again")
        result[layer.name] = distribution
    return result


def scale(
    model: str | Model,
    *,
    gpus: Sequence[int],
    strong: bool = False,
    global_batch_size: int | None = None,
    **options: Any,
) -> Iterator[Plan | InfeasibleError]:
    """The best plan for each number of GPUs, one after the other.

    Parameters
    ----------
    model, options
        As of `optimize`.
    gpus
        Numbers of GPUs. [items]
    strong
        Keep the global batch, instead of the samples of each GPU.
    global_batch_size
        Samples of a step at the first number of GPUs. [items]
    """
    first = resolve(model, gpus=gpus[0], global_batch_size=global_batch_size, **_inputs(options))
    for count in gpus:
        batch = first.batch if strong else max(first.batch * count // gpus[0], 1)
        try:
            yield optimize(model, gpus=count, global_batch_size=batch, **options)
        except InfeasibleError as error:
            yield error


def _inputs(options: Mapping[str, Any]) -> dict[str, Any]:
    searching = {"search", "seed", "time_limit", "cap", "full_space", "num_best"}
    return {k: v for k, v in options.items() if k not in searching}


def _plan(
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
            shape=formulation.machine.network.shape,
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
    total = sum(sources.values())
    fallbacks = list(setting.fallbacks)
    for name, text in (
        ("derived_surface", "surfaces transferred from akin measurements"),
        ("roofline", "the roofline, for want of measurements"),
        ("interpolated", "interpolation in the table"),
    ):
        share = sources.get(name, 0.0) / total
        if share > 0.0005:
            fallbacks.append(f"{share:.1%} of the computation is estimated by {text}")
    return Plan(
        model=setting.model.name,
        input_shape=dict(setting.model.input_shape),
        global_batch_size=setting.batch,
        cluster=cluster.name,
        device=cluster.device.name,
        gpus=setting.gpus,
        shape=formulation.machine.network.shape,
        level_names=tuple(level.name for level in cluster.levels),
        host_level=cluster.host_level,
        training=training,
        hashes={
            "network": digest([setting.model, setting.batch]),
            "cluster": digest(msgspec.to_builtins(_plain(cluster))),
            "training": digest(training),
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
        fallbacks=tuple([*fallbacks, *notes]),
        defaults=setting.defaults,
    )


def _plain(cluster: Cluster) -> dict[str, Any]:
    """A cluster as plain data, for its hash."""
    return {
        "name": cluster.name,
        "levels": [asdict(level) for level in cluster.levels],
        "host_level": cluster.host_level,
        "device": {
            key: dict(value) if isinstance(value, Mapping) else value
            for key in cluster.device.__slots__
            for value in [getattr(cluster.device, key)]
        },
    }
