"""What the communication library holds for each group of ranks that a device communicates in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.simulation.weights import WeightWork

# NCCL's buffers of one communicator on an H100 host (aiconfigurator); what a device reserves has
# those of one, see the sources of the devices. [B]
COMMUNICATOR = 392 * 2**20


def communicator_memory(works: Sequence[WeightWork]) -> float:
    """Buffers of the communicators of a device beyond the first. [B]

    Parameters
    ----------
    works
        On the weights of its stages. A communicator of all ranks comes first (for the loss and the
        norm of gradients), then one for each group of a kind that reduces gradients or features,
        and one for the stages of a pipeline. Shards of weights over some of the ranks that hold
        them have two: of those that share them, and of those that hold the same one.
    """
    programs = [work.program for work in works]
    groups = {group for work in works for name in work.pieces for group in work.groups(name)}
    groups |= {tuple(c.pattern.group) for p in programs for c in p.tensors.change_of.values()}
    count = sum(math.prod(group) > 1 for group in groups)
    count += len(programs[0].view.strategy.stages) > 1
    return float(count * COMMUNICATOR)
