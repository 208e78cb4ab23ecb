"""The optimizer's update of the stages of a role, after all reductions of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Operation, Ref, message_operation
from costmodels.simulation.weights import WeightWork, after_check


def _gather_updated(work: WeightWork, after: Ref) -> Operation | None:
    """All-gather of updated weights that are whole on every rank while their state is cut."""
    cut = [
        name
        for name in work.pieces
        if work.cuts(name, "state") > 1 and work.cuts(name, "weights") == 1
    ]
    num_bytes = sum(work.pieces[n].parameters for n in cut) * work.training.activation_size
    if not cut or not num_bytes:
        return None
    group = work.shard_group(max(cut, key=lambda n: work.pieces[n].parameters))
    ranks = math.prod(group)
    operation = message_operation(
        ("gather updated", "weights", work.program.number),
        "all_gather",
        work.program.stage_links.collective("all_gather", group, num_bytes),
        [after],
        num_bytes=num_bytes * (1.0 - 1.0 / ranks),
        queue=Queue.PARAMETER,
    )
    operation = after_check(operation, work.runtime)
    if not work.runtime.copies_updated:
        return operation
    # its own part, those of all ranks, and one buffer for all of them
    sizes = [num_bytes, *[num_bytes / ranks] * (ranks + 1)]
    copies = [(("updated", "weights", n), size) for n, size in enumerate(sizes)]
    return operation._replace(
        makes=tuple((key, "communication buffers", size) for key, size in copies),
        uses=tuple(key for key, _ in copies),
    )


def _update_scratch(work: WeightWork) -> float:
    """What the optimizer needs while it updates a stage. [B]"""
    size = work.training.held.update
    return sum(p.parameters * size / work.cuts(name, "state") for name, p in work.pieces.items())


def update_operations(works: Sequence[WeightWork]) -> list[tuple[int, Operation]]:
    """What the update takes: stage and operation.

    Parameters
    ----------
    works
        Of the stages of the role.
    """
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
        gather = _gather_updated(work, (first, "update", update.key))
        if gather is not None:
            rows.append((work.program.number, gather))
    return rows
