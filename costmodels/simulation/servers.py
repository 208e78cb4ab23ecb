"""Parameter servers: what it takes to push gradients to them and to pull weights from them.

Every server holds an equal part of all weights. Without servers of their own, the hosts of the
workers serve: a host then keeps its own part of what it would send. Gradients of one host are
added up on its devices first, or each device sends its own (Jiang et al. 2020, sections 3 and 4).
"""

from __future__ import annotations

import math

import numpy as np

from costmodels.cluster import Cluster
from costmodels.simulation.execution import Link
from costmodels.simulation.messages import IN, OUT, Message, StageLinks
from costmodels.simulation.runtimes import Runtime

# The process of a host that sends and receives for all its devices, as a link of its own.
_STACK = 2


def push_pull(
    stage_links: StageLinks,
    cluster: Cluster,
    runtime: Runtime,
    group: tuple[int, ...],
    num_bytes: float,
) -> tuple[Message, Message]:
    """Pushing gradients of one buffer, and pulling the weights that follow from them.

    Parameters
    ----------
    stage_links
        Links of the stage.
    cluster
        The machine.
    runtime
        The runtime.
    group
        Members that hold the same weights, at each level. [items]
    num_bytes
        The buffer of one device. [B]
    """
    inner = cluster.host_index + 1
    local, hosts = math.prod(group[:inner]), math.prod(group[inner:])
    senders = 1 if runtime.local_reduce else local
    servers = runtime.servers or hosts
    inside = (*group[:inner], *(1 for _ in group[inner:]))
    reduction = stage_links.collective(
        "reduce_scatter", inside, num_bytes if runtime.local_reduce else 0.0
    )
    own = 1.0 / servers if runtime.servers == 0 and hosts > 1 else 0.0
    sent = senders * num_bytes * (1.0 - own)
    received = hosts * sent / servers
    adding = hosts * senders * num_bytes / servers / runtime.server_rate
    push_loads: tuple[tuple[Link, float], ...] = ()
    pull_loads: tuple[tuple[Link, float], ...] = ()
    if hosts > 1 or runtime.servers:
        level = min(inner, stage_links.job.num_levels - 1)
        bandwidth = float(stage_links.job.child_bandwidth[level])
        latency = float(stage_links.job.send_recv_latency[level])
        child = stage_links.child(level)
        push_loads = (((level, child, OUT), 1.0),)
        pull_loads = (((level, child, IN), 1.0),)
        if math.isfinite(runtime.stack_bandwidth):
            bandwidth = min(bandwidth, runtime.stack_bandwidth)
            part = ((level, child, _STACK), bandwidth / runtime.stack_bandwidth)
            push_loads, pull_loads = (*push_loads, part), (*pull_loads, part)
    else:
        # the one host's own memory: devices share their ways to it
        bandwidth = runtime.cpu_bandwidth
        latency = float(np.max(stage_links.job.send_recv_latency[:inner]))
        sent = num_bytes * (1 if runtime.local_reduce else min(local, runtime.devices_per_cpu_link))
        received = 0.0
    transfer = max(sent, received) / bandwidth
    push = Message(latency + reduction.seconds + adding, transfer + reduction.transfer, push_loads)
    pull = Message(latency + reduction.seconds, transfer + reduction.transfer, pull_loads)
    return push, pull
