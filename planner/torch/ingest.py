"""A module of PyTorch as a network: trace it, and turn its operators into layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from costmodels.errors import InputError
from costmodels.graph import Network
from planner.models.traced.network import translated_nodes
from planner.models.traced.nodes import TracedNode, data_nodes
from planner.models.traced.values import Value
from planner.torch.einsum import write_out_einsums
from planner.torch.inlining import write_out_parts
from planner.torch.nodes import nodes_of_program
from planner.torch.padding import pad_by_convolutions
from planner.torch.trace import MODULE_SOURCE, trace

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


class Sample(Struct, frozen=True, kw_only=True):
    """An input of a module.

    Parameters
    ----------
    name
        The argument, empty for one that is given by its place.
    tensor
        A tensor of its shape and type, or a value that is no tensor.
    """

    name: str
    tensor: Any


class TracedNetwork(Struct, frozen=True, kw_only=True):
    """The network that a module is, with all that it was made of.

    Parameters
    ----------
    network
        The network.
    program
        The operators of the module.
    data
        Those that depend on the samples.
    known
        What the output of each is, as a view of that of a layer.
    nodes
        Operators that each layer is; none where it is only added.
    moves
        Of each layer that copies a tensor to other axes: what it reads, and what it writes.
    owners
        The layer that each weight is counted at.
    """

    network: Network
    program: ExportedProgram
    data: set[Node]
    known: Mapping[Node, object]
    nodes: Mapping[str, tuple[Node, ...]]
    moves: Mapping[str, tuple[Value, Value]]
    owners: Mapping[str, str]


def network_of_module(module: object, samples: Sequence[Sample], name: str) -> TracedNetwork:
    """The network that a module is.

    Parameters
    ----------
    module
        The module, on the device "meta".
    samples
        Its inputs, all with as many samples.
    name
        What the network is called.

    Raises
    ------
    InputError
        When it cannot be traced, or its inputs have no samples in common.
    """
    tensors = [one.tensor for one in samples if hasattr(one.tensor, "shape")]
    batches = {one.shape[0] if one.dim() else 0 for one in tensors}
    if len(batches) != 1 or 0 in batches:
        shapes = ", ".join(str(list(one.shape)) for one in tensors)
        raise InputError(
            f"{name}: the first extent of all inputs must be the samples but inputs are {shapes}; "
            "correct them"
        )
    args = [one.tensor for one in samples if not one.name]
    require_trained(module, name)
    program = trace(module, args, {one.name: one.tensor for one in samples if one.name}, name)
    write_out_parts(program)
    write_out_einsums(program)
    pad_by_convolutions(program)
    nodes, outputs, became = nodes_of_program(program)
    _freeze_unread(nodes, outputs)
    network, net = translated_nodes(
        nodes, outputs, batch=batches.pop(), name=name, source=MODULE_SOURCE
    )
    data = data_nodes(nodes)
    origin = {one: node for node, one in became.items() if isinstance(one, TracedNode)}
    return TracedNetwork(
        network=network,
        program=program,
        data={origin[one] for one in data},
        known={node: _seen_as(one, net.known) for node, one in became.items()},
        nodes={name: tuple(origin[one] for one in rows) for name, rows in net.nodes.items()},
        moves=net.moves,
        # a weight lies as its first part does
        owners={net.parts.get(name, name): at for name, at in reversed(net.owners.items())},
    )


def _freeze_unread(nodes: Sequence[TracedNode], outputs: Sequence[TracedNode]) -> None:
    """Freeze the weights into which no gradient of the first output goes, which the loss reads."""
    reached, waiting = set(outputs[:1]), list(outputs[:1])
    while waiting:
        node = waiting.pop()
        for one in [] if node.operator == "detach" else node.all_input_nodes:
            if one not in reached:
                reached.add(one)
                waiting.append(one)
    for node in nodes:
        node.frozen |= bool(node.weight) and node not in reached


def require_trained(module: object, name: str) -> None:
    """Refuse a module all of whose weights are frozen.

    Parameters
    ----------
    module, name
        The module, and what it is called.

    Raises
    ------
    InputError
        When there is nothing to train.
    """
    rows = list(getattr(module, "parameters", tuple)())
    if rows and not any(row.requires_grad for row in rows):
        raise InputError(
            f"{name} cannot be planned: some weights must be trained but all {len(rows)} are "
            "frozen (requires_grad=False); let those be trained that are to be"
        )


def _seen_as(traced: object, known: Mapping[object, object]) -> object:
    """What a node of PyTorch is: several of them where it makes several tensors."""
    if isinstance(traced, tuple):
        return tuple(_seen_as(one, known) for one in traced)
    return known.get(traced) if isinstance(traced, TracedNode) else None
