"""What a communication takes, and how much of which links it fills while its bytes flow.

Times are those of `costmodels.communication`, in which the groups of one kind share links already.
What is added here is the part of every link that such a communication fills, so that those of
different kinds, or of different stages, can share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodels.cluster import Cluster
from costmodels.communication.collectives import (
    all_gather_time,
    all_to_all_time,
    reduce_scatter_time,
    send_recv_time,
)
from costmodels.communication.topology import Topology
from costmodels.simulation.execution import Link
from costmodels.step.timeline import gradient_time
from costmodels.strategy import Stage

Floats = NDArray[np.float64]
OUT, IN = 0, 1
# How links are taken: with what they achieve, shared by the groups that use them at once; the
# same, but each group alone (Proteus without its detector of runtime behaviour); or by their
# nominal bandwidth only, as FlexFlow's simulator takes them.
LINK_MODELS = ("shared", "alone", "nominal")
# Passes that the buffer makes over the links of its group.
_PASSES = {"all_reduce": 2.0, "reduce_scatter": 1.0, "all_gather": 1.0, "all_to_all": 1.0}
# A message so small that only its fixed time counts. [B]
_NO_BYTES = 1e-3


class Message(NamedTuple):
    """A communication: what it takes before and while its bytes flow, and what it fills. [s]

    A collective also has its ranks: those of the first host, and all others; none for messages
    between two.
    """

    seconds: float
    transfer: float
    loads: tuple[tuple[Link, float], ...]
    ranks: tuple[int, int] = (0, 0)

    @property
    def time(self) -> float:
        """All of it, with the links for itself. [s]"""
        return self.seconds + self.transfer


NO_MESSAGE = Message(0.0, 0.0, ())
# Collectives of stages on the same part of a cluster, wherever they are in it, as long as there are
# no more. [items]
MOST_KNOWN = 2**16
_COLLECTIVES: WeakKeyDictionary[Topology, dict[tuple[object, ...], Message]] = WeakKeyDictionary()


class StageLinks:
    """The links that the devices of one stage use.

    Parameters
    ----------
    cluster
        The machine.
    shape
        Devices of the whole job: members of each level, from the inside out. [items]
    stage
        The stage.
    algorithm
        All-reduce algorithm, as of `Training.all_reduce`.
    links
        How links are taken, one of `LINK_MODELS`.
    """

    def __init__(
        self,
        cluster: Cluster,
        shape: tuple[int, ...],
        stage: Stage,
        algorithm: str = "auto",
        links: str = "shared",
    ) -> None:
        self.whole, self.shape = cluster, shape
        self.groups = cluster.groups_of(stage.first_device, stage.num_devices)
        self.cluster = cluster.under(*self.groups)
        self.links = links
        self.job = Topology.of(cluster, shape)
        self.topology = Topology.of(self.cluster, stage.shape)
        self.stage = stage
        self.algorithm = algorithm

    def child(self, level: int, device: int | None = None) -> int:
        """Which child of a level a device is below; the first of the stage by default."""
        first = self.stage.first_device if device is None else device
        return first // int(self.job.devices_below[level])

    def collective(self, kind: str, group: ArrayLike, num_bytes: float) -> Message:
        """A collective of all groups of one kind in the stage.

        Parameters
        ----------
        kind
            "all_reduce", "reduce_scatter", "all_gather" or "all_to_all".
        group
            Members at each level. [items]
        num_bytes
            The whole buffer: what each member has before a reduction, or after a gathering. [B]
        """
        members = tuple(map(int, np.asarray(group)))
        if num_bytes <= 0.0 or math.prod(members) == 1:
            return NO_MESSAGE
        known = _COLLECTIVES.setdefault(self.topology, {})
        key = (kind, self.algorithm, self.links, members, num_bytes)
        if key not in known:
            if len(known) == MOST_KNOWN:
                known.clear()
            known[key] = self._collective(kind, np.array(members), num_bytes)
        found = known[key]
        loads = [((level, self.child(level), way), part) for (level, _, way), part in found.loads]
        return found._replace(loads=tuple(loads))

    def _collective(self, kind: str, members: NDArray[np.int64], num_bytes: float) -> Message:
        """As `collective`, with the first child of each level, wherever the stage is."""
        size = int(members.prod())
        near = int(members[self.topology.inside_host].prod())
        ranks = (near, size - near)
        if self.links == "nominal":
            slowest = float(self.topology.link_bandwidth[np.flatnonzero(members > 1)].min())
            part = _PASSES[kind] * (size - 1) / size
            return Message(0.0, part * num_bytes / slowest, (), ranks)
        times = self._times(kind, members)(np.array([num_bytes, _NO_BYTES]))
        seconds = float(min(times))
        transfer = float(times[0]) - seconds
        loads: list[tuple[Link, float]] = []
        if transfer > 0.0:
            below = members.cumprod() // members
            groups = self.topology.devices_below / below
            traffic = _PASSES[kind] * num_bytes * (size - 1) / size * groups
            busy = traffic / self.topology.child_bandwidth / transfer
            for level in np.flatnonzero(members > 1):
                part = min(float(busy[level]), 1.0)
                loads += [((int(level), 0, OUT), part), ((int(level), 0, IN), part)]
        return Message(seconds, transfer, tuple(loads), ranks)

    def one_way(self, group: ArrayLike) -> float:
        """How many times as fast bytes flow one way as both ways at once, in a group of devices.

        Parameters
        ----------
        group
            Members at each level. [items]
        """
        used = np.flatnonzero(np.asarray(group) > 1)
        if self.links == "nominal" or not len(used):
            return 1.0
        level = self.cluster.levels[int(used[-1])]
        return (level.one_way_bandwidth or level.bandwidth) / level.bandwidth

    def _times(self, kind: str, members: NDArray[np.int64]) -> Callable[[Floats], Floats]:
        groups = np.stack([members, members])
        topology = self.topology
        if self.links == "alone":
            topology = Topology.of(self.cluster, tuple(int(n) for n in members))
        if kind == "all_reduce":
            return lambda sizes: gradient_time(topology, groups, sizes, self.algorithm)
        if kind == "reduce_scatter":
            return lambda sizes: reduce_scatter_time(topology, groups, sizes)
        if kind == "all_gather":
            return lambda sizes: all_gather_time(topology, groups, sizes / members.prod())
        return lambda sizes: all_to_all_time(topology, groups, sizes)

    def moved(self, seconds: float, latency: float) -> Message:
        """Messages between neighbours of the stage, whose time is known. [s]"""
        if seconds <= 0.0:
            return NO_MESSAGE
        fixed = min(latency, seconds)
        spread = [level for level, n in enumerate(self.topology.shape) if n > 1]
        loads = [((n, self.child(n), way), 1.0) for n in spread[-1:] for way in (OUT, IN)]
        return Message(fixed, seconds - fixed, tuple(loads))

    def to_stage(self, target: StageLinks, num_bytes: float) -> Message:
        """A message from every device of this stage to its like in another one.

        Parameters
        ----------
        target
            Links of the other stage.
        num_bytes
            What each device sends. [B]
        """
        if num_bytes <= 0.0:
            return NO_MESSAGE
        job = self._between(target)
        below, first, other = job.devices_below, self.stage.first_device, target.stage.first_device
        # the level at which the two are below one parent
        level = next(
            n
            for n, size in enumerate(job.shape)
            if first // (below[n] * size) == other // (below[n] * size)
        )
        senders = min(self.stage.num_devices, int(below[level]))
        if self.links == "nominal":
            return Message(0.0, num_bytes / float(job.link_bandwidth[level]), ())
        if self.links == "alone":
            senders = 1
        time = float(send_recv_time(job, level, num_bytes, senders))
        seconds = float(send_recv_time(job, level, _NO_BYTES, senders))
        transfer = time - seconds
        if transfer <= 0.0:
            return Message(time, 0.0, ())
        filled = senders * num_bytes / float(job.child_bandwidth[level]) / transfer
        part = min(filled, 1.0)
        loads = (
            ((level, self.child(level), OUT), part),
            ((level, target.child(level), IN), part),
        )
        return Message(seconds, transfer, loads)

    def _between(self, target: StageLinks) -> Topology:
        """The links between two stages: those of the slower group of hosts."""
        if not self.whole.groups or self.groups == target.groups == self.whole.groups:
            return self.job
        both = [g for g in self.whole.groups if g in self.groups or g in target.groups]
        return Topology.of(self.whole.under(*both), self.shape)

    @property
    def ranks(self) -> int:
        """Devices of the stage. [items]"""
        return math.prod(self.stage.shape)
