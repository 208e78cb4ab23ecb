"""Weights cut over some of the ranks that hold them: gathered over near links, in more memory.

Known as hybrid sharding. Its gradients are reduced over those ranks, and summed up over the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.joint.choices import Choice, divisors
from planner.joint.estimate import Estimate, Estimates
from planner.joint.exchanges import Exchanges
from planner.joint.micro_batch import MicroBatch

# Ways to train of which that is estimated, the fastest first. [items]
MOST_REFINED = 64


def shard_sizes(choice: Choice, inside: MicroBatch, exchanges: Exchanges) -> list[int]:
    """Numbers of ranks that weights may be cut over, fewer than all, the most first. [items]

    Ranks that share weights are neighbours: all of a level before those of the next.

    Parameters
    ----------
    choice, inside
        A choice that cuts weights over all that hold them, and what a micro-batch of it costs.
    exchanges
        Knows who these are.
    """
    if choice.zero < 3 or choice.shard_size or choice.offload or not inside.cuts:
        return []
    numbers = inside.held[: len(inside.cuts)].sum(axis=1)
    below, found = 1, set[int]()
    for members in exchanges.group(choice.pp, inside.cuts[int(numbers.argmax())]):
        found.update(below * size for size in divisors(members))
        below *= members
    return sorted(found - {1, below}, reverse=True)


def with_fewer_shards(estimates: Estimates, ranked: Sequence[Estimate]) -> list[Estimate]:
    """Estimates with those of weights cut over fewer ranks, the fastest first.

    Parameters
    ----------
    estimates
        Makes them.
    ranked
        Those of all choices, the fastest first.
    """
    capacity, found = estimates.setting.cluster.device.memory, list(ranked)
    cut = (one for one in ranked if one.choice.zero == 3 and one.memory <= capacity)
    for one, _ in zip(cut, range(MOST_REFINED), strict=False):
        choice = one.choice
        inside = estimates.insides(3).of(choice.inside, choice.samples)
        for size in shard_sizes(choice, inside, estimates.exchanges):
            other = estimates.of(replace(choice, shard_size=size))
            if other.memory > capacity:
                break  # fewer hold more
            found.append(other)
    return sorted(found, key=lambda one: one.seconds)
