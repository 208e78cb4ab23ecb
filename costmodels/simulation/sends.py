"""What a stage sends of its outputs to the stages that read them."""

from __future__ import annotations

from costmodels.graph import Layer
from costmodels.simulation.operations import Key, Operation, Ref, message_operation
from costmodels.simulation.schedules import FORWARD
from costmodels.simulation.tensors import StageTensors


def send_operations(tensors: StageTensors, layer: Layer, done: Ref) -> list[Operation]:
    """Sends of an output to the stages that read it, summed up before.

    Parameters
    ----------
    tensors
        Of the stage.
    layer
        The layer that makes it.
    done
        The operation after which it is there.
    """
    view, name, piece = tensors.view, layer.name, tensors.pieces[layer.name]
    links = view.stage_links[tensors.number]
    rows: list[Operation] = []
    readers = {view.stage_of[e.target] for e in tensors.graph.consumers[name]}
    for other in sorted(readers - {tensors.number}):
        after = [done]
        whole = tensors.summed(piece.writes)
        total = float(layer.output.size * view.activation_size)
        reduced = tensors.changes.between(piece.writes, whole, piece.output, piece.output, total)
        mark = ("out", name, b"")
        if reduced.message.time > 0.0 and mark not in tensors.moved:
            key: Key = ("change", name, len(tensors.moved))
            tensors.moved[mark] = (key, None)
            kind, size = reduced.pattern.kind, reduced.num_bytes
            rows.append(message_operation(key, kind, reduced.message, after, num_bytes=size))
        if reduced.message.time > 0.0:
            after = [(tensors.number, FORWARD, tensors.moved[mark][0])]
        size = tensors.crossing(name, other)
        rows.append(
            message_operation(
                ("send", name, other),
                "send_recv",
                links.to_stage(view.stage_links[other], size),
                after,
                num_bytes=size,
                uses=(tensors.out(name, False),),
            )
        )
    return rows
