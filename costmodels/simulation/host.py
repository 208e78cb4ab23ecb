"""A host that launches ahead of its device: a pass takes as long as the slower of the two.

Kernels wait in a queue that the host fills in the order of the pass, so that long ones hide the
launches of short ones behind them. What is left of a pass after the device could have been
through, the device waits for. Assumes that the host does not wait within a pass, and that nothing
else shares its links.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from costmodels.graph import Graph, Layer
from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import SENDS, Key, Operation, Ref
from costmodels.simulation.runtimes import Runtime
from costmodels.simulation.stage_program import StageProgram

# Kernels of operations that run as several, forward and backward.
_KERNELS: Final = {
    "glu_apart": (2, 3),
    "loss_apart": (6, 2),
    "fused_activation": (0, 1),
    # queries and keys turn apart, and are copied there and back
    "rotary": (5, 5),
    "rotary_apart": (6, 6),
    "norm_apart": (8, 14),
}


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
    both = kind == "backward" and layer.is_dense and layer.trains_weight
    return 2 if both else 1


def wait_for_host(program: StageProgram) -> None:
    """Let every pass of a stage take as long as its launches, where those are slower."""
    view = program.view
    given = (program.graph, view.launch_time, view.runtime, view.fresh_size > 0.0)
    if view.runtime.launch_blocking:
        for phase, operations in program.phases.items():
            program.phases[phase] = one_by_one(operations, *given)
        return
    for phase, operations in program.phases.items():
        program.late[phase] = late = max(_lateness(operations, *given), 0.0)
        if late > 0.0:
            program.phases[phase] = _sent_last(delayed(operations, late), (program.number, phase))


def one_by_one(
    operations: list[Operation], graph: Graph, launch_time: float, runtime: Runtime, adds: bool
) -> list[Operation]:
    """Operations of a pass whose host launches a kernel when the one before is through.

    Parameters
    ----------
    operations, graph, launch_time, runtime, adds
        As of `launched`.
    """
    counts = launches(operations, graph, runtime, adds)
    return [
        operation._replace(seconds=operation.seconds + count * launch_time)
        for operation, count in zip(operations, counts, strict=True)
    ]


def launched(
    operations: list[Operation],
    graph: Graph,
    launch_time: float,
    runtime: Runtime,
    *,
    adds: bool = False,
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
    runtime
        What launching a collective takes besides.
    adds
        Whether a kernel adds up each gradient of a weight over micro-batches.
    """
    late = _lateness(operations, graph, launch_time, runtime, adds)
    return delayed(operations, max(late, 0.0))


def launches(
    operations: Sequence[Operation], graph: Graph, runtime: Runtime, adds: bool
) -> list[float]:
    """Kernels that the host launches for each operation of a pass. [items]

    Parameters
    ----------
    operations, graph, runtime, adds
        As of `launched`.
    """
    apart = {op.name for op in operations if op.kind == "backward of weight"}
    counts = []
    for operation in operations:
        count = 0.0
        if operation.queue == Queue.COMPUTE:
            count = _kernel_count(operation, graph.layers, apart)
            count += adds and _ends_weight(operation, graph.layers, apart)
        elif operation.queue == Queue.FEATURE:
            count = runtime.collective_launches
        counts.append(count)
    return counts


def _lateness(
    operations: list[Operation], graph: Graph, launch_time: float, runtime: Runtime, adds: bool
) -> float:
    """How much longer the host takes for a pass than the device. [s]"""
    host = launch_time * sum(launches(operations, graph, runtime, adds))
    for operation in operations:
        if operation.queue == Queue.FEATURE:
            host += runtime.check(operation.ranks)
    return host - device_time(operations)


def delayed(operations: Sequence[Operation], late: float) -> list[Operation]:
    """A pass whose last computation comes later, or earlier again."""
    last = _last_computation(operations)
    if last < 0:
        return list(operations)
    waiting = operations[last]
    waiting = waiting._replace(seconds=waiting.seconds + late)
    return [*operations[:last], waiting, *operations[last + 1 :]]


def _last_computation(operations: Sequence[Operation]) -> int:
    """The place of the last computation of a pass, -1 without any."""
    return max((n for n, op in enumerate(operations) if op.queue == Queue.COMPUTE), default=-1)


def _sent_last(operations: list[Operation], place: tuple[int, str]) -> list[Operation]:
    """A pass of which nothing behind its last computation is sent before that is through.

    Frameworks hand over what a pass made when all of it is launched.

    Parameters
    ----------
    operations
        In the order of the pass.
    place
        Its stage and phase.
    """
    last = _last_computation(operations)
    if last < 0:
        return operations
    through: Ref = (*place, operations[last].key)
    return [
        op._replace(after=(*op.after, through)) if n > last and op.key[0] in SENDS else op
        for n, op in enumerate(operations)
    ]


def device_time(operations: list[Operation]) -> float:
    """When a pass is through that waits for nothing but itself; messages to others go on. [s]"""
    ends: dict[Key, float] = {}
    free: dict[Queue, float] = {}
    for operation in operations:
        known = [ends[key] for _, _, key in operation.after if key in ends]
        begin = max([free.get(operation.queue, 0.0), *known])
        end = begin + operation.seconds + operation.transfer
        free[operation.queue] = ends[operation.key] = end
    return max((ends[op.key] for op in operations if op.kind != "send_recv"), default=0.0)


def _ends_weight(operation: Operation, layers: Mapping[str, Layer], apart: set[str]) -> bool:
    """Whether the gradient of a layer's weight is there when an operation ends."""
    if operation.name not in layers or not layers[operation.name].parameters:
        return False
    return operation.kind == ("backward of weight" if operation.name in apart else "backward")


def _kernel_count(operation: Operation, layers: Mapping[str, Layer], apart: set[str]) -> int:
    """Kernels of an operation; the product of a weight's gradient may be one of its own. [items]"""
    if operation.name not in layers:
        return 0
    count = kernels(layers[operation.name], operation.kind)
    return 1 if operation.kind == "backward" and operation.name in apart else count
