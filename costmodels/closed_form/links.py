"""Messages and rings between a group's members by one alpha and one beta.

Alpha is the largest latency of the levels that the group crosses and beta the inverse of the
smallest bandwidth that one message has on the path (Kahira et al. 2021, section IV.B). Nothing is
shared: groups that use the same links do not slow each other down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodels.communication.topology import Floats, Network


def _alpha_beta(group: Sequence[int], latency: Floats, bandwidth: Floats) -> tuple[float, float]:
    crossed = np.asarray(group) > 1
    if not crossed.any():
        return 0.0, 0.0
    return float(latency[crossed].max()), 1.0 / float(bandwidth[crossed].min())


def collective_link(network: Network, group: Sequence[int]) -> tuple[float, float]:
    """Alpha and beta of a step of a collective. [s], [s/B]

    Parameters
    ----------
    network
        Links of the devices used.
    group
        Members at each level. [items]
    """
    return _alpha_beta(group, network.latency, network.link_bandwidth * network.message_links)


def message_time(network: Network, group: Sequence[int], num_bytes: float) -> float:
    """T_p2p = alpha + m beta: one message within the group, also an empty one. [s]

    Parameters
    ----------
    network
        Links of the devices used.
    group
        Members at each level; the message crosses those with more than one. [items]
    num_bytes
        Size of the message. [B]
    """
    bandwidth = network.send_recv_bandwidth * network.message_links
    alpha, beta = _alpha_beta(group, network.send_recv_latency, bandwidth)
    return alpha + num_bytes * beta


def ring_all_gather_time(network: Network, group: Sequence[int], num_bytes: float) -> float:
    """T_ag = (p-1) (alpha + m beta). [s]

    Parameters
    ----------
    network
        Links of the devices used.
    group
        Members at each level. [items]
    num_bytes
        What each member contributes. [B]
    """
    alpha, beta = collective_link(network, group)
    return (int(np.prod(group)) - 1) * (alpha + num_bytes * beta)


def ring_all_reduce_time(network: Network, group: Sequence[int], num_bytes: float) -> float:
    """T_ar = 2 (p-1) (alpha + m/p beta). [s]

    Parameters
    ----------
    network
        Links of the devices used.
    group
        Members at each level. [items]
    num_bytes
        Buffer of each member. [B]
    """
    return 2.0 * ring_all_gather_time(network, group, num_bytes / int(np.prod(group)))
