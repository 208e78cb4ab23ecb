"""What the passes of a pipeline take and its micro-batches hold, by the order that they run in.

Stages that run one forward and one backward pass in turns, several stages of each group, and
backward passes of weights that fill bubbles (Qi et al. 2023, section 2.3).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice

Floats = NDArray[np.float64]


def staged_time(
    choice: Choice, forward: Floats, backward: Floats, sends: Floats, *, in_turn: bool = False
) -> float:
    """Passes over all micro-batches, in turns or all forward ones first. [s]

    Parameters
    ----------
    choice
        Stages and micro-batches.
    forward, backward
        Of each stage on one micro-batch; (chunks, groups). [s]
    sends
        A message from each stage but the last to the next one. [s]
    in_turn
        Whether a stage computes nothing while it sends.
    """
    groups = (forward + backward).sum(axis=0)
    count, pp = choice.micro_batches, choice.pp
    # a group sends forwards over the borders behind its stages, and back over those before
    behind = np.arange(len(sends)) % pp
    sent = np.bincount(behind, sends, pp) + np.bincount((behind + 1) % pp, sends, pp)
    busy = groups + sent if in_turn else np.maximum(groups, sent)
    if choice.chunks > 1:
        waits = float(groups.sum() - groups.max()) / choice.chunks
        # the first micro-batch forwards, and the last one backwards, cross all borders of stages
        return count * float(busy.max()) + waits + 2.0 * float(sends.sum())
    if choice.runs_forward_first:
        return sum(_one_way(choice, row[0], sends, in_turn=in_turn) for row in (forward, backward))
    # what a micro-batch takes from the first stage to each one and back, and to the last one
    ahead = np.append(0.0, (groups[:-1] + 2.0 * sends[: pp - 1]).cumsum())
    trip = float(ahead[-1] + groups[-1])
    # passes alternate, so that some stages in a row let as many micro-batches come to them in the
    # time in which one goes from the first to the last of these and back
    stages = np.arange(pp)[None] - np.arange(pp)[:, None] + 1
    rows = (stages > 0) & ((stages < count) | (stages == 1))
    turn = np.where(rows, (ahead + groups)[None] - ahead[:, None], 0.0)
    if in_turn:
        np.fill_diagonal(turn, busy)
    # they wait for the first one as far as others leave the last of them time
    idle = (trip - ahead - groups - (choice.flying - 1) * forward[0]).clip(min=0.0)
    found = ahead[:, None] + turn + (count - 1) * turn / stages.clip(min=1) + idle[None] * rows
    return max(trip, float(found.max()))


def _one_way(choice: Choice, each: Floats, sends: Floats, *, in_turn: bool) -> float:
    """All micro-batches from the first stage to the last one, or back. [s]

    Parameters
    ----------
    choice, sends, in_turn
        As of `staged_time`.
    each
        A pass of each stage. [s]
    """
    slowest = each + np.append(sends, 0.0) if in_turn else np.append(each, sends)
    return float(each.sum() + sends.sum() + (choice.micro_batches - 1) * slowest.max())


def activations(choice: Choice, kept: Floats, waiting: Floats, beside: Floats) -> Floats:
    """What the micro-batches under way and a pass over one of them hold at most in each group. [B]

    Parameters
    ----------
    choice
        Stages and micro-batches.
    kept, waiting
        Of each stage and micro-batch: for the backward pass, and after it for that of weights;
        (chunks, groups). [B]
    beside
        What a pass of each stage holds on top of what it keeps. [B]
    """
    if choice.chunks == 1:
        # where none is under way, no pass over one runs
        rows = [
            flying * kept[0] + left * waiting[0] + (flying > 0) * beside[0]
            for flying, left in under_way(choice)
        ]
        most: Floats = np.max(rows, axis=0)
        return most
    # by then nothing changes with more of them
    count = min(choice.micro_batches, 3 * choice.pp)
    counts, chunks = _chunks_under_way(choice.pp, choice.chunks, count)
    held = np.einsum("gtc,cg->gt", counts, kept)
    groups = np.arange(choice.pp)[:, None, None]
    found: Floats = (held + beside[chunks, groups].max(axis=-1)).max(axis=1)
    return found


@cache
def _chunks_under_way(pp: int, chunks: int, count: int) -> tuple[Floats, NDArray[np.int64]]:
    """Micro-batches of each chunk under way where groups of several chunks may hold the most.

    See `costmodels.simulation.schedules`. A group begins with some forward passes, and runs a
    backward pass after each further one then, so many of a chunk in a row as there are groups. In
    between counts grow or shrink evenly: they are told where passes of a chunk begin and end, of
    one turn over all chunks, as every turn is alike.

    Parameters
    ----------
    pp, chunks, count
        Groups, stages of each of them, and micro-batches. [items]

    Returns
    -------
    The counts; (groups, times, chunks). [items] And of which chunks passes run at each time;
    (groups, times, 2).
    """
    turn, total = pp * chunks, count * chunks
    group = np.arange(pp)[:, None]
    ahead = np.minimum(2 * (pp - group - 1) + (chunks - 1) * pp, total)
    if count == pp:
        ahead = np.full_like(ahead, total)
    change = -ahead % pp
    places = np.concatenate([0 * group, 0 * group + pp - 1, change, (change - 1) % pp], axis=1)
    back = (np.arange(chunks)[None, :, None] * pp + places[:, None]).reshape(pp, -1)
    forth = np.minimum(ahead + back + 1, total)

    def passes(number: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of each chunk among the first ones; (groups, times, chunks). [items]"""
        rest = np.clip(number[..., None] % turn - order * pp, 0, pp)
        found: NDArray[np.int64] = number[..., None] // turn * pp + rest
        return found

    order = np.arange(chunks)
    counts = (passes(forth, order) - passes(back, order[::-1])).astype(float)
    backward = chunks - 1 - back // pp % chunks
    forward = np.where(ahead + back < total, (forth - 1) // pp % chunks, backward)
    return counts, np.stack([backward, forward], axis=-1)


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
    flying = choice.flying
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


def begun_before_backward(choice: Choice) -> NDArray[np.int64]:
    """Forward passes of each group of several stages before its first backward pass. [items]

    As many micro-batches of a chunk come at a time as there are groups.

    Parameters
    ----------
    choice
        Stages and micro-batches.
    """
    pp, every = choice.pp, choice.micro_batches * choice.chunks
    passes = 2 * (pp - np.arange(pp) - 1) + (choice.chunks - 1) * pp + 1
    return np.full_like(passes, every) if choice.micro_batches == pp else passes.clip(max=every)


def under_way(choice: Choice) -> list[tuple[Floats, Floats]]:
    """Micro-batches under way in each group of one stage, and those that wait for weights' passes.

    At several times, among them those at which it holds the most. [items]

    Parameters
    ----------
    choice
        Stages and micro-batches.
    """
    count, order = choice.micro_batches, np.arange(choice.pp)
    flying = choice.flying.astype(float)
    found: list[tuple[Floats, Floats]] = [(flying, np.zeros(choice.pp))]
    if choice.fills_bubbles:
        # as many are through with all but that: it grows and shrinks evenly in between
        for through in (order, count - flying, np.full(choice.pp, count)):
            ready = np.clip(through, 0, count)
            found.append((np.minimum(flying, count - ready), np.minimum(ready, order)))
    return found
