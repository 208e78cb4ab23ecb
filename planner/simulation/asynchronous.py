"""Workers that do not wait for each other: their throughput by Algorithm 1 of Li et al. 2022."""

from __future__ import annotations

import math

import numpy as np

from costmodels.errors import InputError
from costmodels.notes import Note
from costmodels.simulation import Compiler, Job, Runtime
from costmodels.throughput import Links, WorkerClass, WorkerProfile, simulate_workers


def asynchronous_step(compiler: Compiler, runtime: Runtime, batch: int) -> tuple[float, Note]:
    """Time in which all workers together train on a batch, and a sentence on how it was found.

    A worker is a host whose devices add up their gradients, or a device where they do not. [s]

    Parameters
    ----------
    compiler
        The job, compiled.
    runtime
        Its runtime, not synchronous.
    batch
        Samples that all workers train on in a step each. [samples]

    Raises
    ------
    InputError
        When a worker would not hold the whole network, or not take its batch at once.
    """
    job = compiler.job
    _require_whole_networks(compiler)
    devices, local = job.strategy.num_devices, _devices_per_host(job)
    hosts = devices // local
    workers = hosts if runtime.local_reduce else devices
    links = Links(
        bandwidth=_link_bandwidth(compiler, runtime, hosts),
        servers=runtime.servers or hosts,
    )
    found = simulate_workers(
        [WorkerClass(profile=_profile_job(compiler, runtime, batch / workers), count=workers)],
        links,
        synchronous=False,
        overlap=runtime.overlap and job.training.gradient_overlap,
    )
    note = Note.of(
        "asynchronous",
        workers=workers,
        servers=links.servers,
        utilisation=found.utilisation,
    )
    return batch / found.throughput, note


def _require_whole_networks(compiler: Compiler) -> None:
    """Refuse a strategy by which workers hold only a part of the network or of the weights."""
    job = compiler.job
    if len(job.strategy.stages) > 1 or job.strategy.schedule.micro_batches > 1:
        raise InputError(
            "workers that do not wait for each other must each hold the whole network and take "
            f"its batch at once, but stages: {len(job.strategy.stages)}, micro-batches: "
            f"{job.strategy.schedule.micro_batches}; use ps-sync or data parallelism"
        )
    if not job.graph.parameters:
        raise InputError(
            f"workers that do not wait for each other must have weights to exchange but "
            f"{job.graph.name} has none; use another --runtime, such as ddp"
        )
    for layer in job.graph.compute_layers:
        piece = compiler.view.pieces[layer.name]
        if piece.gradients and math.prod(piece.gradient_group) != job.strategy.num_devices:
            raise InputError(
                f"workers that do not wait for each other must each hold all weights, but layer "
                f"'{layer.name}' is cut over them; use ps-sync or the strategy data"
            )


def _devices_per_host(job: Job) -> int:
    return math.prod(job.shape[: job.cluster.host_index + 1])


def _link_bandwidth(compiler: Compiler, runtime: Runtime, hosts: int) -> float:
    """Link of a worker: between hosts, or to the memory of the only one. [B/s]"""
    job = compiler.job
    if hosts == 1 and not runtime.servers:
        return runtime.cpu_bandwidth / min(_devices_per_host(job), runtime.devices_per_cpu_link)
    level = min(job.cluster.host_index + 1, len(job.shape) - 1)
    return float(compiler.view.stage_links[0].job.child_bandwidth[level])


def _profile_job(compiler: Compiler, runtime: Runtime, samples: float) -> WorkerProfile:
    """What a worker does in a step, layer by layer."""
    job = compiler.job
    pieces = [compiler.view.pieces[layer.name] for layer in job.graph.compute_layers]
    num_bytes = np.array([piece.gradients for piece in pieces])
    reduce = 0.0
    if runtime.local_reduce:
        inner = job.cluster.host_index + 1
        group = (*job.shape[:inner], *(1 for _ in job.shape[inner:]))
        links = compiler.view.stage_links[0]
        reduce = links.collective("all_reduce", group, float(num_bytes.sum())).time
    return WorkerProfile(
        name="worker",
        samples=samples,
        forward=np.array([piece.forward for piece in pieces]),
        backward=np.array([piece.backward for piece in pieces]),
        num_bytes=num_bytes,
        update=num_bytes / runtime.server_rate,
        reduce=num_bytes / num_bytes.sum() * reduce,
    )
