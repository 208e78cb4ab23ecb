"""A training step on one timeline: forward, backward with gradient all-reduces behind it, update.

One gradient all-reduce runs at a time, greedily overlapped with what is left of the backward pass
(Dryden et al. 2019, section V.B). Gradients that are reduced over the same groups travel together
in buckets, in the order in which the backward pass makes them; a bucket leaves when it is full or
when no gradient is left for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from costmodels.communication.collectives import all_reduce_time
from costmodels.communication.topology import Floats, Topology
from costmodels.step.training import Training

# An all-reduce so large that its latency is nothing. [B]
HUGE = 1e15
# Gradients of up to that part of a bucket count as small: chosen by trial, any part gives a bound.
SMALL_PART = 0.25


class LayerStep(Struct, frozen=True, kw_only=True):
    """One layer as it takes part in a step.

    Parameters
    ----------
    forward, backward, update
        Time of each pass, with all communication that it waits for. [s]
    gradient_bytes
        Local weight gradients to all-reduce. [B]
    gradient_group
        Members of the all-reduce at each level. [items]
    exchange
        What ranks get of each other's sums of a shared weight, after all all-reduces. [s]
    """

    forward: float
    backward: float
    update: float
    gradient_bytes: float
    gradient_group: tuple[int, ...]
    exchange: float = 0.0


class StepTime(Struct, frozen=True, kw_only=True):
    """Time of a step and of its gradient all-reduces.

    Parameters
    ----------
    total
        The whole step. [s]
    forward, backward, update
        Its passes. [s]
    gradient
        All gradient all-reduces, hidden or not, and the exchange. [s]
    exchange
        What ranks get of each other's sums of shared weights after all all-reduces. [s]
    exposed
        Part of them that the step waits for. [s]
    num_buckets
        Number of all-reduces. [items]
    """

    total: float
    forward: float
    backward: float
    update: float
    gradient: float
    exchange: float
    exposed: float
    num_buckets: int

    @property
    def hidden(self) -> float:
        """Part of the gradient all-reduces behind the backward pass. [s]"""
        return max(self.gradient - self.exposed, 0.0)


def gradient_time(
    topology: Topology, group: ArrayLike, num_bytes: ArrayLike, algorithm: str
) -> Floats:
    """Time of gradient all-reduces; those that cannot run the algorithm take the cheapest. [s]

    Parameters
    ----------
    topology
        Links of the devices used.
    group
        Members at each level, last axis over levels. [items]
    num_bytes
        Buffer of each member. [B]
    algorithm
        As of `Training.all_reduce`.
    """
    cheapest = all_reduce_time(topology, group, num_bytes)
    if algorithm == "auto":
        return cheapest
    named = all_reduce_time(topology, group, num_bytes, algorithm=algorithm)
    return np.where(np.isfinite(named), named, cheapest)


def bucketed_time(
    topology: Topology, group: ArrayLike, num_bytes: ArrayLike, bucket_bytes: float, algorithm: str
) -> Floats:
    """What a gradient adds at least to all-reduces of buckets, whatever travels with it. [s]

    A bucket holds less than its size and one gradient more, and the time T of an all-reduce is
    concave in its bytes. So gradients of up to a part p of the size b of buckets pay the rate r of
    T(b + p), and a larger one what the bucket takes beyond that of the others: at least the lesser
    of its own T(m) and T(m + b) - r b. Smaller buckets only take longer.

    Parameters
    ----------
    topology, group, algorithm
        As of `gradient_time`.
    num_bytes
        Gradient of each member. [B]
    bucket_bytes
        Size at which buckets leave. [B]
    """
    sizes, members = np.asarray(num_bytes, dtype=float), np.asarray(group)
    largest_small = SMALL_PART * bucket_bytes
    full = bucket_bytes + largest_small
    rate = gradient_time(topology, members, full, algorithm) / full
    found: Floats = rate * sizes
    large = np.flatnonzero(sizes > largest_small)
    if len(large):
        own = gradient_time(topology, members[large], sizes[large], algorithm)
        joined = gradient_time(topology, members[large], sizes[large] + bucket_bytes, algorithm)
        found[large] = np.minimum(own, joined - rate[large] * bucket_bytes)
    return found


def outermost_time(topology: Topology, group: ArrayLike, num_bytes: ArrayLike) -> Floats:
    """How long what members receive fills the links of a child of the outermost level in use. [s]

    Parameters
    ----------
    topology
        Links of the devices used.
    group
        Members at each level, last axis over levels; a group in one child does not use them.
        [items]
    num_bytes
        What each member receives. [B]
    """
    members = np.asarray(group)
    level = max((n for n, size in enumerate(topology.shape) if size > 1), default=0)
    below = members[..., :level].prod(axis=-1)
    groups = topology.devices_below[level] / below
    seconds: Floats = np.asarray(num_bytes) * groups / topology.child_bandwidth[level]
    # what was measured may be faster than the links were fitted to be: then nothing is known
    return seconds * (members[..., level] > 1) * (not topology.curves)


def gradient_link_time(
    topology: Topology, group: ArrayLike, num_bytes: ArrayLike, algorithm: str
) -> Floats:
    """How long gradients fill the links of a child of the outermost level at least. [s]

    Parameters
    ----------
    topology, group, num_bytes, algorithm
        As of `gradient_time`.
    """
    sizes, members = np.asarray(num_bytes, dtype=float), np.asarray(group)
    received = 2.0 * sizes * (1.0 - 1.0 / members.prod(axis=-1))
    # a link is filled for no longer than the bytes flow, by whatever algorithm
    flowing = sizes * gradient_time(topology, members, HUGE, algorithm) / HUGE
    used = members[..., [n > 1 for n in topology.shape]][..., -1:] > 1
    flowing = flowing * used[..., 0] if used.shape[-1] else np.zeros_like(flowing)
    return np.minimum(outermost_time(topology, members, received), flowing)


def fill_buckets(
    layers: Sequence[LayerStep], bucket_bytes: float
) -> list[tuple[float, float, tuple[int, ...]]]:
    """All-reduces of a backward pass as (time ready since its start, bytes, group)."""
    clock = 0.0
    filling: dict[tuple[int, ...], float] = {}
    buckets = []
    for layer in reversed(layers):
        clock += layer.backward
        if layer.gradient_bytes <= 0.0:
            continue
        group = layer.gradient_group
        filling[group] = filling.get(group, 0.0) + layer.gradient_bytes
        if filling[group] >= bucket_bytes:
            buckets.append((clock, filling.pop(group), group))
    return buckets + [(clock, num_bytes, group) for group, num_bytes in filling.items()]


def overlapped_step(
    layers: Sequence[LayerStep], topology: Topology, training: Training
) -> StepTime:
    """Time of a step.

    Parameters
    ----------
    layers
        The layers in the order of the forward pass.
    topology
        Links of the devices used.
    training
        Bucket size, all-reduce algorithm and whether all-reduces overlap the backward pass.
    """
    forward = sum(layer.forward for layer in layers)
    backward = sum(layer.backward for layer in layers)
    update = sum(layer.update for layer in layers)
    exchange = sum(layer.exchange for layer in layers)
    buckets = fill_buckets(layers, training.bucket_bytes)
    gradient, end = 0.0, 0.0 if training.gradient_overlap else backward
    if buckets:
        groups = np.array([group for _, _, group in buckets], dtype=np.int64)
        sizes = np.array([num_bytes for _, num_bytes, _ in buckets])
        times = gradient_time(topology, groups, sizes, training.all_reduce)
        for (ready, _, _), seconds in zip(buckets, np.atleast_1d(times), strict=True):
            end = max(end, ready) + float(seconds)
            gradient += float(seconds)
    # shared weights are exchanged when the backward pass and all all-reduces are through
    exposed = max(end - backward, 0.0) + exchange
    return StepTime(
        total=forward + backward + exposed + update,
        forward=forward,
        backward=backward,
        update=update,
        gradient=gradient + exchange,
        exchange=exchange,
        exposed=exposed,
        num_buckets=len(buckets),
    )
