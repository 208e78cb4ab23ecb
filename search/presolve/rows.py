"""Which rows can exceed the limit, and which candidates are too large for theirs.

Models: a row goes where even the largest usages fit, or where another row never uses less. A
candidate goes that breaks the limit even if all other nodes use their least.
"""

from __future__ import annotations

import numpy as np

from search.presolve.implied import implied_by_neighbours, implied_rows
from search.presolve.state import Holding, Impossible, State
from search.presolve.tables import most_of


def drop_rows(state: State) -> bool:
    """Let rows go that need not be looked at; tell whether the holdings of some node change."""
    some = False
    while state.num_rows:
        _, first, last, most = _flat(state)
        base = check_base(state)
        held = [holdings for holdings in state.holdings if holdings]
        gone = implied_by_neighbours(state.pool, held, base)
        if 10 * gone.sum() < gone.size:
            rise = np.bincount(first, weights=most, minlength=base.size + 1)
            fall = np.bincount(last, weights=most, minlength=base.size + 1)
            fullest = base + np.cumsum(rise - fall)[:-1]
            gone = implied_rows(state.pool, held, base, fullest, gone | (fullest <= state.limit))
            return _drop(state, gone) or some
        some = _drop(state, gone) or some
    return some


def check_base(state: State) -> np.ndarray:
    """What every row uses whatever is chosen, within the limit. [B]"""
    base = state.base()
    if base.max(initial=-np.inf) > state.limit:
        raise Impossible
    return base


def _flat(state: State) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Node, first row, row after the last and largest usage of every holding."""
    once = state.pool.once
    found = [
        (v, first, last, once(most_of, usage))
        for v in state.nodes()
        for first, last, usage in state.segments(v)
    ]
    table = np.array(found, dtype=np.float64).reshape(-1, 4).T
    nodes, first, last = table[:3].astype(np.int64)
    return nodes, first, last, table[3]


def _drop(state: State, gone: np.ndarray) -> bool:
    """Let the marked rows go; tell whether the holdings of some node change."""
    if not gone.any():
        return False
    rows = np.flatnonzero(~gone)
    base = state.base()[rows]
    places = np.searchsorted(rows, np.arange(state.num_rows + 1)).tolist()
    state.num_rows = rows.size
    state.rise = np.diff(base, prepend=0.0, append=0.0).tolist()
    some = False
    for node in [v for v, held in enumerate(state.holdings) if held]:
        held = state.holdings[node]
        kept: list[Holding] = []
        for start, end, usage in held:
            first, last = places[start], places[end]
            if first < last:
                if kept and kept[-1][1] == first and kept[-1][2] is usage:
                    first = kept.pop()[0]
                kept.append((first, last, usage))
        state.holdings[node] = kept
        if len(kept) < len(held):
            state.touch(node)
            some = True
    return some


def drop_too_large(state: State) -> bool:
    """Let candidates go that break the limit even if all other nodes use their least."""
    if not state.num_rows:
        return False
    nodes, first, last, most = _flat(state)
    base = check_base(state)
    room = state.limit - _range_max(base, first, last)
    tight = np.unique(nodes[most > room]).tolist()
    for node in tight:
        fits = np.ones(state.costs[node].array.size, dtype=bool)
        for start, end, usage in state.segments(node):
            fits &= usage.array <= state.limit - base[start:end].max()
        state.restrict(node, state.pool.table(np.flatnonzero(fits)))
    return bool(tight)


def _range_max(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The largest of values[first:last] for many ranges that are not empty."""
    found = np.empty(first.size)
    depth = np.frexp(last - first)[1] - 1
    table = values
    for level in range(int(depth.max(initial=-1)) + 1):
        here = depth == level
        found[here] = np.maximum(table[first[here]], table[last[here] - 2**level])
        table = np.maximum(table[: -(2**level)], table[2**level :])
    return found
