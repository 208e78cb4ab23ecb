"""Plans of one stage whose layers are split one by one, applied to any module of such layers."""

from __future__ import annotations

from typing import Any

from torch import nn

from costmodels.errors import InputError
from costmodels.graph import Network, build_graph
from planner.plan import Plan
from planner.plan.sharding import known_sharding
from planner.torch.apply.convolution.module import ConvolutionModule, LossFunction
from planner.torch.source import traced_source


def apply_convolution(
    plan: Plan, model: nn.Module, *, inputs: object = None, loss: LossFunction | None = None
) -> ConvolutionModule:
    """The module as a plan of one stage trains it.

    Parameters
    ----------
    plan, model, inputs, loss
        As of `planner.torch.apply.apply`.
    """
    sharding = known_sharding(plan.sharding)
    traced = traced_source(model, inputs or _inputs_of(plan, model))
    _check_same(plan, traced.network)
    module = ConvolutionModule(model, traced, sharding, plan.global_batch_size, loss)
    module.plan = plan
    return module


def _inputs_of(plan: Plan, model: nn.Module) -> Any:
    """A batch of the plan, without numbers."""
    import torch

    first = next(iter(model.parameters()), torch.empty(0))
    shape = (plan.global_batch_size, *plan.input_shape.values())
    return torch.empty(shape, dtype=first.dtype, device="meta")


def _check_same(plan: Plan, network: Network) -> None:
    """Refuse a module whose layers are not those of the plan; the first other one is named."""
    said = known_sharding(plan.sharding).layers
    graph = build_graph(network, plan.global_batch_size)
    found = {layer.name: layer for layer in graph.compute_layers}
    for name in (*said, *found):
        where = f"the plan is for {plan.model}, and its layer '{name}'"
        advice = "plan for this module"
        if name not in found or name not in said:
            missing = "the module" if name not in found else "the plan"
            raise InputError(f"{where} must be in both but is not in {missing}; {advice}")
        if found[name].kind != plan.layers[name].kind:
            raise InputError(
                f"{where} must be of kind {plan.layers[name].kind} but is of {found[name].kind} "
                f"in the module; {advice}"
            )
        shapes = (
            tuple(tensor.shape for tensor in said[name].tensors if tensor.name == "output"),
            (tuple(axis.extent for axis in found[name].output.axes),),
        )
        if shapes[0] != shapes[1]:
            raise InputError(
                f"{where} must write {list(shapes[0][0])} but writes {list(shapes[1][0])} in the "
                f"module; {advice}"
            )
