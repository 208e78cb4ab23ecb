"""Which candidates each layer keeps for the search.

Every sensible distribution of every distinct layer is costed. Layers with more candidates than
the solver should see keep those of the best *patterns* (the same split of samples, space and
features at each level, for all layers alike: neighbours that agree need no shuffle), the layer's
own best of each total split, and those of the usual strategies. What was left out is counted and
reported. All shares below were chosen by trial on the built-in networks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.distribution import Candidates
from costmodels.distribution.rows import distinct, unique_rows
from costmodels.layers.layer_cost import LayerCosts

# Dims of the features of a layer: a pattern does not tell them apart, since a layer has only some.
_FEATURES = ("filter", "channel", "head")
_PLAIN = ("sample", "sequence", "depth", "height", "width")
# How much of its gradient all-reduce a candidate is charged. Some of it hides behind the backward
# pass; how much is known of whole assignments only, so it is half: between none and all.
COUNTED_ALL_REDUCE = 0.5
# A layer that lacks a pattern takes another one and pays a shuffle for it: together so many times
# the time of its best candidate.
LACKING_PATTERN = 1.5
# How many candidates of a pattern a layer keeps: the best ways to split its features, say by filter
# and by channel. [items]
EACH_OF_PATTERN = 2
# A quarter of the cap is the number of patterns kept that are fastest for all layers together, and
# again of the fastest that fit: with two candidates of each, they come to about the cap.
PATTERNS_PART = 4
# A quarter as many patterns are kept for their small memory: they are a way out, seldom the answer.
SMALL_PART = 4
# Candidates of shared patterns take at most half the cap, and so do a layer's own best.
SOURCE_PART = 2


class Group(Struct, frozen=True, kw_only=True, eq=False):
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


def select_candidates(
    groups: Sequence[Group], *, cap: int, capacity: float
) -> list[NDArray[np.int64]]:
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
    # many layers may be split in the very same ways
    distinct = list(dict.fromkeys(group.candidates for group in groups))
    rows = [pattern_rows(candidates) for candidates in distinct]
    unique, inverse = unique_rows(np.concatenate(rows))
    parts = np.split(inverse, np.cumsum([len(r) for r in rows])[:-1])
    number_of = dict(zip(distinct, parts, strict=True))
    numbers = [number_of[group.candidates] for group in groups]
    totals = {candidates: _total_splits(candidates) for candidates in distinct}
    scores = [g.costs.total + COUNTED_ALL_REDUCE * g.costs.gradient_time for g in groups]
    time, memory = np.zeros(len(unique)), np.zeros(len(unique))
    for group, pattern, score in zip(groups, numbers, scores, strict=True):
        best = _least_of_each(pattern, score, len(unique))
        least = _least_of_each(pattern, group.kept_memory, len(unique))
        lacking = LACKING_PATTERN * score.min()
        time += group.count * np.where(np.isfinite(best), best, lacking)
        memory += group.count * np.where(np.isfinite(least), least, group.kept_memory.min())
    chosen = _best_patterns(time, memory, cap, capacity)
    return [
        _kept_candidates(group, score, chosen, pattern, totals[group.candidates], cap)
        for group, pattern, score in zip(groups, numbers, scores, strict=True)
    ]


def pattern_rows(candidates: Candidates) -> NDArray[np.int64]:
    """The pattern of every candidate: what neighbours must agree in; (candidates, columns)."""
    columns = [candidates.level_degrees(d) for d in _PLAIN]
    columns.append(candidates.group(_FEATURES))
    columns.append(candidates.replication)
    return np.concatenate(columns, axis=1)


def _least_of_each(
    pattern: NDArray[np.int64], values: NDArray[np.float64], count: int
) -> NDArray[np.float64]:
    """The least value of the candidates of every pattern, +inf where there is none.

    Parameters
    ----------
    pattern
        Pattern of every candidate; (candidates,).
    values
        Time or memory of every candidate; (candidates,). [s] or [B]
    count
        Number of patterns. [items]
    """
    least = np.full(count, np.inf)
    np.minimum.at(least, pattern, values)
    return least


def _best_patterns(
    time: NDArray[np.float64], memory: NDArray[np.float64], cap: int, capacity: float
) -> NDArray[np.bool_]:
    """Which patterns are worth keeping; (patterns,).

    Parameters
    ----------
    time, memory
        Of all layers together under each pattern; (patterns,). [s], [B]
    cap
        Candidates that a layer may keep. [items]
    capacity
        Memory of a device. [B]
    """
    share = max(cap // PATTERNS_PART, 1)
    order = np.argsort(time, kind="stable")
    fitting = order[memory[order] <= capacity]
    small = np.argsort(memory, kind="stable")[: max(share // SMALL_PART, 1)]
    chosen = np.zeros(len(time), dtype=bool)
    chosen[np.concatenate([order[:share], fitting[:share], small])] = True
    return chosen


def _kept_candidates(
    group: Group,
    score: NDArray[np.float64],
    chosen: NDArray[np.bool_],
    pattern: NDArray[np.int64],
    totals: NDArray[np.int64],
    cap: int,
) -> NDArray[np.int64]:
    """Indices of the candidates that a group keeps.

    Parameters
    ----------
    group
        The layers.
    score
        Time of every candidate; (candidates,). [s]
    chosen
        Which patterns are kept; (patterns,).
    pattern, totals
        Numbers of its pattern and of its total split; (candidates,).
    cap
        Candidates that a layer may keep. [items]
    """
    most = cap // SOURCE_PART
    ranked = np.argsort(score, kind="stable")
    shared = ranked[chosen[pattern[ranked]]]
    # wherever in the cluster it is split
    own = ranked[_first_of_each(totals[ranked], 1)]
    pick = [
        np.array(group.required, dtype=np.int64),
        shared[_first_of_each(pattern[shared], EACH_OF_PATTERN)][:most],
        own[:most],
    ]
    return distinct(np.concatenate(pick))


def _total_splits(candidates: Candidates) -> NDArray[np.int64]:
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
