"""The optimizer's update of the stages of a role, after all reductions of their gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from costmodels.errors import InputError
from costmodels.simulation.execution import Queue
from costmodels.simulation.offload_updates import (
    gradients_to_host,
    host_updates,
    updates_of_fetched,
)
from costmodels.simulation.operations import Operation, Ref, message_operation
from costmodels.simulation.weights import WeightWork, after_check

# How often all weights are read or written where updated ones are gathered into copies: laid side
# by side, out of the buffer that was gathered into, and into place.
_PASSES = 6


def _gather_updated(work: WeightWork, after: Ref) -> list[Operation]:
    """All-gather of updated weights that are whole on every rank while their state is cut."""
    cut = [
        name
        for name in work.pieces
        if work.cuts(name, "state") > 1 and work.cuts(name, "weights") == 1
    ]
    num_bytes = sum(work.pieces[n].parameters for n in cut) * work.training.activation_size
    if not cut or not num_bytes:
        return []
    group = work.shard_group(max(cut, key=lambda n: work.pieces[n].parameters))
    ranks = math.prod(group)
    operation = message_operation(
        ("gather updated", "weights", work.program.number),
        "all_gather",
        work.program.weight_links.collective("all_gather", group, num_bytes),
        [after],
        num_bytes=num_bytes * (1.0 - 1.0 / ranks),
        queue=Queue.PARAMETER,
    )
    operation = after_check(operation, work.runtime)
    if not work.runtime.copies_updated:
        return [operation]
    # its own part, those of all ranks, and last the one buffer that they come out of
    sizes = [*[num_bytes / ranks] * (ranks + 1), num_bytes]
    copies = [(("updated", "weights", n), size) for n, size in enumerate(sizes)]
    # the part of every rank of every tensor is copied by a kernel of its own
    tensors = sum(work.pieces[name].parameters > 0.0 for name in cut)
    device = work.cluster.device
    copying = Operation(
        key=("copy updated", "weights", work.program.number),
        kind="update",
        queue=Queue.COMPUTE,
        after=((work.program.number, "update", operation.key),),
        seconds=tensors * ranks * device.kernel_latency
        + _PASSES * num_bytes / device.memory_bandwidth,
        uses=tuple(key for key, _ in copies),
    )
    makes = tuple((key, "communication buffers", size) for key, size in copies)
    return [operation._replace(makes=makes), copying]


def _update_scratch(work: WeightWork) -> float:
    """What the optimizer needs while it updates a stage. [B]"""
    size = work.training.held.update
    return sum(p.parameters * size / work.cuts(name, "state") for name, p in work.pieces.items())


def _with_host(works: Sequence[WeightWork]) -> Iterator[tuple[int, Operation]]:
    """The update of stages whose weights, or their optimizer's state, wait in the host.

    It needs the norm of all gradients of the device, whichever stage they are of.
    """
    waits = [ref for work in works for ref in work.update_waits]
    works = works[::-1]  # in the order in which gradients come
    for work in works:
        number = work.program.number
        for name in work.pieces if "weights" in work.offloaded else ():
            if work.cuts(name, "state") > work.cuts(name, "weights"):
                raise InputError(
                    "weights that wait in the host must be cut like the optimizer's state, but of "
                    f"'{name}' the state is cut alone; use --zero 3, or --zero 0"
                )
        for operation in gradients_to_host(work):
            waits.append((number, "update", operation.key))
            yield number, operation
    waits = list(dict.fromkeys(waits))
    for work in works:
        number, last = work.program.number, None
        updates = host_updates if "optimizer" in work.offloaded else updates_of_fetched
        for operation in updates(work, waits):
            last = operation.key
            yield number, operation
        for operation in _gather_updated(work, (number, "update", last)) if last else ():
            yield number, operation


def update_operations(works: Sequence[WeightWork]) -> list[tuple[int, Operation]]:
    """What the update takes: stage and operation.

    Parameters
    ----------
    works
        Of the stages of the role.
    """
    offloaded = works[0].offloaded
    if "optimizer" in offloaded or "weights" in offloaded:
        return list(_with_host(works))
    first = works[0].program.number
    update = Operation(
        key=("update", "weights", 0),
        kind="update",
        queue=Queue.COMPUTE,
        after=tuple(dict.fromkeys(ref for work in works for ref in work.update_waits)),
        seconds=sum(work.update_seconds for work in works),
        scratch=sum(_update_scratch(work) for work in works),
    )
    rows = [(first, update)]
    for work in works:
        gathered = _gather_updated(work, (first, "update", update.key))
        rows += [(work.program.number, operation) for operation in gathered]
    return rows
