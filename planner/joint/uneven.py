"""What is shared out unevenly over groups of hosts: blocks over stages, samples over replicas.

Both by dynamic programming: micro-batches so that the last replica is through the earliest, and
blocks so that the passes of a pipeline take the least time within the memory of each stage. That is
the sum of its stages and, for further micro-batches, the slowest: the least sum is found for some
limits on the slowest, from the least that there is to the largest that could pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# Limits on the slowest stage that are tried, evenly between the least and the largest. [items]
LIMITS = 16


def uneven_cut(
    times: Sequence[Floats], memory: Sequence[Floats], count: int, worth: float = np.inf
) -> tuple[int, ...]:
    """Blocks of each stage so that all passes take the least time; empty where none fit.

    A pipeline takes the time of all stages once, and of the slowest for each further micro-batch.

    Parameters
    ----------
    times
        Of each stage, what each block takes there on a micro-batch. [s]
    memory
        Of each stage, what each block holds there, as part of the room for blocks.
    count
        Micro-batches. [items]
    worth
        Where none can be faster than this, none is found. [s]
    """
    # stages of a group take as long for a block
    tables = {id(row): _span_table(row) for row in (*times, *memory)}
    spans = [
        np.where(tables[id(held)] > 1.0, np.inf, tables[id(row)])
        for row, held in zip(times, memory, strict=True)
    ]
    slowest = _least_sums(spans, lambda before, span: np.maximum(before[:, None], span))
    if not np.isfinite(slowest[-1][-1]):
        return ()
    low = float(slowest[-1][-1])
    best: float = np.inf
    found: tuple[int, ...] = ()
    least_sum = float(_least_sums(spans, lambda before, span: before[:, None] + span)[-1][-1])
    if least_sum + (count - 1) * low > worth:
        return ()
    high = low
    for place in range(LIMITS):
        limit = (low + (high - low) * place / (LIMITS - 1)) * (1.0 + 1e-12)
        within = [np.where(span <= limit, span, np.inf) for span in spans]
        sums = _least_sums(within, lambda before, span: before[:, None] + span)
        blocks = _blocks_of(within, sums)
        ends = np.cumsum((0, *blocks))
        heaviest = max(
            float(span[a, b]) for span, a, b in zip(spans, ends[:-1], ends[1:], strict=True)
        )
        total = float(sums[-1][-1]) + (count - 1) * heaviest
        if total < best * (1.0 - 1e-12):
            best, found = total, blocks
        if not place:
            # a slower stage than that costs more than all others can save
            high = max((best - least_sum) / (count - 1), low) if count > 1 else least_sum
    return found


def _span_table(row: Floats) -> Floats:
    """Sums of every span of blocks, from the first to the one before the last; +inf of none."""
    ends = np.concatenate(([0.0], np.cumsum(row)))
    table: Floats = np.where(_forward(len(ends)), ends[None, :] - ends[:, None], np.inf)
    return table


@cache
def _forward(count: int) -> NDArray[np.bool_]:
    """Whether a span from each of so many places to each other one has blocks."""
    return np.triu(np.ones((count, count), dtype=bool), 1)


def _least_sums(spans: Sequence[Floats], joined) -> list[Floats]:  # type: ignore[no-untyped-def]
    """For each stage, and each number of blocks that it ends at, the least of all cuts."""
    before = np.full(len(spans[0]), np.inf)
    before[0] = 0.0
    rows = []
    for span in spans:
        before = joined(before, span).min(axis=0)
        rows.append(before)
    return rows


def _blocks_of(spans: Sequence[Floats], sums: Sequence[Floats]) -> tuple[int, ...]:
    """Blocks of each stage in the cut of the least sum; of equal ones the later cut."""
    end, found = len(spans[0]) - 1, []
    for number in range(len(spans) - 1, -1, -1):
        if number == 0:
            found.append(end)
            break
        ways = sums[number - 1] + spans[number][:, end]
        start = len(ways) - 1 - int(np.argmin(ways[::-1]))
        found.append(end - start)
        end = start
    return tuple(reversed(found))


def uneven_shares(times: Sequence[float], replicas: Sequence[int], total: int) -> tuple[int, ...]:
    """Micro-batches of a replica of each group so that the last is through the earliest.

    Parameters
    ----------
    times
        What a micro-batch takes in each group. [s]
    replicas
        Of each group. [items]
    total
        Micro-batches of all replicas together. [items]

    Returns
    -------
    At least one each; empty where replicas do not divide the whole like that.
    """
    least = np.full(total + 1, np.inf)
    least[0] = 0.0
    chosen = []
    for seconds, count in zip(times, replicas, strict=True):
        after = np.full(total + 1, np.inf)
        pick = np.zeros(total + 1, dtype=np.int64)
        for share in range(1, total // count + 1):
            taken = share * count
            ends = np.maximum(least[: total + 1 - taken], share * seconds)
            better = ends < after[taken:]
            after[taken:][better] = ends[better]
            pick[taken:][better] = share
        least = after
        chosen.append(pick)
    if not np.isfinite(least[total]):
        return ()
    shares, left = [], total
    for pick, count in zip(reversed(chosen), reversed(list(replicas)), strict=True):
        shares.append(int(pick[left]))
        left -= shares[-1] * count
    return tuple(reversed(shares))
