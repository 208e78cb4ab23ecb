"""Workers that do not wait for each other: their throughput by Algorithm 1 of Li et al. 2022."""

from __future__ import annotations

import math

import numpy as np

from costmodels.errors import InputError
from costmodels.simulation import Compiler, Runtime
from costmodels.throughput import Links, WorkerClass, WorkerProfile, simulate_workers


def asynchronous_step(compiler: Compiler, runtime: Runtime, batch: int) -> tuple[float, str]:
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
    """
    job = compiler.job
    if len(job.strategy.stages) > 1 or job.strategy.schedule.micro_batches > 1:
        raise InputError(
            "workers that do not wait for each other must each hold the whole network and take "
            f"its batch at once, but stages: {len(job.strategy.stages)}, micro-batches: "
            f"{job.strategy.schedule.micro_batches}; use ps-sync or data parallelism"
        )
    pieces = [compiler.view.pieces[layer.name] for layer in job.graph.compute_layers]
    stage_links, devices = compiler.view.stage_links[0], job.strategy.num_devices
    for layer, piece in zip(job.graph.compute_layers, pieces, strict=True):
        if piece.gradients and math.prod(piece.gradient_group) != devices:
            raise InputError(
                f"workers that do not wait for each other must each hold all weights, but layer "
                f"'{layer.name}' is cut over them; use ps-sync or the strategy data"
            )
    inner = job.cluster.host_index + 1
    local = math.prod(job.shape[:inner])
    hosts = devices // local
    num_bytes = np.array([piece.gradients for piece in pieces])
    reduce = 0.0
    workers = devices
    if runtime.local_reduce:
        workers = hosts
        group = (*job.shape[:inner], *(1 for _ in job.shape[inner:]))
        reduce = stage_links.collective("all_reduce", group, float(num_bytes.sum())).time
    if hosts == 1 and not runtime.servers:
        bandwidth = runtime.cpu_bandwidth / min(local, runtime.devices_per_cpu_link)
    else:
        level = min(inner, len(job.shape) - 1)
        bandwidth = float(stage_links.job.child_bandwidth[level])
    share = num_bytes / num_bytes.sum()
    profile = WorkerProfile(
        name="worker",
        samples=batch / workers,
        forward=np.array([piece.forward for piece in pieces]),
        backward=np.array([piece.backward for piece in pieces]),
        num_bytes=num_bytes,
        update=num_bytes / runtime.server_rate,
        reduce=share * reduce,
    )
    links = Links(bandwidth=bandwidth, servers=runtime.servers or hosts)
    found = simulate_workers(
        [WorkerClass(profile=profile, count=workers)],
        links,
        synchronous=False,
        overlap=runtime.overlap and job.training.gradient_overlap,
    )
    note = (
        f"throughput is that of {workers} workers that do not wait for each other around "
        f"{links.servers} parameter servers, whose links are {found.utilisation:.0%} in use (Li et "
        "al. 2022); queues, memory and the trace are those of a synchronous step"
    )
    return batch / found.throughput, note
