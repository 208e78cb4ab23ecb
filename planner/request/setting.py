"""The inputs of a question, checked, with defaults filled in and said."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.topology import Topology
from costmodels.compute import ComputeModel, CostTable
from costmodels.graph import Graph, Network, build_graph
from costmodels.step.machine import Machine
from costmodels.step.memory import keeps_tensor
from costmodels.step.training import Training
from costmodels.units import parse_bytes
from planner.models import load_network

DEFAULT_CLUSTER = "dgx-a100"
DEFAULT_BATCH_PER_GPU = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """All inputs of a question, defaults filled in; of tables the SHA-256 of their files."""

    model: Network
    graph: Graph
    cluster: Cluster
    machine: Machine
    batch: int
    gpus: int
    defaults: tuple[str, ...]
    tables: tuple[str, ...]


def _default_batch(model: Network, cluster: Cluster, gpus: int, activation_size: int) -> int:
    """32 samples a GPU, halved until the activations of data parallelism take half the memory."""
    graph = build_graph(model, 1)
    kept = sum(
        layer.output.size * keeps_tensor(graph, layer.name) * activation_size + layer.saved_bytes
        for layer in graph.layers.values()
    )
    batch = DEFAULT_BATCH_PER_GPU * gpus
    while batch > 1 and batch / gpus * kept > 0.5 * cluster.device.usable_memory:
        batch //= 2
    return batch


def resolve(
    model: str | Network,
    *,
    gpus: int,
    cluster: str | Cluster | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    input_size: int | None = None,
    memory: str | float | None = None,
    halo_overlap: bool = True,
    always_cut: bool = False,
    gradient_overlap: bool = True,
    all_reduce: str = "auto",
    bucket_bytes: float | None = None,
    memory_model: str = "liveness",
    launch_time: float | None = None,
    winograd: bool = True,
    tables: Sequence[str | os.PathLike[str]] = (),
) -> Setting:
    """Check the inputs of a question and fill in the defaults."""
    defaults = []
    if cluster is None:
        cluster = DEFAULT_CLUSTER
        defaults.append(f"cluster {DEFAULT_CLUSTER}, since none was given")
    if isinstance(cluster, str):
        cluster = load_cluster(cluster)
    if memory is not None:
        size = parse_bytes(memory) if isinstance(memory, str) else float(memory)
        cluster = replace(cluster, device=replace(cluster.device, memory=size))
    shape = cluster.shape(gpus)
    network = load_network(model, input_size) if isinstance(model, str) else model
    if precision is None:
        precision = cluster.default_precision
        defaults.append(f"precision {precision}, the usual one on {cluster.name}")
    if optimizer is None:
        optimizer = "sgd"
        defaults.append("optimizer sgd with momentum")
    training = Training(
        precision=precision,
        optimizer=optimizer,
        halo_overlap=halo_overlap,
        always_cut=always_cut,
        gradient_overlap=gradient_overlap,
        all_reduce=all_reduce,
        memory_model=memory_model,
        winograd=winograd,
        **_given(bucket_bytes=bucket_bytes, launch_time=launch_time),
    )
    if global_batch_size is None:
        global_batch_size = _default_batch(network, cluster, gpus, training.activation_size)
        defaults.append(
            f"global batch of {global_batch_size} samples ({global_batch_size / gpus:g} a GPU)"
        )
    graph = build_graph(network, global_batch_size)
    machine = Machine(
        topology=Topology.of(cluster, shape),
        compute=_compute_model(cluster, training, tables),
        training=training,
    )
    return Setting(
        model=network,
        graph=graph,
        cluster=cluster,
        machine=machine,
        batch=global_batch_size,
        gpus=gpus,
        defaults=tuple(defaults),
        tables=tuple(hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in tables),
    )


def _given(**options: float | None) -> dict[str, float]:
    """The options that were given; the others keep their defaults."""
    return {key: value for key, value in options.items() if value is not None}


def _compute_model(
    cluster: Cluster, training: Training, tables: Sequence[str | os.PathLike[str]]
) -> ComputeModel:
    return ComputeModel(
        cluster.device,
        training.precision,
        tables=tuple(CostTable.load(path) for path in tables),
        winograd=training.winograd,
    )
