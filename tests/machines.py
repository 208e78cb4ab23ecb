"""Small machines and networks whose costs can be worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from costmodels.cluster import Cluster, Device, Level
from costmodels.communication.topology import Topology
from costmodels.compute import ComputeModel, Work
from costmodels.graph import Graph, LayerSpec, Network, build_graph
from costmodels.step.machine import Machine
from costmodels.step.training import Training

ALPHA = 10e-6
BANDWIDTH = 10e9
FLOP_RATE = 10e12
UPDATE_RATE = 100e9


def device(memory: float = 16 * 2**30, **changes: Any) -> Device:
    plain = Device(
        name="test",
        memory=memory,
        reserved_memory=0.0,
        peak_flops={"fp32": FLOP_RATE, "fp16": FLOP_RATE},
        memory_bandwidth=900e9,
        num_sms=80,
        kernel_latency=0.0,
    )
    return replace(plain, **changes)


def cluster(*sizes: int, host: int = 0, memory: float = 16 * 2**30, **link: Any) -> Cluster:
    """Levels of the given sizes with the same plain links: one alpha, one beta, a switch."""
    plain: dict[str, Any] = {"latency": ALPHA, "bandwidth": BANDWIDTH, **link}
    levels = tuple(Level(name=f"level{i}", size=n, **plain) for i, n in enumerate(sizes))
    return Cluster(
        name="test",
        device=device(memory),
        levels=levels,
        host_level=levels[host].name,
        default_precision="fp32",
    )


def topology_of(*sizes: int, host: int = 0, **link: Any) -> Topology:
    """All of a cluster of these sizes."""
    return Topology.of(cluster(*sizes, host=host, **link), sizes)


class LinearCompute(ComputeModel):
    """Time in proportion to the work, so that dividing work divides time; the rest is free."""

    def time(self, work: Work) -> tuple[Any, Any]:
        seconds = np.atleast_1d(work.flops / FLOP_RATE)
        if work.operation.endswith("_update"):
            seconds = np.atleast_1d(work.samples / UPDATE_RATE)
        return seconds, np.zeros(seconds.shape, dtype=np.int8)


def machine(where: Cluster, shape: Sequence[int] | None = None, **options: Any) -> Machine:
    """The whole cluster, or the given shape of it, with linear compute and no host code."""
    training = Training(**{"launch_time": 0.0, **options})
    used = tuple(level.size for level in where.levels) if shape is None else tuple(shape)
    return Machine(
        topology=Topology.of(where, used),
        compute=LinearCompute(where.device, training.precision),
        training=training,
    )


Row = tuple[str, str, Mapping[str, Any]] | tuple[str, str, Mapping[str, Any], Sequence[str]]


def graph(input_shape: Mapping[str, int], rows: Sequence[Row], batch: int) -> Graph:
    """A graph of (name, kind, options[, inputs]); a row without inputs reads the one before."""
    specs, last = [], "input"
    for name, kind, options, *inputs in rows:
        sources = tuple(inputs[0]) if inputs else (last,)
        specs.append(LayerSpec(name=name, kind=kind, inputs=sources, options=dict(options)))
        last = name
    network = Network(name="test", input_shape=dict(input_shape), layers=tuple(specs))
    return build_graph(network, batch)
