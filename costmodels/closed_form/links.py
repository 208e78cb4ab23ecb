"""Messages and rings between a group's members by one alpha and one beta.

Alpha is the largest latency of the levels that the group crosses and beta the inverse of the
smallest bandwidth that one message has on the path (Kahira et al. 2021, section IV.B). Nothing is
shared: groups that use the same links do not slow each other down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.communication.topology import Floats, Topology


def _alpha_beta(group: Sequence[int], latency: Floats, bandwidth: Floats) -> tuple[float, float]:
    crossed = np.asarray(group) > 1
    if not crossed.any():
        return 0.0, 0.0
    return float(latency[crossed].max()), 1.0 / float(bandwidth[crossed].min())


def collective_link(topology: Topology, group: Sequence[int]) -> tuple[float, float]:
    """Alpha and beta of a step of a collective. [s], [s/B]

    Parameters
    ----------
    topology
        Links of the devices used.
    group
        Members at each level. [items]
    """
    return _alpha_beta(group, topology.latency, topology.link_bandwidth * topology.message_links)


def message_time(topology: Topology, group: Sequence[int], num_bytes: float) -> float:
    """T_p2p = alpha + m beta: one message within the group, also an empty one. [s]

    Parameters
    ----------
    topology
        Links of the devices used.
    group
        Members at each level; the message crosses those with more than one. [items]
    num_bytes
        Size of the message. [B]
    """
    bandwidth = topology.send_recv_bandwidth * topology.message_links
    alpha, beta = _alpha_beta(group, topology.send_recv_latency, bandwidth)
    return alpha + num_bytes * beta


def ring_all_gather_time(topology: Topology, group: Sequence[int], num_bytes: float) -> float:
    """T_ag = (p-1) (alpha + m beta). [s]

    Parameters
    ----------
    topology
        Links of the devices used.
    group
        Members at each level. [items]
    num_bytes
        What each member contributes. [B]
    """
    alpha, beta = collective_link(topology, group)
    return (int(np.prod(group)) - 1) * (alpha + num_bytes * beta)


def ring_all_reduce_time(topology: Topology, group: Sequence[int], num_bytes: float) -> float:
    """T_ar = 2 (p-1) (alpha + m/p beta). [s]

    Parameters
    ----------
    topology
        Links of the devices used.
    group
        Members at each level. [items]
    num_bytes
        Buffer of each member. [B]
    """
    return 2.0 * ring_all_gather_time(topology, group, num_bytes / int(np.prod(group)))
