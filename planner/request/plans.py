"""Plans as inputs: what one was made with, in what a use of it differs, how it splits layers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import Struct, structs

from costmodels.cluster import Cluster, list_clusters, load_cluster
from costmodels.compute import CostTable
from costmodels.distribution import Distribution, limit_reason
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.notes import Note
from costmodels.simulation import Runtime, load_runtime
from costmodels.simulation.runtime_files import built_in_runtimes
from costmodels.units import format_bytes
from planner.models import BUILT_IN, build, resized
from planner.plan import (
    Carried,
    CarriedTable,
    Plan,
    cluster_digest,
    network_digest,
    tables_digest,
)
from planner.request.request import Request
from planner.request.setting import Setting, find_cluster, find_network, resolve

# What is said where an input of a plan is not found again: it is neither carried nor built in.
_UNASKED = {
    "network": (
        "the plan was made for another network than the built-in {plan.model} of that input size; "
        "give the network, and the plan with --strategy"
    ),
    "cluster": (
        "the plan was made on another cluster than the built-in {plan.cluster}; give the cluster "
        "file with --cluster"
    ),
    "memory": (
        "the plan was made with another memory than the GPUs of {plan.cluster} have; give it with "
        "--memory"
    ),
    "tables": (
        "the plan was made with tables of measured times that it does not carry; give them with "
        "--table"
    ),
}


class Difference(Struct, frozen=True, kw_only=True):
    """An input of a plan that is another where the plan is used.

    Parameters
    ----------
    what
        "network", "global batch", "cluster", "tables", or an option of the step.
    then, now
        What it was when the plan was made, and what it is.
    """

    what: str
    then: str
    now: str


def carried_for(setting: Setting) -> Carried:
    """What a plan for a setting must carry: all that is not found again by its name."""
    model, cluster = setting.model, setting.cluster
    return Carried(
        network=None if _built_in_network(model) == model else model,
        cluster=None
        if _built_in_cluster(cluster.name, cluster.device.memory) == cluster
        else cluster,
        runtime=_carried_runtime(setting.asked_runtime),
        tables=tuple(CarriedTable(name=table.name, text=table.text) for table in setting.tables),
    )


def _carried_runtime(runtime: Runtime | None) -> dict[str, object] | None:
    """What a runtime that is not built in says, None for others."""
    if runtime is None or built_in_runtimes().get(runtime.name) == runtime:
        return None
    values = {f.name: (getattr(runtime, f.name), f.default) for f in structs.fields(Runtime)}
    return {name: value for name, (value, usual) in values.items() if value != usual}


def made_under(plan: Plan) -> Runtime:
    """The runtime that a plan was made for.

    Raises
    ------
    InputError
        When it is neither carried nor built in.
    """
    if plan.carried.runtime is None:
        return load_runtime(plan.runtime)
    try:
        return msgspec.convert(dict(plan.carried.runtime), Runtime)
    except msgspec.ValidationError as error:
        raise InputError(
            f"the plan for {plan.model} carries no valid runtime ({error}); make it again"
        ) from None


def _built_in_network(model: Network) -> Network | None:
    """The built-in network of the name and input size of another one."""
    if model.name not in BUILT_IN:
        return None
    shape = model.input_shape
    try:
        return build(model.name, shape.get("height", shape.get("sequence")))
    except InputError:
        return None


def _built_in_cluster(name: str, memory: float) -> Cluster | None:
    """The built-in cluster of a name, whose devices have some memory. [B]"""
    if name not in list_clusters():
        return None
    cluster = load_cluster(name)
    try:
        return cluster.with_memory(memory)
    except InputError:
        return None


def made_as(plan: Plan, request: Request) -> Request:
    """The request, with all that it leaves open filled in as it was when the plan was made.

    Raises
    ------
    InputError
        When the cluster of the plan is not built in and not carried.
    """
    carried = plan.carried
    training = structs.asdict(plan.training)
    if request.execution not in (None, plan.training.execution) or request.runtime is not None:
        del training["launch_time"]  # that of another execution or runtime
    made_with: dict[str, object] = {
        "global_batch_size": plan.global_batch_size,
        "gpus": plan.gpus,
        **({"runtime": made_under(plan)} if request.servers is None else {}),
        # what only a runtime decides is no input
        **{k: v for k, v in training.items() if hasattr(request, k)},
    }
    if request.cluster is None:
        if carried.cluster is None and plan.cluster not in list_clusters():
            raise InputError(_UNASKED["cluster"].format(plan=plan))
        made_with["cluster"] = carried.cluster or plan.cluster
        # it may have been different from that of the cluster's devices; those of several groups
        # are carried as they were
        if carried.cluster is None or not carried.cluster.groups:
            made_with["memory"] = plan.memory_capacity_bytes
    else:
        request = replace(request, cluster=find_cluster(request.cluster))
    # what was measured on one kind of device says nothing of another one
    same_device = (
        request.cluster is None or find_cluster(request.cluster).device.name == plan.device
    )
    if not request.tables and same_device:
        tables = tuple(CostTable.of_text(table.text, table.name) for table in carried.tables)
        request = replace(request, tables=tables)
    return request.completed(**made_with)


def differs_from(plan: Plan, setting: Setting) -> tuple[Difference, ...]:
    """In what a setting differs from that which a plan was made for.

    GPUs and layers are not among it: a plan cannot be used for others at all.
    """
    cluster, training = setting.cluster, setting.machine.training
    found = []
    if network_digest(setting.model, plan.global_batch_size) != plan.hashes.get("network"):
        then, now = (
            f"{name} of {' x '.join(map(str, shape.values()))}"
            for name, shape in (
                (plan.model, plan.input_shape),
                (setting.model.name, setting.model.input_shape),
            )
        )
        found.append(Difference(what="network", then=then, now=now))
    if setting.batch != plan.global_batch_size:
        then, now = f"{plan.global_batch_size:,}", f"{setting.batch:,}"
        found.append(Difference(what="global batch", then=then, now=now))
    if cluster_digest(cluster) != plan.hashes.get("cluster"):
        found.append(_cluster_difference(plan, cluster))
    if tables_digest([table.text for table in setting.tables]) != plan.hashes.get("tables"):
        then, now = (
            ", ".join(table.name for table in tables) or "none"
            for tables in (plan.carried.tables, setting.tables)
        )
        texts = [sorted(one.text for one in each) for each in (plan.carried.tables, setting.tables)]
        if then == now and len(setting.tables) > 1:
            now = "in another order" if texts[0] == texts[1] else "others of those names"
        found.append(Difference(what="tables", then=then, now=now))
    was, is_now = structs.asdict(plan.training), structs.asdict(training)
    for name, value in was.items():
        if is_now[name] != value:
            option = name.replace("_", " ")
            found.append(Difference(what=option, then=str(value), now=str(is_now[name])))
    return tuple(found)


def _cluster_difference(plan: Plan, cluster: Cluster) -> Difference:
    """The cluster, or only the memory of its devices."""
    memory = plan.memory_capacity_bytes
    with suppress(InputError):  # less than what is reserved on the devices of this one
        as_then = cluster.with_memory(memory)
        if cluster_digest(as_then) == plan.hashes.get("cluster"):
            then, now = format_bytes(memory), format_bytes(cluster.device.memory)
            return Difference(what="memory", then=then, now=now)
    return Difference(what="cluster", then=plan.cluster, now=cluster.name)


def use_notes(
    plan: Plan, setting: Setting, request: Request, *, own_network: bool
) -> tuple[Note, ...]:
    """What is worth saying of the use of a plan for a setting: in what they differ.

    Parameters
    ----------
    plan
        The plan.
    setting
        What it is used for.
    request
        What was asked for.
    own_network
        Whether the network should be that of the plan, since no other one was given.

    Raises
    ------
    InputError
        When something differs that nobody asked to be another one.
    """
    differences = differs_from(plan, setting)
    asked_for = {
        "network": not own_network,
        "cluster": request.cluster is not None,
        "memory": request.memory is not None or request.cluster is not None,
        "tables": bool(request.tables) or request.cluster is not None,
    }
    for one in differences:
        if not asked_for.get(one.what, True):
            raise InputError(_UNASKED[one.what].format(plan=plan))
    texts = [
        f"{one.what} {one.then}, here {one.now if one.now != one.then else 'another of that name'}"
        for one in differences
    ]
    return (Note.of("plan-differs", inputs="; ".join(texts)),) if texts else ()


def plan_setting(plan: Plan, request: Request) -> tuple[Setting, tuple[Note, ...]]:
    """The network and machine of a plan, and in what those that are asked for differ from them.

    Raises
    ------
    InputError
        When the plan does not carry them, and what has their names is something else.
    """
    carried = plan.carried.network
    if carried is None and plan.model not in BUILT_IN:
        raise InputError(_UNASKED["network"].format(plan=plan))
    source = plan.model if carried is None else resized(carried, request.input_size)
    question = made_as(plan, replace(request, source=source))
    setting = resolve(question)
    shape = dict(plan.input_shape)
    if request.input_size is None and dict(setting.model.input_shape) != shape:
        size = shape.get("height", shape.get("sequence"))
        setting = resolve(replace(question, input_size=size))
    return setting, use_notes(plan, setting, request, own_network=True)


def strategy_setting(plan: Plan, request: Request) -> tuple[Setting, tuple[Note, ...]]:
    """The setting of a request that uses a plan as its strategy, and in what it differs.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    setting = resolve(made_as(plan, _at_work(plan, _sized_as(plan, request))))
    return setting, use_notes(plan, setting, request, own_network=False)


def _sized_as(plan: Plan, request: Request) -> Request:
    """The request at the input size, vocabulary and capacity of the plan, if of its network."""
    shape, carried = plan.input_shape, plan.carried.network
    layers = () if carried is None else carried.layers
    rows = (spec.options["rows"] for spec in layers if spec.kind == "embedding")
    capacities = (spec.options.get("capacity") for spec in layers if spec.kind == "dispatch")
    as_then: dict[str, Any] = {
        "input_size": shape.get("height", shape.get("sequence")),
        "vocab_padding": max(rows, default=None),
        "expert_capacity": next(capacities, None),
    }
    with suppress(InputError):  # another network, which need not have that size
        network = find_network(replace(request, **as_then))
        if network_digest(network, plan.global_batch_size) == plan.hashes.get("network"):
            sized = request.completed(**as_then)
            named = isinstance(request.source, str) and request.source in BUILT_IN
            if named or any(getattr(sized, name) != value for name, value in as_then.items()):
                return sized
            return replace(sized, source=network)  # a file is read once
    return request


def _at_work(plan: Plan, request: Request) -> Request:
    """The request on what the plan gives work to, where it asks for all that the plan was of."""
    if not plan.idle_gpus:
        return request
    cluster, carried = request.cluster and find_cluster(request.cluster), plan.carried.cluster
    if cluster and cluster.groups and carried is not None:
        # of several groups a cluster keeps the names, of one it has none
        several = {group.name for group in carried.groups}
        names = [group.name for group in cluster.groups]
        some = [tuple(name for name in names if name in several)] if several else zip(names)
        parts = (cluster.alone(*one) for one in some if one)
        digest = plan.hashes.get("cluster")
        alone = next((one for one in parts if cluster_digest(one) == digest), cluster)
        request = replace(request, cluster=alone)
    asked = plan.gpus + plan.idle_gpus
    return replace(request, gpus=plan.gpus) if request.gpus == asked else request


def plan_distributions(plan: Plan, setting: Setting) -> dict[str, Distribution]:
    """How a plan splits the layers of the network and machine of a setting.

    Raises
    ------
    InputError
        When it is for others.
    """
    names = [layer.name for layer in setting.graph.compute_layers]
    if set(names) != set(plan.layers):
        strange = sorted(set(names) ^ set(plan.layers))
        raise InputError(
            f"the plan is for {plan.model}, whose layers are not those of {setting.model.name} "
            f"('{strange[0]}' is in one only); give the network that it was made for"
        )
    shape = setting.machine.topology.shape
    result = {}
    for layer in setting.graph.compute_layers:
        distribution = plan.layers[layer.name].distribution
        if tuple(plan.shape) != tuple(shape):
            raise InputError(
                f"the plan is for {plan.gpus} GPUs as {'x'.join(map(str, plan.shape))}, but this "
                f"machine has {'x'.join(map(str, shape))}; give the same GPUs and cluster"
            )
        reason = limit_reason(layer, distribution)
        if reason is not None:
            raise InputError(f"the plan does not fit the network: {reason}; make it again")
        result[layer.name] = distribution
    return result
