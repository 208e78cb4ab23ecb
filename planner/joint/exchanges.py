"""What collectives over the ranks that hold the same weights take, and messages between stages."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.collectives import send_recv_time
from costmodels.simulation.messages import StageLinks
from costmodels.strategy import Stage
from costmodels.strategy.usual import stage_shape
from planner.request.setting import Setting

Cut = tuple[int, ...]
Floats = NDArray[np.float64]


class Exchanges:
    """Times of exchanges of one question.

    Parameters
    ----------
    setting
        The question.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.whole = setting.machine.topology
        self.links: dict[int, StageLinks] = {}
        self.times: dict[tuple[object, ...], float] = {}
        self.sizes: dict[tuple[int, Cut], int] = {}
        # what is exchanged of each unit, see `planner.joint.stages`
        self.by_unit: dict[tuple[int, int], tuple[Floats, Floats]] = {}

    def _links(self, pp: int) -> StageLinks:
        """Links of the devices of a stage, of so many groups."""
        if pp not in self.links:
            shape = stage_shape(self.whole.shape, pp)
            stage = Stage(layers=(), first_device=0, shape=shape)
            training = self.setting.machine.training
            self.links[pp] = StageLinks(
                self.setting.cluster, self.whole.shape, stage, training.all_reduce
            )
        return self.links[pp]

    def group(self, pp: int, cut: Cut) -> tuple[int, ...]:
        """Ranks that hold the same weight where weights are cut like that. [items]"""
        shape = self._links(pp).topology.shape
        return tuple(max(size // ways, 1) for size, ways in zip(shape, cut, strict=True))

    def ranks(self, pp: int, cut: Cut) -> int:
        """How many those are. [items]"""
        key = (pp, cut)
        if key not in self.sizes:
            self.sizes[key] = math.prod(self.group(pp, cut))
        return self.sizes[key]

    def time(self, kind: str, pp: int, cut: Cut, num_bytes: float) -> float:
        """A collective over them. [s]

        Parameters
        ----------
        kind
            Of the collective.
        pp, cut
            Groups of devices, and how weights are cut.
        num_bytes
            The whole of what is exchanged. [B]
        """
        if num_bytes <= 0.0 or self.ranks(pp, cut) == 1:
            return 0.0
        key = (kind, pp, cut, num_bytes)
        if key not in self.times:
            message = self._links(pp).collective(kind, np.array(self.group(pp, cut)), num_bytes)
            self.times[key] = message.time
        return self.times[key]

    def send(self, pp: int, num_bytes: float) -> float:
        """A message from each device of a stage to the next stage. [s]

        Parameters
        ----------
        pp
            Groups of devices. [items]
        num_bytes
            Of each device. [B]
        """
        key = ("send", pp, num_bytes)
        if key not in self.times:
            inner = self._links(pp).topology.shape
            shape = self.whole.shape
            level = max(i for i, size in enumerate(inner) if size < shape[i])
            senders = min(math.prod(inner), int(self.whole.devices_below[level]))
            self.times[key] = float(send_recv_time(self.whole, level, num_bytes, senders))
        return self.times[key]
