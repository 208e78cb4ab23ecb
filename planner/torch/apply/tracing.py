"""The operators of a module that a plan is applied to, and the layer that each is of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from msgspec import structs
from torch import nn

from costmodels.errors import InputError
from costmodels.graph import LayerSpec, Network
from costmodels.graph.network import INPUT_AXES
from planner.models.traced.values import Value
from planner.plan import Plan
from planner.torch.apply.in_place import leave_as_it_is
from planner.torch.ingest import network_of_module
from planner.torch.source import samples_of

if TYPE_CHECKING:
    from torch.fx import Node


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A module as operators.

    Parameters
    ----------
    nodes
        All operators in order, inputs first.
    parameters, buffers
        Names of weights and buffers by the name of their node: of a shared weight the first.
    owners
        The layer that each weight is counted at.
    constants
        Tensors that are written out in the module, by the name of their node.
    inputs
        Nodes of the tensors that the module is called with.
    others
        Other inputs and their values, such as switches.
    outputs
        What the module returns.
    rows, known
        Layers, and what each operator makes, as a view of what a layer writes.
    batch
        Samples of a micro-batch. [items]
    layers
        Those that an operator is of.
    frozen
        Weights that are not trained.
    """

    nodes: tuple[Node, ...]
    parameters: Mapping[str, str]
    owners: Mapping[str, str]
    buffers: Mapping[str, str]
    constants: Mapping[str, Any]
    inputs: tuple[Node, ...]
    others: Mapping[Node, Any]
    outputs: tuple[Node, ...]
    rows: tuple[LayerSpec, ...]
    known: Mapping[Node, object]
    batch: int
    layers: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()

    @cached_property
    def trained(self) -> frozenset[Node]:
        """Operators into which a gradient goes: a trained weight comes before them."""
        found: set[Node] = set()
        for node in self.nodes:
            own = self.parameters.get(node.name)
            if (own and own not in self.frozen) or any(n in found for n in node.all_input_nodes):
                found.add(node)
        return frozenset(found)

    @cached_property
    def halved(self) -> frozenset[str]:
        """Layers whose features are two halves side by side, which a gate reads, one by one."""
        rows = {row.name: row for row in self.rows}
        read = {row.inputs[0] for row in self.rows if row.kind == "glu"} & rows.keys()
        # the halves of experts are told by how these run
        sent = {row.name for row in self.rows if row.kind == "dispatch"}
        return frozenset(name for name in read if not sent & set(rows[name].inputs))

    def layer_of(self, node: Node) -> str:
        """The layer whose output a node is a view of, or a step on the way to; empty for none."""
        found = self.known.get(node)
        if isinstance(found, tuple):
            found = next((one for one in found if isinstance(one, Value)), None)
        return found.layer if isinstance(found, Value) else ""


def node_of(key: object) -> Node:
    """The operator whose result a key stands for."""
    found: Any = key
    while isinstance(found, tuple):
        found = found[0]
    node: Node = found
    return node


def traced(plan: Plan, model: nn.Module, inputs: object) -> Traced:
    """Trace a module at one micro-batch of a plan, and check that the plan is for it.

    Parameters
    ----------
    plan
        The plan.
    model
        The module.
    inputs
        Shapes or tensors, the first extent of which is the samples; None for those of the plan.

    Raises
    ------
    InputError
        When it cannot be traced, or the plan is for another module.
    """
    name = type(model).__name__
    batch = plan.global_batch_size // plan.schedule.micro_batches
    first = next(iter(model.parameters()), None)
    device = torch.device("cpu") if first is None else first.device
    samples = samples_of(planned_shapes(plan) if inputs is None else inputs, device, model)
    for one in samples:
        if isinstance(one.tensor, torch.Tensor):
            resized = one.tensor.new_zeros((batch, *one.tensor.shape[1:]))
            if first is not None and resized.is_floating_point():
                resized = resized.to(first.dtype)
            structs.force_setattr(one, "tensor", resized)
    states = [(each, each.training) for each in model.modules()]
    model.train()
    try:
        found = network_of_module(model, samples, name)
    finally:
        for each, state in states:
            each.training = state
    _check_layers(plan, found.network, name)
    program, known = found.program, found.known
    signature = program.graph_signature
    nodes = tuple(program.graph.nodes)
    leave_as_it_is(nodes, found.data)
    firsts = first_names(model)
    owners = {firsts[key]: layer for key, layer in reversed(list(found.owners.items()))}
    by_name = {node.name: node for node in nodes}
    lifted = {
        **signature.inputs_to_lifted_tensor_constants,
        **getattr(signature, "inputs_to_lifted_custom_objs", {}),
    }
    users = [by_name[one] for one in signature.user_inputs if one in by_name]
    tensors = tuple(n for n in users if isinstance(n.meta.get("val"), torch.Tensor))
    return Traced(
        nodes=tuple(node for node in nodes if node.op != "output"),
        parameters={key: firsts[one] for key, one in signature.inputs_to_parameters.items()},
        owners=owners,
        buffers=dict(signature.inputs_to_buffers),
        constants={key: program.constants[target] for key, target in lifted.items()},
        inputs=tensors,
        others={n: n.meta.get("val") for n in users if n not in tensors},
        outputs=tuple(by_name[str(one)] for one in signature.user_outputs if str(one) in by_name),
        rows=found.network.layers,
        frozen=frozenset(name for name, one in model.named_parameters() if not one.requires_grad),
        known=known,
        batch=batch,
        layers=frozenset(
            one.layer
            for value in known.values()
            for one in (value if isinstance(value, tuple) else (value,))
            if isinstance(one, Value)
        ),
    )


def planned_extents(plan: Plan) -> tuple[int, ...]:
    """Extents of a sample of the one input of a plan, as a module reads it. [items]"""
    return tuple(plan.input_shape[axis] for axis in INPUT_AXES if axis in plan.input_shape)


def planned_shapes(plan: Plan) -> str:
    """The shape of the one input of a plan: tokens where that is all that there is."""
    kind = ":int64" if list(plan.input_shape) == ["sequence"] else ""
    return ",".join(map(str, (2, *planned_extents(plan)))) + kind


def first_names(model: nn.Module) -> dict[str, str]:
    """For each name of a weight, the first one of the same weight."""
    first: dict[int, str] = {}
    rows = model.named_parameters(remove_duplicate=False)
    return {name: first.setdefault(id(one), name) for name, one in rows}


def _check_layers(plan: Plan, network: Network, name: str) -> None:
    """Refuse a module that the plan was not made for."""
    known = {row.name: row.kind for row in plan.layers.values()}
    found = {row.name: row.kind for row in network.layers}
    if known == found:
        return
    odd = sorted(set(known.items()) ^ set(found.items()))[0]
    where = "the plan" if odd in known.items() else "the module"
    raise InputError(
        f"the plan must be for the module but {name} has {len(found)} layers and the plan of "
        f"{plan.model} {len(known)}, of which '{odd[0]}' ({odd[1]}) is of {where} alone; make a "
        "plan for this module, at these inputs"
    )
