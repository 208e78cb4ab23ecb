"""What a stage sends of its outputs to the stages that read them.

Where ranks hold the same output, each sends all of it to its like, or only its own part, which the
receiving stage gathers (Narayanan et al. 2021, section 4.1).
"""

from __future__ import annotations

import math

import numpy as np

from costmodels.graph import Layer
from costmodels.simulation.operations import Key, Operation, Ref, message_operation
from costmodels.simulation.schedules import BACKWARD, FORWARD
from costmodels.simulation.tensors import JobView, StageTensors


def sharing_ranks(view: JobView, name: str, reader: int) -> tuple[int, ...]:
    """Members at each level that share in sending an output, empty where each sends all. [items]

    Parameters
    ----------
    view
        The job.
    name
        The layer that makes it.
    reader
        The stage that reads it.
    """
    if not view.runtime.scatters_sends:
        return ()
    stages = view.strategy.stages
    shape = tuple(stages[view.stage_of[name]].shape)
    if shape != tuple(stages[reader].shape):
        return ()
    ways = view.pieces[name].writes.degrees[0].prod(axis=-1)
    return tuple(int(n) for n in np.asarray(shape) // ways)


class Arrivals:
    """What a stage gathers of what others send it in parts, once each.

    Parameters
    ----------
    tensors
        Of the stage.
    phases
        Its operations by phase, which gatherings are added to.
    """

    def __init__(self, tensors: StageTensors, phases: dict[str, list[Operation]]) -> None:
        self.tensors, self.phases = tensors, phases
        self.known: dict[Key, Ref] = {}

    def output(self, name: str) -> Ref:
        """The operation after which an output of another stage is there."""
        number, maker = self.tensors.number, self.tensors.view.stage_of[name]
        sent = (maker, FORWARD, ("send", name, number))
        return self._whole(("gather sent", name, number), FORWARD, sent)

    def gradient(self, name: str, reader: int) -> Ref:
        """The operation after which the gradient that another stage makes of an output is there."""
        sent = (reader, BACKWARD, ("send gradient", name, self.tensors.number))
        return self._whole(("gather gradient", name, reader), BACKWARD, sent)

    def _whole(self, key: Key, phase: str, sent: Ref) -> Ref:
        tensors, (_, name, reader) = self.tensors, key
        group = sharing_ranks(tensors.view, name, reader)
        ranks = math.prod(group)
        if ranks == 1:
            return sent
        if key not in self.known:
            size = tensors.crossing(name, reader)
            links = tensors.view.stage_links[tensors.number]
            message = links.collective("all_gather", group, size)
            message = tensors.changes.handling.around(message, size)
            received = size * (1.0 - 1.0 / ranks)
            self.phases[phase].append(
                message_operation(key, "all_gather", message, [sent], num_bytes=received)
            )
            self.known[key] = (tensors.number, phase, key)
        return self.known[key]


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
        mark = ("out", name, b"", 0)
        if reduced.message.time > 0.0 and mark not in tensors.moved:
            key: Key = ("change", name, len(tensors.moved))
            tensors.moved[mark] = (key, None)
            kind, size = reduced.pattern.kind, reduced.num_bytes
            rows.append(message_operation(key, kind, reduced.message, after, num_bytes=size))
        if reduced.message.time > 0.0:
            after = [(tensors.number, FORWARD, tensors.moved[mark][0])]
        size = tensors.crossing(name, other) / math.prod(sharing_ranks(view, name, other))
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
