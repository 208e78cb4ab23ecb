"""What the communication library holds for each group of ranks that a device communicates in."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from costmodels.simulation.messages import StageLinks
from costmodels.simulation.runtimes import COMMUNICATOR, Runtime
from costmodels.simulation.weights import WeightWork

# Members at each level, from the inside out. [items]
Group = tuple[int, ...]


class Neighbours(NamedTuple):
    """Other groups of stages that a device communicates with by itself. [items]

    Parameters
    ----------
    sends
        How many it sends to or receives from.
    shares
        How many it shares a weight with, itself included.
    """

    sends: int = 0
    shares: int = 0


def communicators_size(
    links: StageLinks,
    features: Collection[Group],
    weights: Collection[Group],
    copies: Collection[Group],
    neighbours: Neighbours,
    runtime: Runtime,
) -> float:
    """Buffers of communicators beyond what a device reserves, which are those of one. [B]

    Parameters
    ----------
    links
        Of the device.
    features, weights, copies
        Groups that exchange features, those that hold or share the same weights, and, of weights
        that some share, those that hold the same shard; of any size.
    neighbours
        As far as they are others than all groups of stages.
    runtime
        The framework, with the size of one, and which groups it has besides.
    """
    groups = list(_besides_all(links, features, weights, copies, neighbours, runtime))
    if not groups:
        return 0.0
    # what devices reserve holds that of all ranks, see their sources
    size = max(_buffers(links.shape, runtime) - COMMUNICATOR, 0.0)
    size += sum(_buffers(group, runtime) for group in groups)
    for group in (links.shape, *groups):
        heads, hosts = _switched(links, group)
        size += heads * runtime.switch_buffer
        if heads and hosts > 1:
            size += _tree_neighbours(hosts) * runtime.switch_tree
    return size


def _buffers(group: Group, runtime: Runtime) -> float:
    """What a communicator takes without switches. [B]"""
    return runtime.communicator_of_two if math.prod(group) == 2 else runtime.communicator


def _besides_all(
    links: StageLinks,
    features: Collection[Group],
    weights: Collection[Group],
    copies: Collection[Group],
    neighbours: Neighbours,
    runtime: Runtime,
) -> Iterator[Group]:
    """All groups of several ranks besides the first one, of all ranks; as of `communicators_size`.

    Without a group for norms, what is summed up over ranks that exchange features and over those
    that replicate them goes over one after the other. Groups of the same ranks are one.
    """
    exchanging, holding = set(features), set(weights)
    if "norms" in runtime.groups:
        found = sorted(exchanging | holding)
    else:
        apart = {
            _ranks_of_both(one, other)
            for one in exchanging
            for other in holding
            if math.prod(one) > 1
        }
        found = sorted(exchanging) + sorted(holding - apart)
    # those that hold the same shard are other ranks than those that share it, if of one shape, too
    yield from (group for group in (*found, *sorted(set(copies))) if math.prod(group) > 1)
    whole = links.shape
    if "all" in runtime.groups:
        yield whole
    stages = _quotient(whole, links.stage.shape)
    model = _quotient(whole, min(holding, key=math.prod, default=links.stage.shape))
    host = tuple(n if near else 1 for near, n in zip(links.job.inside_host, whole, strict=True))
    if "host" in runtime.groups and math.prod(host) > 1 and host not in (*found, stages, model):
        yield host
    if math.prod(stages) == 1:
        return
    if "stages" in runtime.groups:
        yield stages
    if "model" in runtime.groups and model != stages:
        yield model
    # two stages are all of two
    pair = (1,) * (len(whole) - 1) + (2,)
    if "ends" in runtime.groups and 1 < neighbours.shares < math.prod(stages):
        yield (1,) * (len(whole) - 1) + (neighbours.shares,)
    if "neighbours" in runtime.groups:
        yield from [pair] * neighbours.sends


def _ranks_of_both(one: Group, other: Group) -> Group:
    return tuple(a * b for a, b in zip(one, other, strict=True))


def _quotient(one: Group, other: Group) -> Group:
    return tuple(max(a // b, 1) for a, b in zip(one, other, strict=True))


def communicator_memory(works: Sequence[WeightWork]) -> float:
    """Buffers of the communicators of a device beyond the first. [B]

    Parameters
    ----------
    works
        On the weights of its stages. A communicator of all ranks comes first (for the loss and the
        norm of gradients), then one for each group of a kind that reduces gradients or features,
        and those that a runtime has besides (`Runtime.groups`). Shards of weights over some of the
        ranks that hold them have two: those that share them, and those that hold the same one.
    """
    programs, runtime = [work.program for work in works], works[0].runtime
    held = [work.groups(name) for work in works for name, p in work.pieces.items() if p.numbers]
    weights, copies = ({pair[place] for pair in held} for place in (0, 1))
    features = {tuple(c.pattern.group) for p in programs for c in p.tensors.change_of.values()}
    view = programs[0].view
    links, neighbours = view.stage_links[0], _neighbours(works)
    return communicators_size(links, features, weights, copies, neighbours, runtime)


def _neighbours(works: Sequence[WeightWork]) -> Neighbours:
    """The other groups of stages that a device of some stages communicates with."""
    view = works[0].program.view
    links, count = view.stage_links[0], len(view.strategy.stages)
    depth = math.prod(_quotient(links.shape, links.stage.shape))
    own = {work.program.number for work in works}
    others = {(stage + way) % depth for stage in own for way in (-1, 1) if 0 <= stage + way < count}
    mine = {stage % depth for stage in own}
    shares = 0
    for owner, names in view.graph.sharers.items():
        holders = {view.stage_of[name] % depth for name in (owner, *names)}
        shares = max(shares, len(holders) if mine & holders else 0)
    return Neighbours(sends=len(others - mine), shares=shares)


def _switched(links: StageLinks, group: Sequence[int]) -> tuple[int, int]:
    """Devices of a host in a group for which its switches add up, and hosts of it. [items]

    NCCL has no such algorithm for two (src/transport/nvls.cc, ncclNvlsInit).
    """
    levels = list(zip(links.cluster.levels, links.job.inside_host, group, strict=True))
    inside = [(level.in_network_bandwidth is not None, n) for level, near, n in levels if near]
    near = math.prod(n for _, n in inside)
    added = near > 2 and any(adds and n > 1 for adds, n in inside)
    return (near if added else 0), math.prod(group) // near


def _tree_neighbours(hosts: int) -> float:
    """Other hosts that a device exchanges with along a channel of NCCL's trees over hosts. [items]

    Channels take two binary trees in turn (src/graph/trees.cc, ncclGetDtree). From four hosts on
    some of them have a parent and two children in one of these, and one neighbour in the other.
    """
    return min(hosts / 2.0, 2.0)
