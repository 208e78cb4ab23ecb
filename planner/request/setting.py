"""A request with its network and machine found, and defaults filled in and said."""

from __future__ import annotations

import dataclasses
import math
import os

from msgspec import Struct
from msgspec.structs import replace

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.calibration import fitted_links
from costmodels.communication.curves import with_curves
from costmodels.communication.topology import Topology
from costmodels.compute import CostTable
from costmodels.errors import InputError
from costmodels.graph import Graph, Network
from costmodels.simulation.executions import executed
from costmodels.simulation.runtime_files import load_runtime
from costmodels.simulation.runtimes import Runtime
from costmodels.step.machine import Machine
from costmodels.step.training import Training
from costmodels.units import format_bytes
from planner.errors import ConflictError, InfeasibleError
from planner.models import load_network, padded_vocabulary, resized, with_capacity
from planner.plan import Plan
from planner.request.computing import compute_model
from planner.request.default_batch import default_batch, has_attention
from planner.request.frameworks import FRAMEWORKS, splittable_by
from planner.request.inputs.counts import parse_counts
from planner.request.inputs.question import (
    AUTO,
    BUCKET_BYTES,
    CLUSTER,
    DEFAULT_CLUSTER,
    EXECUTION,
    GLOBAL_BATCH_SIZE,
    LAUNCH_TIME,
    MEMORY,
    OPTIMIZER,
    PRECISION,
    TRAINING,
)
from planner.request.machine import detect_cluster
from planner.request.request import Request
from planner.request.sources import file_of_another_kind
from planner.request.training_graphs import training_graph

DEFAULT_RUNTIME = "ddp"


class Setting(Struct, frozen=True, kw_only=True):
    """A network on a machine, with every default filled in.

    Parameters
    ----------
    model, graph
        The network, and its layers at the global batch.
    cluster, machine
        The machine, and what costing needs of it.
    batch, gpus
        Global batch and number of GPUs. [samples], [items]
    defaults
        What was chosen, since it was not given, a sentence each.
    limit
        The limit on memory that is asked for. [B]
    request
        What was asked for, None where the setting was put together.
    """

    model: Network
    graph: Graph
    cluster: Cluster
    machine: Machine
    batch: int
    gpus: int
    defaults: tuple[str, ...]
    limit: float = math.inf
    request: Request | None = None

    def under(self, runtime: Runtime) -> Setting:
        """The same question under a runtime, which decides some options of the step.

        Parameters
        ----------
        runtime
            The runtime, unless another one was asked for.
        """
        if self.request is None or self.request.runtime is not None:
            return self
        request = dataclasses.replace(
            self.request,
            runtime=runtime,
            source=self.model,
            cluster=self.cluster,
            global_batch_size=self.batch,
            input_size=None,
            vocab_padding=None,
            expert_capacity=None,
            tables=(),
        )
        other = resolve(request)
        machine = replace(self.machine, training=other.machine.training)
        return replace(self, graph=other.graph, machine=machine)

    def on(self, cluster: Cluster, gpus: int) -> Setting:
        """The same question on other devices, with the same batch.

        Parameters
        ----------
        cluster, gpus
            What they are part of, and how many they are. [items]
        """
        training, request = self.machine.training, self.request
        if request is not None:
            request = dataclasses.replace(request, cluster=cluster, gpus=gpus)
            count = find_runtime(request).forward_launches(_in_a_host(cluster, gpus))
            training = replace(training, forward_launches=count)
        topology = Topology.of(cluster, cluster.shape(gpus))
        machine = replace(self.machine, topology=topology, training=training)
        return replace(self, cluster=cluster, gpus=gpus, machine=machine, request=request)

    @property
    def asked_runtime(self) -> Runtime | None:
        """The runtime that was asked for, None where none was."""
        asked = self.request is not None and self.request.runtime is not None
        return find_runtime(self.request) if asked and self.request is not None else None

    def check_reserve(self) -> None:
        """That the limit on memory leaves something of a device to a plan.

        The last of what may be refused: what is no question has no plan either, but that is no
        proof.

        Raises
        ------
        InfeasibleError
            When it is no more than what the framework reserves.
        """
        reserve = self.cluster.device.reserved_memory
        if self.limit <= reserve:
            reserved = format_bytes(reserve)
            raise InfeasibleError(
                f"no plan fits in memory: the framework alone reserves {reserved} of a device, and "
                f"--memory is {format_bytes(self.limit)}; give more than {reserved}",
                missing_bytes=reserve - self.limit,
                layer="",
            )

    @property
    def tables(self) -> tuple[CostTable, ...]:
        """The tables of measured times."""
        return self.machine.compute.tables


def find_cluster(cluster: str | Cluster | None) -> Cluster:
    """The machine of a request: a built-in one, one from a file, the one found, or the default.

    Raises
    ------
    InputError
        When there is no such cluster, or its file is wrong.
    """
    return _found_cluster(cluster)[0]


def _found_cluster(cluster: str | Cluster | None) -> tuple[Cluster, tuple[str, ...]]:
    """The machine of a request, and what is worth knowing of how it was found."""
    if isinstance(cluster, Cluster):
        return cluster, ()
    if cluster == AUTO:
        detected = detect_cluster()
        return detected.cluster, detected.notes
    return load_cluster(DEFAULT_CLUSTER if cluster is None else cluster), ()


def gpu_counts(request: Request, cluster: Cluster) -> tuple[int, ...]:
    """The numbers of GPUs of a request for several; of a range those that the cluster has.

    Raises
    ------
    InputError
        When they are no such numbers, or the cluster does not have one.
    """
    counts = parse_counts(
        request.counts, what="GPUs", most=cluster.num_devices, possible=cluster.can_use
    )
    if not counts:
        raise InputError.rule(
            "the numbers of GPUs",
            f"include one that {cluster.name} has",
            repr(request.counts),
            f"use some from 1 to {cluster.num_devices}",
        )
    for count in counts:
        cluster.shape(count)  # refused before the first one is planned for
    return counts


def find_network(request: Request) -> Network:
    """The network of a request: a built-in one, one from a file, or the one given.

    Raises
    ------
    InputError
        When there is no such network, it cannot have that input size, or the file is wrong.
    """
    network = _named_network(request)
    if request.vocab_padding is not None:
        network = padded_vocabulary(network, request.vocab_padding)
    if request.expert_capacity is not None:
        network = with_capacity(network, request.expert_capacity)
    return network


def _named_network(request: Request) -> Network:
    """The network of a request as it is published, at the input size that is asked for."""
    if isinstance(request.source, Network):
        return resized(request.source, request.input_size)
    if isinstance(request.source, Plan):
        raise InputError(
            f"a network must be given but this is a plan, for {request.source.model}; simulate it, "
            "or give its network"
        )
    path = os.fspath(request.source)
    try:
        return load_network(path, request.input_size)
    except InputError:
        other = file_of_another_kind(path)
        if other is None:
            raise
    raise InputError(
        f"the network must be a built-in one or a network file but {path} is {other}; simulate it, "
        "or give its network"
    )


def resolve(request: Request, multiple: int = 1) -> Setting:
    """Find the network and the machine of a request, and fill in the defaults.

    Parameters
    ----------
    request
        What is asked for.
    multiple
        Of what the batch is a multiple where none is given. [samples]

    Raises
    ------
    InputError
        When an input cannot be used.
    """
    gpus = request.num_gpus
    tables = tuple(
        table if isinstance(table, CostTable) else CostTable.load(table) for table in request.tables
    )
    cluster, found = _found_cluster(request.cluster)
    cluster = cluster.used(gpus)
    for table in tables:
        if table.collectives:
            cluster = fitted_links(cluster, table.collectives, table.name)
        if table.curves:
            cluster = with_curves(cluster, table.curves)
    network = find_network(request)
    training = _training(request, cluster, network)
    limit = math.inf if request.memory is None else MEMORY.quantity(request.memory)
    if cluster.device.reserved_memory < limit < math.inf:
        cluster = cluster.with_memory(limit)
    batch = request.global_batch_size
    if batch is None:
        batch = default_batch(network, cluster, gpus, training.activation_size)
        batch = max(batch // multiple, 1) * multiple
    machine = Machine(
        topology=Topology.of(cluster, cluster.shape(gpus)),
        compute=compute_model(cluster, training, network, tables),
        training=training,
    )
    return Setting(
        model=network,
        graph=splittable_by(training_graph(network, batch, training), request.framework),
        cluster=cluster,
        machine=machine,
        batch=batch,
        gpus=gpus,
        defaults=(*found, *_chosen(request, cluster, training, batch)),
        limit=limit,
        request=request,
    )


def _training(request: Request, cluster: Cluster, network: Network) -> Training:
    """Options of the step; what is not asked for is as the runtime or `Training` has it."""
    options = {one.name: getattr(request, one.name) for one in TRAINING}
    runtime = executed(find_runtime(request), options["execution"] or str(EXECUTION.usual))
    usual = load_runtime(DEFAULT_RUNTIME).launch_time
    for name, value in {"launch_time": usual, **runtime.decided}.items():
        options[name] = value if options.get(name) is None else options[name]
    if request.precision is None:
        options["precision"] = cluster.default_precision
    if request.optimizer is None:
        # whoever forgets to ask would otherwise read half the memory of a transformer's states
        usual_one = "adam" if has_attention(network) else "sgd"
        framework = FRAMEWORKS.get(request.framework or "")
        known = framework.optimizers if framework is not None else ()
        options["optimizer"] = usual_one if usual_one in (known or (usual_one,)) else known[0]
    for quantity in (BUCKET_BYTES, LAUNCH_TIME):
        if options[quantity.name] is not None:
            options[quantity.name] = quantity.quantity(options[quantity.name])
    local = _in_a_host(cluster, request.num_gpus)
    training = Training(**{name: value for name, value in options.items() if value is not None})
    return replace(
        training,
        forward_launches=runtime.forward_launches(local),
        fuses=runtime.fusions(training.precision),
        channels_last=runtime.channels_last,
    )


def _in_a_host(cluster: Cluster, gpus: int) -> int:
    """Devices of a host that work. [items]"""
    return math.prod(cluster.shape(gpus)[: cluster.host_index + 1])


def find_runtime(request: Request) -> Runtime:
    """The runtime of a request, the usual one by default, with its parameter servers if given.

    Raises
    ------
    InputError
        When there is no such runtime, or it has no parameter servers.
    """
    runtime, servers = request.runtime, request.servers
    if runtime is None:
        runtime = DEFAULT_RUNTIME if servers is None else "ps-sync"
    found = load_runtime(runtime) if isinstance(runtime, str) else runtime
    if servers is None:
        return found
    if found.gradient != "push_pull":
        raise ConflictError(
            f"the runtime {found.name} has no parameter servers; leave --servers out, or use "
            "--runtime ps-sync"
        )
    return replace(found, servers=servers)


def _chosen(request: Request, cluster: Cluster, training: Training, batch: int) -> tuple[str, ...]:
    """What was chosen, since it was not given, a sentence each."""
    values = {
        "cluster": cluster.name,
        "precision": training.precision,
        "optimizer": training.optimizer,
        "batch": batch,
        "per_gpu": batch / request.num_gpus,
    }
    return tuple(
        one.chose(**values)
        for one in (CLUSTER, PRECISION, OPTIMIZER, GLOBAL_BATCH_SIZE)
        if getattr(request, one.name) is None
    )
