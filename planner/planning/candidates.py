"""Which candidates each layer keeps for the search.

Every sensible distribution of every distinct layer is costed. Layers with more candidates than
the solver should see keep those of the best *patterns* (the same split of samples, space and
features at each level, for all layers alike: neighbours that agree need no shuffle), the layer's
own best, and those of the usual strategies. What was left out is counted and reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.distribution import Candidates
from costmodels.distribution.rows import unique_rows
from costmodels.layers.layer_cost import LayerCosts

_FEATURES = ("filter", "channel", "head")
_PLAIN = ("sample", "sequence", "depth", "height", "width")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Layers that cost the same: all candidates with their costs, and how many layers there are.

    Parameters
    ----------
    candidates, costs
        Every sensible distribution.
    count
        Number of layers. [items]
    required
        Candidates that must be kept.
    kept_memory
        Memory that a layer holds through the step, by candidate. [B]
    """

    candidates: Candidates
    costs: LayerCosts
    count: int
    required: tuple[int, ...]
    kept_memory: NDArray[np.float64]


def _patterns(candidates: Candidates) -> NDArray[np.int64]:
    columns = [candidates.level_degrees(d) for d in _PLAIN]
    columns.append(candidates.group(_FEATURES))
    columns.append(candidates.replication)
    return np.concatenate(columns, axis=1)


def select(groups: Sequence[Group], *, cap: int, capacity: float) -> list[NDArray[np.int64]]:
    """Indices of the candidates that each group keeps, at most about `cap` of them.

    Parameters
    ----------
    groups
        Distinct layers.
    cap
        Candidates that a layer may keep, besides the required ones. [items]
    capacity
        Memory of a device; patterns that fit are preferred. [B]
    """
    if all(len(group.candidates) <= cap for group in groups):
        return [np.arange(len(group.candidates)) for group in groups]
    rows = [_patterns(group.candidates) for group in groups]
    unique, inverse = unique_rows(np.concatenate(rows))
    ends = np.cumsum([len(r) for r in rows])
    ids = np.split(inverse, ends[:-1])
    scores = [g.costs.total + 0.5 * g.costs.gradient_time for g in groups]
    time, memory = np.zeros(len(unique)), np.zeros(len(unique))
    for group, pattern, score in zip(groups, ids, scores, strict=True):
        best = np.full(len(unique), np.inf)
        np.minimum.at(best, pattern, score)
        least = np.full(len(unique), np.inf)
        np.minimum.at(least, pattern, group.kept_memory)
        # a layer that lacks the pattern takes another one, and pays a shuffle for it
        time += group.count * np.where(np.isfinite(best), best, 1.5 * score.min())
        memory += group.count * np.where(np.isfinite(least), least, group.kept_memory.min())
    half = max(cap // 4, 1)
    order = np.argsort(time, kind="stable")
    fitting = order[memory[order] <= capacity]
    small = np.argsort(memory, kind="stable")[: max(half // 4, 1)]
    chosen = np.zeros(len(unique), dtype=bool)
    chosen[np.concatenate([order[:half], fitting[:half], small])] = True
    kept = []
    for group, pattern, score in zip(groups, ids, scores, strict=True):
        ranked = np.argsort(score, kind="stable")
        shared = ranked[chosen[pattern[ranked]]]
        pick = [
            np.array(group.required, dtype=np.int64),
            # the two best ways (by filter or by channel, say) of each chosen pattern
            shared[_first_of_each(pattern[shared], 2)][: cap // 2],
            # the layer's own best of each kind, wherever in the cluster it is split
            ranked[_first_of_each(_kinds(group.candidates)[ranked], 1)][: cap // 2],
        ]
        kept.append(np.unique(np.concatenate(pick)))
    return kept


def _kinds(candidates: Candidates) -> NDArray[np.int64]:
    """Number of the total split of samples, space, features and copies; (candidates,)."""
    columns = [
        candidates.group(("sample",)),
        candidates.group(("sequence",)),
        candidates.group(("depth", "height", "width")),
        candidates.group(_FEATURES),
    ]
    totals = np.stack([c.prod(axis=1) for c in columns], axis=1)
    return unique_rows(totals)[1]


def _first_of_each(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Positions of the first `count` of every label, in order."""
    order = np.argsort(labels, kind="stable")
    sorted_labels = labels[order]
    start = np.searchsorted(sorted_labels, sorted_labels)
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - start
    return np.flatnonzero(rank < count)
