"""Assignments in increasing order of cost, one by one.

Models: Lawler's partition (Lawler 1972) on the buckets of an exact elimination. Read backwards,
buckets give the cost of the best completion of every partial assignment, so the best assignment
that departs from a known one at a given node costs one look into that node's bucket; no further
elimination is needed. Each assignment that comes out adds its own departures, at that node to the
next candidate and at the nodes decoded after it to the second one: these sets are disjoint, so no
assignment comes out twice, and together they hold every other assignment.
Assumes: costs that differ by rounding only may come out in either order.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from search.elimination.buckets import Eliminated, EliminationBucket


class _Known(Struct, frozen=True, eq=False):
    """An assignment that came out, with the candidates of every bucket from best to worst."""

    choices: list[int]
    values: list[np.ndarray]
    candidates: list[np.ndarray]


class _Departure(NamedTuple):
    """The best assignment that departs from a known one at one place, queued by its cost; of
    equal ones the first to be queued comes first."""

    cost: float
    number: int
    place: int
    rank: int
    known: _Known


def increasing_assignments(eliminated: Eliminated) -> Iterator[tuple[float, list[int]]]:
    """Yield (cost, choices) from the cheapest on, every assignment that is not forbidden once.

    Parameters
    ----------
    eliminated
        The eliminated problem.
    """
    if eliminated.minimum == math.inf:
        return
    backwards = list(reversed(eliminated.buckets))
    best = _cheapest_known(backwards)
    yield eliminated.minimum, best.choices
    heap: list[_Departure] = []
    count = 0
    cost, start, known = eliminated.minimum, 0, best
    while True:
        for place in range(start, len(backwards)):
            count = _push(heap, cost, place, 1, count, known)
        if not heap:
            return
        cost, _, place, rank, parent = heapq.heappop(heap)
        base = cost - float(parent.values[place][rank] - parent.values[place][0])
        count = _push(heap, base, place, rank + 1, count, parent)
        known = _departed(backwards, parent, place, int(parent.candidates[place][rank]))
        yield cost, known.choices
        start = place + 1


def _push(
    heap: list[_Departure],
    base: float,
    place: int,
    rank: int,
    count: int,
    known: _Known,
) -> int:
    """Queue the departure from `known` at one place to the candidate of this rank."""
    values = known.values[place]
    # The rest of a departure at rank r is completed as at rank 0, so only this bucket differs.
    if rank < values.size and values[rank] < math.inf:
        cost = base + float(values[rank] - values[0])
        heapq.heappush(heap, _Departure(cost, count, place, rank, known))
    return count + 1


def _cheapest_known(backwards: list[EliminationBucket]) -> _Known:
    choices = [0] * len(backwards)
    values: list[np.ndarray] = []
    candidates: list[np.ndarray] = []
    for bucket in backwards:
        _rank_candidates(bucket, choices, values, candidates)
    return _Known(choices, values, candidates)


def _rank_candidates(
    bucket: EliminationBucket,
    choices: list[int],
    values: list[np.ndarray],
    candidates: list[np.ndarray],
) -> None:
    """Sort the candidates of a bucket, choose the first."""
    completions = bucket.completions(choices)
    order = completions.argsort(kind="stable")
    values.append(completions[order])
    candidates.append(order)
    choices[bucket.node] = int(order[0])


def _departed(
    backwards: list[EliminationBucket], parent: _Known, place: int, candidate: int
) -> _Known:
    """Take another candidate at one place and complete the rest as well as possible."""
    choices = list(parent.choices)
    values, candidates = parent.values[: place + 1], parent.candidates[: place + 1]
    choices[backwards[place].node] = candidate
    changed = {backwards[place].node}
    for later in range(place + 1, len(backwards)):
        bucket = backwards[later]
        if changed.isdisjoint(bucket.scope):
            # Same neighbours, same ranking. The parent may itself hold another choice here only
            # where it departed, which is never after `place`.
            values.append(parent.values[later])
            candidates.append(parent.candidates[later])
            continue
        before = choices[bucket.node]
        _rank_candidates(bucket, choices, values, candidates)
        if choices[bucket.node] != before:
            changed.add(bucket.node)
    return _Known(choices, values, candidates)
