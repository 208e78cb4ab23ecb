"""Backward passes of weights: what they read is gathered again, and they run beside communication.

A column-parallel layer under sequence parallelism keeps its own part of what it reads, and gathers
the rest again while it works out the gradient of its input, whose reduction runs beside the
gradient of the weight (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.graph import Layer
from costmodels.simulation.operations import Local, Operation, Ref, message_operation
from costmodels.simulation.pieces import Piece
from costmodels.simulation.schedules import BACKWARD
from costmodels.simulation.tensors import ACTIVATIONS, StageTensors


def gathers_again(tensors: StageTensors, layer: Layer, after: Sequence[Ref]) -> list[Operation]:
    """All-gathers of what a layer reads, of which it kept its own part only.

    Parameters
    ----------
    tensors
        Of the stage.
    layer
        The layer.
    after
        What its backward pass waits for.
    """
    name, piece = layer.name, tensors.pieces[layer.name]
    found = []
    for edge in tensors.graph.producers[name]:
        if not tensors.gathered_again(edge):
            continue
        change = tensors.change(edge)
        copy: Local = ("gathered again", name, edge.slot)
        operation = message_operation(
            ("gather again", name, edge.slot),
            change.pattern.kind,
            change.message,
            after,
            num_bytes=change.num_bytes,
            makes=((copy, ACTIVATIONS, piece.inputs[edge.slot]),),
            uses=(tensors.out(edge.source, tensors.again(name, edge.source)),),
        )
        found.append(operation)
    return found


def data_then_weight(
    stage: int, base: Operation, piece: Piece, gathers: Sequence[Operation]
) -> tuple[Operation, Operation]:
    """The gradient of the input, and that of the weight, which alone reads what is gathered.

    Parameters
    ----------
    stage
        Where they run.
    base
        The backward pass in one, which uses the gradient of its output last.
    piece
        The layer.
    gathers
        What is gathered for it.
    """
    weight = base._replace(
        key=("backward of weight", base.name, 0),
        kind="backward of weight",
        after=((stage, BACKWARD, base.key), *((stage, BACKWARD, op.key) for op in gathers)),
        seconds=piece.backward_weight,
        makes=(),
        uses=(*base.uses, *(key for op in gathers for key, _, _ in op.makes)),
        buffer=0.0,
    )
    return base._replace(seconds=piece.backward_data, uses=base.uses[-1:]), weight


def after_gathers(stage: int, base: Operation, gathers: Sequence[Operation]) -> Operation:
    """A backward pass in one, which waits for all that is gathered for it.

    Parameters
    ----------
    stage, base, gathers
        As of `data_then_weight`.
    """
    waits = tuple((stage, BACKWARD, op.key) for op in gathers)
    reads = tuple(key for op in gathers for key, _, _ in op.makes)
    return base._replace(after=(*base.after, *waits), uses=(*base.uses, *reads))
