"""What an allocator holds beyond the tensors of a step, since free memory lies in pieces.

The tensors of a role are given to the allocator in the order in which the simulation makes and
frees them, in a first step. Micro-batches are alike: of a long pipeline the first ones and the last
stand for all. What is there throughout (weights, gradients, state) came first, in segments of its
own. Tensors that cross to other streams are taken as free when their last reader has ended.
"""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.simulation.allocator import CachingAllocator
from costmodels.simulation.execution import TensorKey

# Of one role at once beyond what are in flight, until the order repeats itself. [micro-batches]
_MORE_MICRO_BATCHES = 2
Event = tuple[float, TensorKey, str, float]


def reserved_memory(log: Sequence[Event], limit: float, in_flight: int, last: int) -> float:
    """The most that an allocator takes from the device for the tensors of a role. [B]

    Parameters
    ----------
    log
        What was made and freed (size 0), when: time, key, holder, size.
    limit
        What the device has for them: free segments go back before more is taken. [B]
    in_flight
        Micro-batches of the role at once. [items]
    last
        The last micro-batch of the step.
    """
    allocator = CachingAllocator(limit)
    first = in_flight + _MORE_MICRO_BATCHES
    for _, key, _, size in log:
        if first <= key[0] < last:
            continue
        if size:
            allocator.allocate(key, size)
        else:
            allocator.free(key)
    return float(allocator.peak)
