"""One question on parts of a cluster of several groups of hosts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from costmodels.cluster import Cluster
from costmodels.communication.topology import Topology
from planner.request.setting import Setting

# Of so many groups all combinations are looked at; of more the fastest ones together, and each.
MOST_COMBINED = 3


def on_groups(setting: Setting, names: tuple[str, ...]) -> Setting:
    """The question on the hosts of some groups alone.

    Parameters
    ----------
    setting
        The question on all of them.
    names
        The groups.
    """
    cluster = setting.cluster
    groups = tuple(group for group in cluster.groups if group.name in names)
    if len(groups) == len(cluster.groups):
        return setting
    compute = setting.machine.compute.under(groups)
    return _moved(replace(setting, machine=replace(setting.machine, compute=compute)), names)


def _moved(setting: Setting, names: tuple[str, ...]) -> Setting:
    cluster = setting.cluster.alone(*names)
    return _placed(setting, cluster, cluster.num_devices)


def _placed(setting: Setting, cluster: Cluster, gpus: int) -> Setting:
    topology = Topology.of(cluster, cluster.shape(gpus))
    request = setting.request
    return replace(
        setting,
        cluster=cluster,
        gpus=gpus,
        machine=replace(setting.machine, topology=topology),
        request=None if request is None else replace(request, cluster=cluster, gpus=gpus),
    )


def evenly(setting: Setting) -> Setting:
    """The question on a plain cluster all of whose hosts are as the slowest."""
    return _placed(setting, replace(setting.cluster, groups=()), setting.gpus)


def combinations(setting: Setting) -> Iterator[tuple[str, ...]]:
    """Groups that may work together while the others are idle: all first, the fastest next."""
    names = [group.name for group in setting.cluster.groups]
    if len(names) > MOST_COMBINED:
        yield from (tuple(names[:count]) for count in range(len(names), 1, -1))
        yield from ((name,) for name in names)
        return
    for count in range(len(names), 0, -1):
        yield from itertools.combinations(names, count)
