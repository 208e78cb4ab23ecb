"""Per candidate the least cost of any assignment that takes it: min-marginals.

Models: messages backwards through the buckets of an exact elimination. The belief of a bucket is
the sum of its tables and of the message from the bucket that took its own message; minimised over
all but its node it gives the node's min-marginals (Kschischang et al. 2001, in min-sum form).
Assumes: joint tables that are too large to hold are a reason not to answer.
"""

from __future__ import annotations

import numpy as np

from search.elimination.buckets import Eliminated
from search.elimination.tables import joint_table
from search.problem.deadline import Deadline

MAX_JOINT_ELEMENTS = 2**24


def min_marginals(
    eliminated: Eliminated, deadline: Deadline | None = None
) -> list[np.ndarray] | None:
    """Per node and candidate the least cost with that candidate; None where tables are too large.

    Parameters
    ----------
    eliminated
        The eliminated problem, with some assignment allowed.
    deadline
        When to give up by raising `OutOfTime`.
    """
    buckets = eliminated.buckets
    sizes = {b.node: b.parts[0][1].shape[0] for b in buckets}
    children: dict[int, list[int]] = {b.node: [] for b in buckets}
    for i, bucket in enumerate(buckets):
        if bucket.scope:
            children[bucket.scope[0]].append(i)
    # Per bucket, what all other buckets add for every combination of its scope.
    outside: dict[int, np.ndarray] = {}
    marginals: list[np.ndarray] = [np.zeros(0)] * len(buckets)
    for i in reversed(range(len(buckets))):
        if deadline is not None:
            deadline.check()
        bucket = buckets[i]
        shape = tuple(sizes[u] for u in (bucket.node, *bucket.scope))
        if np.prod(shape, dtype=float) > MAX_JOINT_ELEMENTS:
            return None
        if bucket.scope:
            added = outside.pop(i)
        else:
            added = np.asarray(eliminated.minimum - float(bucket.message))
        belief = joint_table(bucket.parts, shape) + added
        marginals[bucket.node] = belief.min(axis=tuple(range(1, belief.ndim)))
        axis_of = {u: a for a, u in enumerate((bucket.node, *bucket.scope))}
        for child in children[bucket.node]:
            scope = buckets[child].scope
            others = tuple(a for u, a in axis_of.items() if u not in scope)
            narrowed = belief.min(axis=others)
            # Minimising keeps the axes in the order of this bucket; the child has its own.
            left = [u for u in axis_of if u in scope]
            narrowed = narrowed.transpose([left.index(u) for u in scope])
            message = buckets[child].message
            # Where the child forbids everything, nothing is left to take away from.
            allowed = np.isfinite(message)
            outside[child] = narrowed - np.where(allowed, message, 0.0)
    return marginals
