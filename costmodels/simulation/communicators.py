"""What the communication library holds for each group of ranks that a device communicates in."""

from __future__ import annotations

import math
from collections.abc import Sequence

from costmodels.simulation.messages import StageLinks
from costmodels.simulation.runtimes import COMMUNICATOR, Runtime
from costmodels.simulation.weights import WeightWork


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
    programs, runtime = [work.program for work in works], works[0].runtime
    groups = {group for work in works for name in work.pieces for group in work.groups(name)}
    groups |= {tuple(c.pattern.group) for p in programs for c in p.tensors.change_of.values()}
    shared = [group for group in groups if math.prod(group) > 1]
    count = len(shared) + (len(programs[0].view.strategy.stages) > 1)
    held = communicators_size(count, runtime)
    if count and runtime.switch_buffer:
        links = programs[0].view.stage_links[0]
        held += sum(_switched(links, group) for group in (links.shape, *shared)) * (
            runtime.switch_buffer
        )
    return held


def _switched(links: StageLinks, group: Sequence[int]) -> int:
    """Devices of a host in a group for which its switches add up. [items]

    NCCL has no such algorithm for two (src/transport/nvls.cc, ncclNvlsInit).
    """
    levels = zip(links.cluster.levels, links.job.inside_host, group, strict=True)
    inside = [(level.in_network_bandwidth is not None, n) for level, near, n in levels if near]
    near = math.prod(n for _, n in inside)
    return near if near > 2 and any(adds and n > 1 for adds, n in inside) else 0
