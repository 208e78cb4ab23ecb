"""A network on a GPU as a worker of distributed SGD: seconds and bytes of every layer.

Layers are costed on one GPU, as for a plan of one GPU. In a host of several, GPUs work alike; the
gradients are all-reduced among them, and the parameters that come back are handed on, which is
taken as an all-gather of them; each layer takes its part of either by its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from costmodels.cluster import Cluster, Level, list_clusters, load_cluster, load_device
from costmodels.communication.collectives import all_gather_time, all_reduce_time
from costmodels.communication.topology import Topology
from costmodels.compute.coefficients import family_of
from costmodels.errors import InputError
from costmodels.notes import Note
from costmodels.throughput import WorkerProfile
from planner.notes import words
from planner.planning.space.costing import cost
from planner.planning.space.formulate import formulate
from planner.request.inputs.distributed import UPDATE_TIME
from planner.request.request import Request
from planner.request.setting import find_cluster, resolve
from planner.request.usual_strategies import Infeasible, strategy_distributions
from planner.simulation.notes import estimate_notes

Array = NDArray[np.float64]

# Hosts that stand for any GPUs on a PCIe bus.
PCIE_CLUSTER = "titanxp-pcie"


def profile_worker(
    request: Request, device: str
) -> tuple[WorkerProfile, tuple[str, ...], tuple[str, ...]]:
    """Profile a worker of a request for `planner.throughput`.

    Parameters
    ----------
    request
        What was asked: network, batch of a GPU, GPUs of a host, time of an update, and the like.
    device
        A built-in device.

    Returns
    -------
    The profile, what was chosen, and what its times rest on.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    (forward, backward, num_bytes, update), notes = _layer_costs(request, device)
    share = num_bytes / max(num_bytes.sum(), 1.0)
    gpus, chosen = request.gpus_per_host, []
    if request.update_time is None:
        chosen.append(UPDATE_TIME.chose())
    else:
        update = share * UPDATE_TIME.quantity(request.update_time)
    reduce, broadcast, where = _host_times(device, gpus, request.host, float(num_bytes.sum()))
    if where:
        chosen.append(where)
    profile = WorkerProfile(
        name=device,
        samples=float(request.batch_per_gpu * gpus),
        forward=forward,
        backward=backward,
        num_bytes=num_bytes,
        update=update,
        broadcast=share * broadcast,
        reduce=share * reduce,
    )
    return profile, tuple(chosen), tuple(map(words, notes))


def _layer_costs(request: Request, device: str) -> tuple[Iterator[Array], tuple[Note, ...]]:
    """Forward pass, backward pass, gradients and update of every layer on one GPU. [s], [B]

    Beside them notes on what these times rest on.
    """
    setting = resolve(
        replace(request, gpus=1, cluster=_lone_gpu(device), global_batch_size=request.batch_per_gpu)
    )
    alone = strategy_distributions(setting.graph, "data", setting.machine.topology.shape, 0)
    assert not isinstance(alone, Infeasible), "one GPU can always have all samples"
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=[alone],
        only_strategies=True,
    )
    rows = []
    choices = formulation.choices(alone)
    for layer, choice in zip(formulation.layers, choices, strict=True):
        costs = formulation.spaces[layer.name].costs
        arrays = (costs.forward_pass, costs.backward_pass, costs.gradients, costs.update)
        rows.append([array[choice] for array in arrays])
    notes = estimate_notes(cost(formulation, choices).sources, setting.machine)
    return iter(np.array(rows, dtype=float).T), notes


def _lone_gpu(device: str) -> Cluster:
    """A machine of one GPU; its link joins nothing."""
    one = load_device(device)
    precision = next(iter(one.peak_flops))
    level = Level(name="host", size=1, latency=0.0, bandwidth=1e9)
    return Cluster(
        name=device, device=one, levels=(level,), host_level="host", default_precision=precision
    )


def _host_times(
    device: str, gpus: int, host: str | None, num_bytes: float
) -> tuple[float, float, str]:
    """All-reduce and broadcast among the GPUs of a host, and whose links they are. [s]"""
    if gpus == 1:
        return 0.0, 0.0, ""
    chosen = _host_like(device, gpus) if host is None else host
    cluster = find_cluster(chosen)
    if gpus > cluster.devices_per_host:
        raise InputError(
            f"a host of {chosen} has {cluster.devices_per_host} GPUs but the workers are to have "
            f"{gpus}; lower --gpus-per-host or name another cluster with --host"
        )
    shape = cluster.shape(gpus)
    network = Topology.of(cluster, shape)
    reduce = float(all_reduce_time(network, shape, num_bytes))
    broadcast = float(all_gather_time(network, shape, num_bytes / gpus))
    text = f"{gpus} GPUs of a host joined as those of {chosen}"
    return reduce, broadcast, "" if host is not None else text


def _host_like(device: str, gpus: int) -> str:
    """The built-in cluster with the same kind of GPUs and the smallest hosts that are enough."""
    family = family_of(device)
    sizes = {}
    for name in list_clusters():
        cluster = load_cluster(name)
        alike = family is not None and family_of(cluster.device.name) == family
        if alike and cluster.devices_per_host >= gpus and cluster.devices_per_host % gpus == 0:
            sizes[name] = cluster.devices_per_host
    return min(sizes, key=lambda name: (sizes[name], name)) if sizes else PCIE_CLUSTER
