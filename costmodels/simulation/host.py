"""A host that launches ahead of its device: a pass takes as long as the slower of the two.

Kernels wait in a queue that the host fills in the order of the pass, so that long ones hide the
launches of short ones behind them. What is left of a pass after the device could have been
through, the device waits for. Assumes that the host does not wait within a pass, and that
communication which computation waits for is not hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costmodels.graph import Graph, Layer
from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Operation
from costmodels.simulation.stage_program import StageProgram

# Kernels of operations that run as several, forward and backward.
_KERNELS: Final = {"glu_apart": (2, 3), "loss_apart": (6, 2), "fused_activation": (0, 1)}


def kernels(layer: Layer, kind: str) -> int:
    """Kernels that the host launches for a pass of a layer. [items]

    Parameters
    ----------
    layer
        The layer.
    kind
        Of the operation: "forward", "recompute", "backward" or "backward of weight".
    """
    backward = kind.startswith("backward")
    if layer.operation in _KERNELS:
        return _KERNELS[layer.operation][backward]
    if layer.between:
        return len(layer.products) * (1 + backward) + len(layer.between)
    # the gradients of the input and of the weight are products of their own
    both = kind == "backward" and layer.is_dense and layer.parameters
    return 2 if both else 1


def wait_for_host(program: StageProgram) -> None:
    """Let every pass of a stage take as long as its launches, where those are slower."""
    view = program.view
    each = view.runtime.collective_launches
    for phase, operations in program.phases.items():
        program.phases[phase] = launched(operations, program.graph, view.launch_time, each)


def launched(
    operations: list[Operation], graph: Graph, launch_time: float, each: float
) -> list[Operation]:
    """Operations of a pass, the last computation of which waits for the host where that is slower.

    Parameters
    ----------
    operations
        In the order of the pass.
    graph
        The network.
    launch_time
        Of a kernel. [s]
    each
        Kernels whose launch takes as long as that of a collective. [items]
    """
    apart = {op.name for op in operations if op.kind == "backward of weight"}
    host = device = 0.0
    last = -1
    for place, operation in enumerate(operations):
        device += operation.seconds
        if operation.queue == Queue.COMPUTE:
            last = place
            host += launch_time * _kernel_count(operation, graph.layers, apart)
        elif operation.queue == Queue.FEATURE:
            host += launch_time * each
    if last < 0 or host <= device:
        return operations
    waiting = operations[last]
    late = waiting._replace(seconds=waiting.seconds + host - device)
    return [*operations[:last], late, *operations[last + 1 :]]


def _kernel_count(operation: Operation, layers: Mapping[str, Layer], apart: set[str]) -> int:
    """Kernels of an operation; the product of a weight's gradient may be one of its own. [items]"""
    if operation.name not in layers:
        return 0
    count = kernels(layers[operation.name], operation.kind)
    return 1 if operation.kind == "backward" and operation.name in apart else count
