"""What no step on hosts of several kinds takes less than, however its work is shared out.

Each layer costs each kind of device some time for a sample, with many samples at once, when none of
it is split. All work on all samples must be done by devices, none for longer than the step. That is
a linear program over how much of each layer which kind does, which any prices of their times bound
from below; they are the rates at which each kind could train the whole network.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.topology import Topology
from costmodels.step.machine import Machine
from planner.joint.hosts import on_groups
from planner.joint.reduced import Reduced
from planner.planning.bounds.left_out import LayerComputation
from planner.request.setting import Setting
from planner.request.training_graphs import training_graph
from planner.simulation.run import waiting_time

Floats = NDArray[np.float64]
# Samples at once with which kernels take the least time for each. [samples]
MANY = 4096
# Part by which kernels may still be quicker with other numbers of samples.
ROUNDING = 1e-3


def least_work(setting: Setting) -> float:
    """What no step takes less than, by computation alone. [s]"""
    work, rates = _priced_work(setting)
    return work / float(rates.sum())


def least_step(setting: Setting) -> float:
    """What no step takes less than, by computation and waiting for the slowest of all devices. [s]

    Fewer devices that work wait less for each other: the fastest ones, whatever their number.
    """
    work, rates = _priced_work(setting)
    numbers = np.arange(1, len(rates) + 1)
    waits = np.array([1.0 + waiting_time(1.0, int(count)) for count in numbers])
    return float((work * waits / np.cumsum(rates)).min())


def _priced_work(setting: Setting) -> tuple[float, Floats]:
    """All work of a step at prices of the devices' time, and what each is paid, the fastest first.

    Both are in rates at which a kind of device could train the whole network.
    """
    names = [group.name for group in setting.cluster.groups]
    alone = [on_groups(setting, (name,)) for name in names] or [setting]
    each = np.stack([_of_sample(one) for one in alone])
    prices = 1.0 / each.sum(axis=1)
    least = float((each * prices[:, None]).min(axis=0).sum())
    rates = np.repeat(prices, [one.gpus for one in alone])
    return setting.batch * least * (1.0 - ROUNDING), np.sort(rates)[::-1]


def _of_sample(setting: Setting) -> Floats:
    """Both passes of every layer over a sample on one device. [s]"""
    cluster, reduced = setting.cluster, Reduced.of(setting.model, setting.graph)
    topology = Topology.of(cluster, tuple(1 for _ in cluster.levels))
    machine = Machine(
        topology=topology, compute=setting.machine.compute, training=setting.machine.training
    )
    graph = training_graph(reduced.network, MANY, machine.training)
    known: dict[str, float] = {}
    for layer in graph.compute_layers:
        wanted = graph.input_gradients(layer.name)
        known[layer.name] = float(LayerComputation.of(layer, machine, wanted).passes.min())
    rows = [known[reduced.like[layer.name]] for layer in setting.graph.compute_layers]
    return np.array(rows) / MANY
