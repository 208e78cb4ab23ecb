"""When groups of devices are through with their passes, one pass after the other, as they run.

The closed forms of `planner.joint.passes` are near that where there are many micro-batches. With a
few of them, or stages that are unlike each other, what waits for what decides.
"""

from __future__ import annotations

import math
from array import array
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.simulation.schedules import BACKWARD, FORWARD, WEIGHT, StagePass, group_order
from costmodels.strategy import Schedule
from planner.joint.choices import Choice
from planner.joint.gathers import Around
from planner.joint.passes import staged_time, zero_bubble_ends

Floats = NDArray[np.float64]
# Passes that are looked at one by one: so many take a third of a millisecond. [items]
MOST_PASSES = 1024
_KINDS = (FORWARD, BACKWARD, WEIGHT)


class _Passes(NamedTuple):
    """Passes in the order in which all of them can run; arrays, since there may be 100,000.

    Parameters
    ----------
    group, took
        Who runs one, and the place of what it takes among what all kinds take.
    after
        The pass of another group that it waits for, -1 without any.
    border
        That over which it sends what it made, -1 where it sends nothing.
    micro
        The micro-batch.
    """

    group: array[int]
    took: array[int]
    after: array[int]
    border: array[int]
    micro: array[int]


def ends_of_passes(
    choice: Choice,
    forward: Floats,
    backward: Floats,
    apart: Floats,
    sends: Floats,
    *,
    in_turn: bool = False,
    around: Around | None = None,
) -> Floats:
    """When each group is through with all passes: one by one, or where there are many about. [s]

    Parameters
    ----------
    choice
        Stages and micro-batches.
    forward, backward, apart
        Of each stage on one micro-batch: both passes, and the part of the backward pass that makes
        gradients of weights, which some schedules run by itself; (chunks, groups). [s]
    sends
        A message from each stage but the last to the next one. [s]
    in_turn
        Whether a group computes nothing while it sends.
    around
        What travels around passes.
    """
    if choice.pp > 1 and _num_passes(choice) <= MOST_PASSES:
        return _one_by_one(choice, (forward, backward, apart), sends, around, in_turn=in_turn)
    if around is not None:
        # nothing is gathered behind the last pass of all
        forward, backward = forward + around.late[0], backward + around.late[1]
        more = around.opening - around.late[1][0]
        ends = ends_of_passes(choice, forward, backward, apart, sends, in_turn=in_turn)
        return np.asarray(ends + more)
    if choice.fills_bubbles:
        return zero_bubble_ends(choice, forward[0], backward[0], apart[0], sends)
    seconds = staged_time(choice, forward, backward, sends, in_turn=in_turn)
    # groups further back are through with their last backward pass earlier
    later = np.append(0.0, np.cumsum(backward[0, :-1] + sends[: choice.pp - 1]))
    found: Floats = seconds - later
    return found


def _num_passes(choice: Choice) -> int:
    """Passes of all stages on all micro-batches. [items]"""
    return (3 if choice.fills_bubbles else 2) * choice.parts * choice.micro_batches


def _one_by_one(
    choice: Choice,
    passes: tuple[Floats, Floats, Floats],
    sends: Floats,
    around: Around | None,
    *,
    in_turn: bool,
) -> Floats:
    """As `ends_of_passes`, which says what it takes. [s]"""
    forward, backward, apart = passes
    if choice.fills_bubbles:
        backward = backward - apart
    took = np.concatenate([row.ravel() for row in (forward, backward, apart)]).tolist()
    over: list[float] = sends.tolist()
    free, sent, done = [0.0] * choice.pp, [0.0] * choice.pp, [0.0] * choice.pp
    lead = late = [0.0] * len(took)
    if around is not None:
        lead, late = (np.concatenate([r.ravel() for r in rows]).tolist() for rows in around[:2])
        free = around.opening.tolist()
    arrived: list[float] = []
    order = _order(choice.schedule, choice.pp, choice.chunks, choice.micro_batches)
    # with comparisons instead of `min` and `max` all of it takes a tenth less
    for group, place, after, border, _ in zip(*order, strict=True):
        begin = free[group]
        end = begin + took[place]
        if after >= 0 and (ready := arrived[after]) > begin:
            ahead, waited = lead[place], ready - begin
            end = ready + took[place] - (waited if waited < ahead else ahead)
        done[group] = end
        free[group] = end + late[place]
        if border >= 0:
            # messages of a group go one after the other
            last = sent[group]
            end = sent[group] = (end if end > last else last) + over[border]
            if in_turn:
                done[group], free[group] = end, max(end, free[group])
        arrived.append(end)
    return np.array(done)


def begun_and_done(
    choice: Choice, forward: Floats, backward: Floats, sends: Floats, micro: int
) -> tuple[Floats, Floats]:
    """When groups begin their first backward pass on a micro-batch or a later one, and are through.

    Where passes and messages take longer, neither is earlier. Bounds need it, estimates do not,
    which are so many that they keep a loop of their own (`_one_by_one`). [s]

    Parameters
    ----------
    choice, forward, backward, sends
        As of `ends_of_passes`.
    micro
        The micro-batch.
    """
    took = np.concatenate((forward.ravel(), backward.ravel())).tolist()
    over: list[float] = sends.tolist()
    free, sent = [0.0] * choice.pp, [0.0] * choice.pp
    begun = [math.inf] * choice.pp
    arrived: list[float] = []
    order = _order(choice.schedule, choice.pp, choice.chunks, choice.micro_batches)
    for group, place, after, border, number in zip(*order, strict=True):
        begin = free[group]
        if after >= 0 and arrived[after] > begin:
            begin = arrived[after]
        if number >= micro and place >= choice.parts and begin < begun[group]:
            begun[group] = begin
        free[group] = end = begin + took[place]
        if border >= 0:
            last = sent[group]
            end = sent[group] = (end if end > last else last) + over[border]
        arrived.append(end)
    return np.array(begun), np.array(free)


@lru_cache(maxsize=512)
def _order(kind: str, pp: int, chunks: int, count: int) -> _Passes:
    """All passes, each behind those that it waits for.

    Parameters
    ----------
    kind
        Of the schedule.
    pp, chunks, count
        Groups, stages of each, and micro-batches. [items]
    """
    schedule, parts = Schedule(kind=kind, micro_batches=count), pp * chunks
    left = [
        list(reversed(group_order(schedule, group, tuple(range(group, parts, pp)), pp)))
        for group in range(pp)
    ]
    place: dict[StagePass, int] = {}
    found = _Passes(*(array("i") for _ in _Passes._fields))
    while any(left):
        before = len(place)
        for group, rows in enumerate(left):
            while rows:
                one = rows[-1]
                phase, stage, micro = one
                source = _sent_from(phase, stage, parts)
                waits = None if source is None else StagePass(phase, source, micro)
                if waits is not None and waits not in place:
                    break
                border = {FORWARD: stage, BACKWARD: stage - 1, WEIGHT: -1}[phase]
                found.group.append(group)
                found.took.append(_KINDS.index(phase) * parts + stage)
                found.after.append(-1 if waits is None else place[waits])
                found.border.append(border if border < parts - 1 else -1)
                found.micro.append(micro)
                place[rows.pop()] = len(place)
        assert len(place) > before, "a schedule never waits for itself"
    return found


def _sent_from(phase: str, stage: int, parts: int) -> int | None:
    """The stage whose pass of that kind sends what a pass reads, None where it is the own one."""
    if phase == FORWARD:
        return stage - 1 if stage else None
    return stage + 1 if phase == BACKWARD and stage < parts - 1 else None
