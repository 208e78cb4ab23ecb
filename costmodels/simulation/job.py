"""What is simulated: a network under a strategy, on a machine, as a framework runs it."""

from __future__ import annotations

from msgspec import Struct

from costmodels.cluster import Cluster
from costmodels.compute import ComputeModel
from costmodels.graph import Graph
from costmodels.simulation.runtimes import Runtime
from costmodels.step.training import Training
from costmodels.strategy import Strategy


class Job(Struct, frozen=True, kw_only=True, eq=False):
    """A step to simulate.

    Parameters
    ----------
    graph
        The network at the batch of one micro-batch.
    strategy
        How it is split and scheduled.
    cluster, shape
        The machine, and the devices used: members of each level, from the inside out. [items]
    compute
        Times of computation.
    training
        Options of the step.
    runtime
        How the framework runs it.
    decoding
        Time that a device decodes input before it computes. [s]
    links
        How links are taken, one of `LINK_MODELS`.
    beyond
        The devices of all replicas, where these are not all: their machine, and members of each
        level. Gradients and cut weights are exchanged with those of other hosts, too.
    """

    graph: Graph
    strategy: Strategy
    cluster: Cluster
    shape: tuple[int, ...]
    compute: ComputeModel
    training: Training
    runtime: Runtime
    decoding: float = 0.0
    links: str = "shared"
    beyond: tuple[Cluster, tuple[int, ...]] | None = None
