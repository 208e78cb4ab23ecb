"""One question on parts of a cluster: some of its groups of hosts, or fewer GPUs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msgspec.structs import replace

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
    alone = cluster.alone(*names)
    machine = replace(setting.machine, compute=setting.machine.compute.under(groups))
    return replace(setting, machine=machine).on(alone, alone.num_devices)


def on_gpus(setting: Setting, gpus: int) -> Setting:
    """The question on fewer GPUs of its cluster, with the same batch."""
    return setting.on(setting.cluster, gpus)


def evenly(setting: Setting) -> Setting:
    """The question on a plain cluster all of whose hosts are as the slowest."""
    return setting.on(replace(setting.cluster, groups=()), setting.gpus)


def combinations(setting: Setting) -> Iterator[tuple[str, ...]]:
    """Groups that may work together while the others are idle: all first, the fastest next."""
    names = [group.name for group in setting.cluster.groups]
    if len(names) > MOST_COMBINED:
        yield from (tuple(names[:count]) for count in range(len(names), 1, -1))
        yield from ((name,) for name in names)
        return
    for count in range(len(names), 0, -1):
        yield from itertools.combinations(names, count)
