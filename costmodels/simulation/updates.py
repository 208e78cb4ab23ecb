"""The optimizer's update of the stages of a role, after all reductions of their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.simulation.execution import Queue
from costmodels.simulation.operations import Operation
from costmodels.simulation.weights import WeightWork


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
        scratch=sum(work.update_scratch for work in works),
    )
    rows = [(first, update)]
    for work in works:
        gather = work.gather_updated((first, "update", update.key))
        if gather is not None:
            rows.append((work.program.number, gather))
    return rows
