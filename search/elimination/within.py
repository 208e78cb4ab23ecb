"""Cheap assignments that use little enough of something which is a sum over nodes and edges too.

Models: the buckets of an elimination, read backwards, tell what every choice of some nodes costs at
least with all others. Eliminated at several prices of a unit used, they bound what it costs within
a limit (Everett 1963); with nothing but what is used, they tell what it uses at least. Where only
the same nodes matter to what follows, a choice goes that costs and uses no less than another one;
of those left the ones of the least bounds are kept, as many as a beam is wide. So answers are
within the limit, but no bound: a heuristic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from search.elimination.buckets import MOST_WORK, Eliminated, EliminationBucket, eliminate, plan
from search.problem import CostEdge, Problem
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Prices at which choices are bounded, in multiples of the given one, beside none: what has used
# much of the limit early shows it at high ones.
MULTIPLES = (1.0, 3.0, 10.0, 30.0)
# How many choices are kept, and how many times as many are compared with each other. Of 50, 200 and
# 500, the last two found the same on a transformer of 37 layers at its limit of memory.
WIDTH, COMPARED = 200, 8
# Codes of what matters to the rest: powers of a large prime, modulo 2^64.
_PRIME = 1_000_003
# Uses this close, as a part of the limit, are the same.
_SAME = 1e-9


class _Beam(Struct, frozen=True, eq=False):
    """Choices of some nodes.

    Parameters
    ----------
    choices
        Of the nodes that are decided; (labels, nodes).
    least
        What each costs or uses at least with all others, by elimination; (eliminations, labels).
    """

    choices: Ints
    least: Floats


def cheapest_within(
    problem: Problem, usage: Problem, *, limit: float, price: float, count: int, deadline: Deadline
) -> list[tuple[int, ...]]:
    """Cheap assignments that use no more than a limit, the cheapest first; none if none is found.

    Parameters
    ----------
    problem
        What assignments cost. Limits of its own do not count.
    usage
        What they use, as costs between the same nodes.
    limit
        The most that may be used; above 0.
    price
        Of a unit used, at which the cheapest assignment uses about as much as the limit.
    count
        How many assignments at most. [items]
    deadline
        When to give up by raising `OutOfTime`.

    Raises
    ------
    ProblemError
        Where elimination refuses the graph.
    """
    prices = [0.0, *(multiple * price for multiple in MULTIPLES)]
    problems = [
        *(_both_counted(problem, usage, (1.0, one)) for one in prices),
        _both_counted(problem, usage, (0.0, 1.0)),
    ]
    order = plan(problems[0], max_work=MOST_WORK)
    known = [eliminate(one, order, deadline=deadline) for one in problems]
    if known[0].is_forbidden:
        return []
    worth = np.array(prices)[:, None, None] * limit
    beam = _Beam(
        np.zeros((1, len(problem.costs)), dtype=np.int64),
        np.array([[one.minimum] for one in known]),
    )
    for n, matter in enumerate(_nodes_that_matter(known[0])):
        deadline.check()
        buckets = [one.buckets[-1 - n] for one in known]
        beam = _next_choices(beam, buckets, matter, worth, limit)
        if not beam.choices.size:
            return []
    cheapest = np.argsort(beam.least[0], kind="stable")[:count]
    return [tuple(choices) for choices in beam.choices[cheapest].tolist()]


def _both_counted(problem: Problem, usage: Problem, parts: tuple[float, float]) -> Problem:
    """A part of what assignments cost and one of what they use, over the edges of both.

    Parameters
    ----------
    problem, usage
        As of `cheapest_within`.
    parts
        How much of each counts.
    """
    known: dict[tuple[int, float], Floats] = {}

    def of(table: Floats, part: float) -> Floats:
        key = (id(table), part)
        if key not in known:  # what is forbidden is infinite
            known[key] = part * table if part else np.zeros_like(table)
        return known[key]

    costs = [
        of(cost, parts[0]) + of(used, parts[1])
        for cost, used in zip(problem.costs, usage.costs, strict=True)
    ]
    edges = [
        CostEdge(source=edge.source, target=edge.target, matrix=of(edge.matrix, part))
        for one, part in zip((problem, usage), parts, strict=True)
        for edge in one.edges
    ]
    return Problem(costs=tuple(costs), edges=tuple(edges))


def _nodes_that_matter(eliminated: Eliminated) -> list[list[int]]:
    """After each node, last eliminated first, the decided ones that the rest depends on."""
    matter: list[list[int]] = []
    needed: set[int] = set()
    for bucket in eliminated.buckets:
        matter.append(sorted(needed))
        needed = (needed | set(bucket.scope)) - {bucket.node}
    return matter[::-1]


def _next_choices(
    beam: _Beam,
    buckets: Sequence[EliminationBucket],
    matter: Sequence[int],
    worth: Floats,
    limit: float,
) -> _Beam:
    """Choices of one more node.

    Parameters
    ----------
    beam
        Those of the nodes before.
    buckets
        Of the node, by elimination.
    matter
        The nodes that matter to the rest.
    worth
        What the limit is worth, at each price.
    limit
        The most that may be used.
    """
    # (eliminations, candidates, labels)
    least = np.stack([_with_node(beam, n, bucket) for n, bucket in enumerate(buckets)])
    bounds = (least[:-1] - worth).max(axis=0)
    candidates, labels = np.nonzero((least[-1] <= limit) & (bounds < np.inf))
    values = bounds[candidates, labels]
    if len(values) > (most := COMPARED * WIDTH):
        near = values <= np.partition(values, most)[most]
        candidates, labels, values = candidates[near], labels[near], values[near]
    least = least[:, candidates, labels]
    choices = beam.choices[labels]
    choices[:, buckets[0].node] = candidates
    kept = _not_dominated(choices[:, matter], least[0], least[-1] / limit)
    kept = kept[np.argsort(values[kept], kind="stable")[:WIDTH]]
    return _Beam(choices[kept], least[:, kept])


def _with_node(beam: _Beam, elimination: int, bucket: EliminationBucket) -> Floats:
    """What choices take at least with each candidate of one more node; (candidates, labels).

    Parameters
    ----------
    beam
        Choices of the nodes before.
    elimination
        Number of the elimination.
    bucket
        Of the node there.
    """
    scope = tuple(beam.choices[:, node] for node in bucket.scope)
    rest = beam.least[elimination] - bucket.message[scope]
    total: Floats = np.zeros((bucket.parts[0][1].shape[0], len(rest))) + rest
    for axes, table in bucket.parts:
        index: tuple[Any, ...] = (slice(None), *(scope[axis - 1] for axis in axes[1:]))
        picked = table[index]
        total += picked if picked.ndim == total.ndim else picked[:, None]
    return total


def _not_dominated(matter: Ints, cost: Floats, used: Floats) -> Ints:
    """Those that no other one with the same choices of what matters is as good as.

    Parameters
    ----------
    matter
        Choices of the nodes that matter; (labels, nodes).
    cost, used
        What each costs at least, and uses at least as a part of the limit; (labels,).
    """
    code = np.zeros(len(matter), dtype=np.int64)
    for column in matter.T:
        code = code * _PRIME + column
    order = np.lexsort((used, cost, code))
    group = np.append(0, np.diff(code[order]) != 0).cumsum()[: len(order)]
    # each group is further down, so that what was lowest in one does not count in the next
    below = used[order] - 2.0 * group
    lowest = np.append(np.inf, np.minimum.accumulate(below)[:-1])[: len(order)]
    kept: Ints = order[below < lowest - _SAME]
    return kept
