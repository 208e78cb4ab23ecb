"""What the passes of a pipeline take and its micro-batches hold, by the order that they run in.

Stages that run one forward and one backward pass in turns, several stages of each group, and
backward passes of weights that fill bubbles (Qi et al. 2023, section 2.3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice

Floats = NDArray[np.float64]


def staged_time(choice: Choice, forward: Floats, backward: Floats, sends: Floats) -> float:
    """Passes over all micro-batches. [s]

    Parameters
    ----------
    choice
        Stages and micro-batches.
    forward, backward
        Of each stage on one micro-batch; (chunks, groups). [s]
    sends
        A message from each stage but the last to the next one. [s]
    """
    groups = (forward + backward).sum(axis=0)
    count, pp = choice.micro_batches, choice.pp
    if choice.chunks > 1:
        waits = float(groups.sum() - groups.max()) / choice.chunks
        # the first micro-batch forwards, and the last one backwards, cross all borders of stages
        return count * float(groups.max()) + waits + 2.0 * float(sends.sum())
    # what a micro-batch takes from each stage to the last one and back, and from the first one
    behind = np.arange(pp, 0, -1)
    trip = groups[::-1].cumsum()[::-1] + 2.0 * np.append(sends[::-1].cumsum()[::-1], 0.0)
    ahead = trip[0] - trip
    # a stage works on all of them, and waits for the first one as far as others leave it time
    idle = trip - groups - (np.minimum(behind, count) - 1) * forward[0]
    found = float((ahead + count * groups + idle.clip(min=0.0)).max())
    # with all that it can have under way it waits for the first one to come back
    full = behind < count
    again = trip[0] + (count - 1) * trip[full] / behind[full]
    return max(found, float(again.max(initial=trip[0])))


def activations(choice: Choice, kept: Floats) -> Floats:
    """What the micro-batches under way hold at most in each group. [B]

    Parameters
    ----------
    choice
        Stages and micro-batches.
    kept
        Of each stage and micro-batch. [B]
    """
    order = np.arange(choice.pp)
    count = choice.micro_batches
    if choice.chunks == 1:
        under_way: Floats = np.minimum(choice.pp - order, count) * kept[0]
        return under_way
    ahead = 2 * (choice.pp - order - 1) + (choice.chunks - 1) * choice.pp + 1
    ahead = np.minimum(ahead, count * choice.chunks)
    if count == choice.pp:
        ahead = np.full(choice.pp, count * choice.chunks)
    found: Floats = ahead * kept.mean(axis=0)
    return found


def exchanged(begin: Floats, seconds: Floats, end: Floats) -> Floats:
    """When each group is through with exchanges of its chunks, the last chunk first. [s]

    Parameters
    ----------
    begin, end
        When those of a chunk can begin, and when they end at the earliest; (chunks, groups). [s]
    seconds
        What they take, one after the other. [s]
    """
    later = seconds.cumsum(axis=0) - seconds
    found: Floats = (np.maximum(begin + seconds, end) + later).max(axis=0)
    return found


def zero_bubble_ends(
    choice: Choice, forward: Floats, backward: Floats, apart: Floats, sends: Floats
) -> Floats:
    """When each stage is through with all passes, where those of weights run by themselves. [s]

    A stage begins when the first micro-batch has come to it, waits until that comes back unless
    others keep it busy, and after its last other backward pass has those of weights left that it
    kept waiting.

    Parameters
    ----------
    choice, sends
        As of `staged_time`.
    forward, backward, apart
        Of each stage on one micro-batch: backward passes with those of weights, and these. [s]
    """
    count, pp = choice.micro_batches, choice.pp
    data = backward - apart
    both = forward + data
    order = np.arange(pp)
    before = np.append(0.0, np.cumsum(forward[:-1] + sends))
    messages = np.append(sends[::-1].cumsum()[::-1], 0.0)
    after = both.sum() - both.cumsum() + 2.0 * messages
    flying = np.minimum(pp - order, count)
    waits = np.maximum(after - (flying - 1) * forward, 0.0)
    work = count * (forward + backward)
    # a stage with all its micro-batches under way waits for the first one to come back
    slow = np.where(pp - order < count, (both + after) / (pp - order), 0.0)
    late = (count - 1) * max(float(slow.max() - (forward + backward).max()), 0.0)
    ends = before + waits + work + late
    left = np.minimum(order + 1, count) * apart
    last = ends - left
    for stage in range(pp - 2, -1, -1):
        last[stage] = max(last[stage], last[stage + 1] + sends[stage] + data[stage])
    found: Floats = last + left
    return found


def zero_bubble_held(choice: Choice, kept: Floats, waiting: Floats) -> Floats:
    """What micro-batches hold at most in each stage, with those that wait for weights' passes. [B]

    Parameters
    ----------
    choice
        Stages and micro-batches.
    kept, waiting
        Of each stage and micro-batch: for the backward pass, and after it for that of weights. [B]
    """
    count, order = choice.micro_batches, np.arange(choice.pp)
    flying = np.minimum(choice.pp - order, count)
    found: Floats = flying * kept
    # as many are through with all but that: it grows and shrinks evenly in between
    for through in (order, count - flying, np.full(choice.pp, count)):
        ready = np.clip(through, 0, count)
        under = np.minimum(flying, count - ready) * kept
        found = np.maximum(found, under + np.minimum(ready, order) * waiting)
    return found
