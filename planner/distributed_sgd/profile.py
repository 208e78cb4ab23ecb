"""A network on a GPU as a worker of distributed SGD: seconds and bytes of every layer.

Layers are costed on one GPU, as for a plan of one GPU. In a host of several, GPUs work alike; the
gradients are all-reduced among them, and the parameters that come back are handed on, which is
taken as an all-gather of them; each layer takes its part of either by its bytes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from costmodels.cluster import Cluster, Level, list_clusters, load_cluster, load_device
from costmodels.communication.collectives import all_gather_time, all_reduce_time
from costmodels.communication.topology import Topology
from costmodels.compute.coefficients import family_of
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.throughput import WorkerProfile
from planner.planning.formulate import formulate
from planner.request.setting import resolve
from planner.request.usual_strategies import Infeasible, strategy_distributions

# Hosts that stand for any GPUs on a PCIe bus.
PCIE_CLUSTER = "titanxp-pcie"


def profile_worker(
    model: str | Network,
    *,
    device: str,
    batch: int,
    precision: str,
    optimizer: str = "sgd",
    gpus_per_host: int = 1,
    host: str | None = None,
    update_time: float | None = None,
    launch_time: float | None = None,
    input_size: int | None = None,
    tables: Sequence[str | os.PathLike[str]] = (),
) -> tuple[WorkerProfile, tuple[str, ...]]:
    """Profile a worker, and say what was chosen.

    Parameters
    ----------
    model, batch, gpus_per_host, host, update_time
        As of `planner.throughput`.
    device
        A built-in device.
    precision, optimizer, launch_time, input_size, tables
        As of `planner.optimize`.

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    if gpus_per_host < 1:
        raise InputError(
            f"a host must have at least 1 GPU but has {gpus_per_host}; raise --gpus-per-host"
        )
    if update_time is not None and not 0.0 <= update_time < float("inf"):
        raise InputError(
            f"the time of an update must be at least 0 s but is {update_time:g} s; correct it"
        )
    setting = resolve(
        model,
        gpus=1,
        cluster=_alone(device),
        global_batch_size=batch,
        precision=precision,
        optimizer=optimizer,
        launch_time=launch_time,
        input_size=input_size,
        tables=tables,
    )
    given = strategy_distributions(setting.graph, "data", setting.machine.topology.shape, 0)
    assert not isinstance(given, Infeasible), "one GPU can always have all samples"
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        strategies=[given],
        only_strategies=True,
        cap=10**9,
    )
    rows = []
    for layer, choice in zip(formulation.layers, formulation.choices(given), strict=True):
        costs = formulation.spaces[layer.name].costs
        rows.append([costs.forward_pass, costs.backward_pass, costs.gradients, costs.update])
        rows[-1] = [array[choice] for array in rows[-1]]
    forward, backward, num_bytes, update = np.array(rows, dtype=float).T
    share = num_bytes / max(num_bytes.sum(), 1.0)
    notes = []
    if update_time is None:
        notes.append("time of an update as costed on the GPU of the first kind of workers")
    reduce, broadcast, where = _host_times(device, gpus_per_host, host, float(num_bytes.sum()))
    if where:
        notes.append(where)
    profile = WorkerProfile(
        name=device,
        samples=float(batch * gpus_per_host),
        forward=forward,
        backward=backward,
        num_bytes=num_bytes,
        update=update if update_time is None else share * update_time,
        broadcast=share * broadcast,
        reduce=share * reduce,
    )
    return profile, tuple(notes)


def _alone(device: str) -> Cluster:
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
    cluster = load_cluster(chosen)
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
