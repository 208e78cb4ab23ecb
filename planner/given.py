"""Plans as inputs: what one was made with, and how it splits the layers of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from costmodels.distribution import Distribution, limit_reason
from costmodels.errors import InputError
from planner.plan import Plan
from planner.setting import Setting


def options_of(plan: Plan, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the plan was made with, so that costing it again gives the same, or what is given.

    Parameters
    ----------
    plan
        The plan.
    given
        Options as of `planner.setting.resolve`; those of None are not given.
    """
    options = {key: value for key, value in given.items() if value is not None}
    made_with = {
        "global_batch_size": plan.global_batch_size,
        "cluster": plan.cluster,
        **asdict(plan.training),
    }
    if "cluster" not in options:
        # it may have been another than that of the cluster's devices
        made_with["memory"] = plan.memory_capacity_bytes
    return {**made_with, **options}


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
