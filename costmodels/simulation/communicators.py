"""What the communication library holds for each group of ranks that a device communicates in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.simulation.runtimes import COMMUNICATOR, Runtime
from costmodels.simulation.stage_program import StageProgram


def communicators_size(count: int, runtime: Runtime) -> float:
    """Buffers of communicators beyond what a device reserves, which are those of one. [B]

    Parameters
    ----------
    count
        Groups of ranks besides that of all devices; none communicates where there are none. [items]
    runtime
        The framework, with the size of one.
    """
    # what devices reserve holds one, see their sources
    more = max(runtime.communicator - COMMUNICATOR, 0.0) if count else 0.0
    return count * runtime.communicator + more


def communicator_memory(programs: Sequence[StageProgram], runtime: Runtime) -> float:
    """Buffers of the communicators of a device beyond the first. [B]

    Parameters
    ----------
    programs
        Of its stages. A communicator of all ranks comes first (for the loss and the norm of
        gradients), then one for each group of a kind that reduces gradients or features, and one
        for the stages of a pipeline.
    runtime
        The framework.
    """
    groups = {p.pieces[layer.name].gradient_group for p in programs for layer in p.layers}
    groups |= {tuple(c.pattern.group) for p in programs for c in p.tensors.change_of.values()}
    count = sum(math.prod(group) > 1 for group in groups)
    count += len(programs[0].view.strategy.stages) > 1
    return communicators_size(count, runtime)
