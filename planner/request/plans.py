"""Plans as inputs: what one was made with, and how it splits the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace

from costmodels.cluster import Cluster
from costmodels.distribution import Distribution, limit_reason
from costmodels.errors import InputError
from costmodels.graph import Network
from planner.plan import Plan, digest
from planner.request.request import Request
from planner.request.setting import Setting, resolve


def made_as(plan: Plan, request: Request) -> Request:
    """The request, with all that it leaves open filled in as it was when the plan was made."""
    made_with: dict[str, object] = {
        "global_batch_size": plan.global_batch_size,
        "cluster": plan.cluster,
        **asdict(plan.training),
    }
    if request.cluster is None:
        # it may have been different from that of the cluster's devices
        made_with["memory"] = plan.memory_capacity_bytes
    return request.completed(**made_with)


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


def network_digest(model: Network, batch: int) -> str:
    """SHA-256 of a network and a global batch."""
    return digest([model, batch])


def cluster_digest(cluster: Cluster) -> str:
    """SHA-256 of a cluster."""
    return digest(
        {
            "name": cluster.name,
            "levels": [asdict(level) for level in cluster.levels],
            "host_level": cluster.host_level,
            "device": {
                key: dict(value) if isinstance(value, Mapping) else value
                for key in cluster.device.__slots__
                for value in [getattr(cluster.device, key)]
            },
        }
    )


def plan_setting(plan: Plan, request: Request) -> Setting:
    """The network and machine that a plan was made for, found again by name, or others given.

    Raises
    ------
    InputError
        When what has these names now is not what the plan was made for.
    """
    question = made_as(plan, replace(request, source=plan.model, gpus=request.gpus or plan.gpus))
    setting = resolve(question)
    shape = dict(plan.input_shape)
    if request.input_size is None and dict(setting.model.input_shape) != shape:
        size = shape.get("height", shape.get("sequence"))
        setting = resolve(replace(question, input_size=size))
    if network_digest(setting.model, plan.global_batch_size) != plan.hashes["network"]:
        raise InputError(
            f"the plan was made for another network than the built-in {plan.model} of that input "
            "size; give the network, and the plan with --strategy"
        )
    if (
        question.cluster == plan.cluster
        and request.memory is None
        and cluster_digest(setting.cluster) != plan.hashes["cluster"]
    ):
        raise InputError(
            f"the plan was made on another cluster than the built-in {plan.cluster}; give the "
            "cluster file with --cluster"
        )
    return setting
