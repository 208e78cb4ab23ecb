"""How a runtime puts gradients together while a step runs, where it does."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.simulation.execution import Fusion
from costmodels.simulation.runtimes import Runtime
from costmodels.simulation.weights import WeightWork


def gradient_fusion(runtime: Runtime, works: Sequence[WeightWork], ranks: int) -> Fusion | None:
    """How gradients are fused, None where buckets are made beforehand.

    Parameters
    ----------
    runtime
        Says so.
    works
        What happens to the weights of every stage.
    ranks
        Devices that agree on what is ready. [items]
    """
    if runtime.fusion is None:
        return None
    groups = [(work, group) for work in works for group in work.fused_groups]

    def cost(group: int, num_bytes: float) -> tuple[float, float]:
        work, members = groups[group]
        moved = num_bytes * runtime.passes(math.prod(members))
        message = work.program.stage_links.collective("all_reduce", members, moved)
        return message.seconds, message.transfer

    def received(group: int) -> float:
        return 2.0 * (1.0 - 1.0 / math.prod(groups[group][1]))

    return Fusion(
        cycle=runtime.cycle,
        negotiation=runtime.negotiation(ranks),
        limit=runtime.fusion,
        cost=cost,
        received=received,
    )
