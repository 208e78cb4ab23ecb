"""The distinct blocks of a network on the devices of one replica, for each way to split them."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import NamedTuple

from msgspec.structs import replace

from costmodels.communication.topology import Topology
from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.simulation.shared_pieces import KnownPieces
from costmodels.strategy import Strategy
from planner.joint.reduced import Reduced
from planner.request.by_degrees import strategy_by_degrees
from planner.request.parts import Degrees
from planner.request.setting import Setting
from planner.request.training_graphs import training_graph


class SplitNetwork(NamedTuple):
    """The distinct blocks on the devices of one replica, how they are split, and their costs."""

    setting: Setting
    strategy: Strategy
    known: KnownPieces


class SplitNetworks:
    """The network of one question on the devices of one replica, by how it is split.

    Parameters
    ----------
    setting, reduced
        The question, and its network without repeated blocks.
    zero
        The stage of ZeRO, where the runtime has another one.
    """

    def __init__(self, setting: Setting, reduced: Reduced, zero: int | None) -> None:
        self.setting, self.network, self.zero = setting, reduced.network, zero
        self.graphs: dict[tuple[int, int], tuple[Graph, KnownPieces]] = {}
        self.accepted: set[Degrees] = set()
        self.refused: dict[Degrees, str] = {}

    def of(self, degrees: Degrees, samples: int) -> SplitNetwork:
        """The network of a replica on a micro-batch.

        Parameters
        ----------
        degrees
            Of tensor, context and expert parallelism.
        samples
            Of a replica in a micro-batch. [samples]

        Raises
        ------
        InputError
            When the degrees do not fit the network, whatever the samples.
        """
        if degrees in self.refused:
            raise InputError(self.refused[degrees])
        setting = self.setting
        # experts lie on ranks of other samples
        dp = degrees.expert_replicas
        gpus, batch = degrees.tp * degrees.cp * dp, samples * dp
        if (gpus, batch) not in self.graphs:
            graph = training_graph(self.network, batch, setting.machine.training)
            self.graphs[gpus, batch] = (graph, {})
        graph, known = self.graphs[gpus, batch]
        topology = Topology.of(setting.cluster, setting.cluster.shape(gpus))
        machine = replace(setting.machine, topology=topology)
        small = replace(
            setting, model=self.network, graph=graph, machine=machine, batch=batch, gpus=gpus
        )
        try:
            strategy, _, _ = strategy_by_degrees(
                small, dataclasses.replace(degrees, dp=dp, zero=self.zero)
            )
        except InputError as error:
            self.refused[degrees] = str(error)
            raise
        self.accepted.add(degrees)
        return SplitNetwork(small, strategy, known)

    def refuses(self, degrees: Degrees) -> bool:
        """Whether the network cannot be split so, as of `of`."""
        if degrees not in self.accepted and degrees not in self.refused:
            with suppress(InputError):
                self.of(degrees, 1)
        return degrees in self.refused
