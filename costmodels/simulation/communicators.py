"""What the communication library holds for each group of ranks that a device communicates in."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from costmodels.simulation.messages import StageLinks
from costmodels.simulation.runtimes import COMMUNICATOR, Runtime
from costmodels.simulation.weights import WeightWork


def communicators_size(
    links: StageLinks, groups: Collection[Sequence[int]], more: int, runtime: Runtime
) -> float:
    """Buffers of communicators beyond what a device reserves, which are those of one. [B]

    Parameters
    ----------
    links
        Of the device.
    groups
        Members at each level of groups of several ranks, besides that of all devices. [items]
    more
        Further groups, of ranks that lie in other hosts. [items]
    runtime
        The framework, with the size of one.
    """
    count = len(groups) + more
    if not count:
        return 0.0
    # what devices reserve holds one, see their sources
    size = count * runtime.communicator + max(runtime.communicator - COMMUNICATOR, 0.0)
    if runtime.switch_buffer:
        heads = sum(_switched(links, group) for group in (links.shape, *groups))
        size += heads * runtime.switch_buffer
    return size


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
    groups = {
        group
        for work in works
        for name, piece in work.pieces.items()
        if piece.numbers
        for group in work.groups(name)
    }
    groups |= {tuple(c.pattern.group) for p in programs for c in p.tensors.change_of.values()}
    shared = [group for group in groups if math.prod(group) > 1]
    view = programs[0].view
    return communicators_size(view.stage_links[0], shared, len(view.strategy.stages) > 1, runtime)


def _switched(links: StageLinks, group: Sequence[int]) -> int:
    """Devices of a host in a group for which its switches add up. [items]

    NCCL has no such algorithm for two (src/transport/nvls.cc, ncclNvlsInit).
    """
    levels = zip(links.cluster.levels, links.job.inside_host, group, strict=True)
    inside = [(level.in_network_bandwidth is not None, n) for level, near, n in levels if near]
    near = math.prod(n for _, n in inside)
    return near if near > 2 and any(adds and n > 1 for adds, n in inside) else 0
