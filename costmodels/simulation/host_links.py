"""What copies between devices and the memory of their host take, and what the host computes there.

Neighbouring devices share a link to the host in each direction, and all devices of a host and its
processors share its memory. What the devices of one role do, they do at the same time; roles that
have devices in one host share what they use at the same time, as messages do. Latencies are left
out: copies are of millions of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.cluster import Cluster, HostMemory
from costmodels.errors import InputError
from costmodels.simulation.execution import Link, Role
from costmodels.simulation.messages import NO_MESSAGE, OUT, Message, StageLinks
from costmodels.strategy import Strategy
from costmodels.units import format_bytes

# Numbers of levels in `Link` that no cluster has.
_HOST_LINK, _HOST_MEMORY = -1, -2


def host_of(cluster: Cluster) -> HostMemory:
    """The host of a cluster.

    Raises
    ------
    InputError
        When nothing is known of it.
    """
    if cluster.host is None:
        raise InputError(
            f"{cluster.name} must say how its GPUs reach the memory of their host for --offload "
            "but has no [host] table; add one with memory, memory_bandwidth, link_bandwidth and "
            "devices_per_link to its file (planner clusters --export writes that of a built-in one)"
        )
    return cluster.host


class HostLinks:
    """The links between the devices of a stage and the memory of their hosts."""

    def __init__(self, links: StageLinks) -> None:
        cluster, stage = links.cluster, links.stage
        self.host = host_of(cluster)
        alone = links.links != "shared"
        self.on_link = 1 if alone else min(stage.num_devices, self.host.devices_per_link)
        self.in_host = 1 if alone else min(stage.num_devices, cluster.devices_per_host)
        self.link = stage.first_device // self.host.devices_per_link
        self.number = stage.first_device // cluster.devices_per_host

    def copy(self, num_bytes: float, way: int) -> Message:
        """A copy between every device of the stage and its host.

        Parameters
        ----------
        num_bytes
            Of each device. [B]
        way
            `OUT` to the host, or `IN` from it.
        """
        if num_bytes <= 0.0:
            return NO_MESSAGE
        on_link = num_bytes * self.on_link / self.host.link_bandwidth
        in_memory = num_bytes * self.in_host / self.host.memory_bandwidth
        seconds = max(on_link, in_memory)
        loads: tuple[tuple[Link, float], ...] = (
            ((_HOST_LINK, self.link, way), on_link / seconds),
            ((_HOST_MEMORY, self.number, OUT), in_memory / seconds),
        )
        return Message(0.0, seconds, loads)

    def compute(self, num_bytes: float) -> Message:
        """What the processors of the hosts compute, as fast as their memory lets them.

        Parameters
        ----------
        num_bytes
            What they read and write for each device. [B]
        """
        if num_bytes <= 0.0:
            return NO_MESSAGE
        seconds = num_bytes * self.in_host / self.host.memory_bandwidth
        return Message(0.0, seconds, (((_HOST_MEMORY, self.number, OUT), 1.0),))


def check_offload(strategy: Strategy, cluster: Cluster, gradient: str, runtime: str) -> None:
    """Refuse what cannot wait in the memory of the host.

    Parameters
    ----------
    strategy, cluster
        What is to wait there, and where.
    gradient, runtime
        What the runtime does to gradients, and its name.

    Raises
    ------
    InputError
        When it cannot.
    """
    if not strategy.offload:
        return
    host_of(cluster)
    waits = [what for what in strategy.offload if what != "activations"]
    if waits and gradient == "push_pull":
        raise InputError(
            f"weights and the optimizer's state are at the servers under the runtime {runtime} but "
            f"--offload is {','.join(strategy.offload)}; leave {' and '.join(waits)} out"
        )


def room_in_host(cluster: Cluster, roles: Sequence[Role]) -> None:
    """Refuse what the memory of a host has no room for.

    Raises
    ------
    InputError
        When what waits there for the devices of a host is more.
    """
    hosts: dict[int, float] = {}
    for role in roles:
        number = role.first_device // cluster.devices_per_host
        devices = min(role.num_devices, cluster.devices_per_host)
        hosts[number] = hosts.get(number, 0.0) + role.host_memory * devices
    fullest, memory = max(hosts.values()), host_of(cluster).memory
    if fullest > memory:
        raise InputError(
            f"what waits in the memory of a host must fit in its {format_bytes(memory)} but is "
            f"{format_bytes(fullest)}; offload less, or cut it over more GPUs (--zero 3)"
        )
