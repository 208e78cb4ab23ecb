"""A module of PyTorch as a network: trace it, and turn its operators into layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodels.errors import InputError
from costmodels.graph import Network
from planner.models.traced import network_of_nodes
from planner.torch.nodes import nodes_of_program
from planner.torch.trace import trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
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


def network_of_module(module: object, samples: Sequence[Sample], name: str) -> Network:
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
    program = trace(module, args, {one.name: one.tensor for one in samples if one.name}, name)
    nodes, outputs = nodes_of_program(program)
    return network_of_nodes(
        nodes, outputs, batch=batches.pop(), name=name, source="a PyTorch module"
    )
