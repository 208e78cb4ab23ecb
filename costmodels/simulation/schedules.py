"""The order in which a group of devices works on its stages and micro-batches."""

from __future__ import annotations

from typing import NamedTuple

from costmodels.errors import InputError
from costmodels.strategy import Schedule

FORWARD, BACKWARD, WEIGHT = "forward", "backward", "weight"


class StagePass(NamedTuple):
    """One pass of one stage over one micro-batch.

    The pass "backward" includes that of weights unless the schedule runs it apart, as "weight".
    """

    phase: str
    stage: int
    micro: int


def group_order(
    schedule: Schedule, position: int, stages: tuple[int, ...], depth: int
) -> list[StagePass]:
    """What a group of devices runs, in order.

    Parameters
    ----------
    schedule
        The schedule.
    position
        Place of the group among the groups.
    stages
        Its stages, in the order of the forward pass: one, unless interleaved.
    depth
        Number of groups. [items]
    """
    if schedule.kind == "interleaved" and len(stages) > 1:
        return _interleaved(schedule, position, stages, depth)
    if schedule.kind == "zero-bubble":
        return _zero_bubble(schedule, position, stages[0], depth)
    most = schedule.micro_batches
    if schedule.kind != "gpipe":
        most = min(most, depth - position)
    return _alternating(
        schedule.micro_batches, min(most, schedule.max_in_flight or most), stages[0]
    )


def _alternating(count: int, in_flight: int, stage: int) -> list[StagePass]:
    """As many forward passes as may be in flight, then a backward pass before each further one."""
    order = [StagePass(FORWARD, stage, micro) for micro in range(in_flight)]
    for micro in range(count):
        order.append(StagePass(BACKWARD, stage, micro))
        if micro + in_flight < count:
            order.append(StagePass(FORWARD, stage, micro + in_flight))
    return order


def _zero_bubble(schedule: Schedule, position: int, stage: int, depth: int) -> list[StagePass]:
    """ZB-H1 of Qi et al. 2023, section 2.3: a stage keeps as many backward passes of weights
    waiting as there are stages before it, so that it holds no more than the first stage does."""
    count = schedule.micro_batches
    in_flight = min(count, depth - position, schedule.max_in_flight or count)
    order = [StagePass(FORWARD, stage, micro) for micro in range(in_flight)]
    for micro in range(count):
        order.append(StagePass(BACKWARD, stage, micro))
        if micro >= position:
            order.append(StagePass(WEIGHT, stage, micro - position))
        if micro + in_flight < count:
            order.append(StagePass(FORWARD, stage, micro + in_flight))
    order += [StagePass(WEIGHT, stage, m) for m in range(max(count - position, 0), count)]
    return order


def _interleaved(
    schedule: Schedule, position: int, stages: tuple[int, ...], depth: int
) -> list[StagePass]:
    """Narayanan et al. 2021, section 2.2, with the warm-up of Megatron-LM."""
    count, chunks = schedule.micro_batches, len(stages)
    if schedule.max_in_flight is not None:
        raise InputError(
            "an interleaved schedule has its own number of micro-batches in flight but "
            f"max_in_flight is {schedule.max_in_flight}; leave it out"
        )
    if count % depth:
        raise InputError(
            f"an interleaved schedule must have a multiple of its {depth} device groups as "
            f"micro-batches but has {count}; choose {depth * max(round(count / depth), 1)}"
        )
    total = count * chunks

    def place(number: int, phase: str) -> StagePass:
        chunk = number // depth % chunks
        micro = number // (depth * chunks) * depth + number % depth
        return StagePass(phase, stages[chunk if phase == FORWARD else chunks - 1 - chunk], micro)

    warm_up = min(2 * (depth - position - 1) + (chunks - 1) * depth, total)
    if count == depth:
        warm_up = total
    order = [place(number, FORWARD) for number in range(warm_up)]
    for number in range(total):
        if warm_up + number < total:
            order.append(place(warm_up + number, FORWARD))
        order.append(place(number, BACKWARD))
    return order
