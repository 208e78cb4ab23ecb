"""Which rows never use more than another one.

Models: row t is implied by an earlier row k if base[t], plus for every node the most by which its
usage can rise from k to t, is no more than base[k]. Going back from t, that sum changes at hurdles
only: where a holding of t begins, and where one of the same node before it begins or ends. Of the
rows between two hurdles, the one with the largest base decides. Later rows are earlier ones seen
backwards.
Assumes: a node's holdings are in order and cover no row twice. What is not found costs time later,
no more, so only near rows are looked at.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from search.presolve.state import Holding
from search.presolve.tables import Pool, most_added, most_of

# How many hurdles one row is compared across, and how many holdings of a node are told apart.
MAX_HURDLES = 128
MAX_BEFORE = 16

# (row, by how much the sum of rises changes for rows before it)
Hurdle = tuple[int, float]


def implied_rows(
    pool: Pool,
    held: Sequence[Sequence[Holding]],
    base: np.ndarray,
    fullest: np.ndarray,
    gone: np.ndarray,
) -> np.ndarray:
    """Mark rows that another row implies, on top of those that are marked as gone.

    Parameters
    ----------
    pool
        Where the usages come from.
    held
        Per node its holdings.
    base
        The least used in every row. [B]
    fullest
        The most used in every row. [B]
    gone
        Rows that need not be looked at.
    """
    # Of rows that use the same, the first counts as the largest, so that one of them stays.
    order = np.lexsort((-np.arange(base.size), fullest, base))
    rank = np.empty(base.size, dtype=np.int64)
    rank[order] = np.arange(base.size)
    ranked = base[order].tolist()
    ahead = _Sweep(pool, held, rank.tolist(), ranked)
    earlier = ahead.implied(gone.tolist())
    size = base.size
    turned = [[(size - n, size - f, u) for f, n, u in reversed(holdings)] for holdings in held]
    back = _Sweep(pool, turned, rank[::-1].tolist(), ranked)
    return np.array(back.implied(earlier[::-1])[::-1], dtype=bool)


def implied_by_neighbours(
    pool: Pool, held: Sequence[Sequence[Holding]], base: np.ndarray
) -> np.ndarray:
    """Mark rows that the row before or after them implies: few of all, but quickly found.

    Parameters
    ----------
    pool
        Where the usages come from.
    held
        Per node its holdings.
    base
        The least used in every row. [B]
    """
    once = pool.once
    changes: list[tuple[int, float, float]] = []
    for holdings in held:
        end, before = -1, holdings[0][2]
        for first, last, usage in holdings:
            if first == end:
                up, down = once(most_added, before, usage), once(most_added, usage, before)
                changes.append((first, up, down))
            else:
                changes.append((end, 0.0, once(most_of, before)))
                changes.append((first, once(most_of, usage), 0.0))
            end, before = last, usage
        changes.append((end, 0.0, once(most_of, before)))
    table = np.array([change for change in changes if change[0] >= 0]).reshape(-1, 3)
    rows, size, step = table[:, 0].astype(np.int64), base.size, np.diff(base)
    rise = np.bincount(rows, weights=table[:, 1], minlength=size)[1:size] + step
    fall = np.bincount(rows, weights=table[:, 2], minlength=size)[1:size] - step
    gone = np.zeros(size, dtype=bool)
    gone[1:] = rise <= 0
    gone[:-1] |= (fall <= 0) & (rise > 0)
    return gone


class _Sweep:
    """Rows from first to last, each compared with those before it."""

    def __init__(
        self,
        pool: Pool,
        held: Sequence[Sequence[Holding]],
        rank: list[int],
        ranked: list[float],
    ) -> None:
        size = len(rank)
        self.rank = rank
        self.ranked = ranked
        self.begin: list[list[Hurdle]] = [[] for _ in range(size + 1)]
        self.end: list[list[Hurdle]] = [[] for _ in range(size + 1)]
        for holdings in held:
            for place, (first, last, _) in enumerate(holdings):
                hurdles = _hurdles(pool, holdings, place)
                self.begin[first] += hurdles
                self.end[last] += hurdles
        # The hurdles of the row reached: where they are, how many there, and what they add up to.
        self.rows: list[int] = []
        self.counts = [0] * size
        self.amounts = [0.0] * size
        # Largest ranks of runs of 1, 2, 4... rows.
        self.runs = [rank]
        while 2 ** len(self.runs) <= size:
            run = self.runs[-1]
            self.runs.append(list(map(max, run, run[2 ** (len(self.runs) - 1) :])))
        self.tops = [ranked[r] for r in accumulate(rank, max)]

    def implied(self, gone: list[bool]) -> list[bool]:
        """Mark rows that one before them implies."""
        for row, skip in enumerate(gone):
            self._move(row)
            if not skip:
                gone[row] = self._is_implied(row)
        return gone

    def _move(self, row: int) -> None:
        rows, counts, amounts = self.rows, self.counts, self.amounts
        for at, amount in self.end[row]:
            amounts[at] -= amount
            counts[at] -= 1
            if not counts[at]:
                del rows[bisect_left(rows, at)]
        for at, amount in self.begin[row]:
            if not counts[at]:
                insort(rows, at)
            amounts[at] += amount
            counts[at] += 1

    def _is_implied(self, row: int) -> bool:
        mine = self.rank[row]
        need = self.ranked[mine]
        end = row
        near = self.rows[: -MAX_HURDLES - 1 : -1]
        for at in near if len(near) == MAX_HURDLES else [*near, 0]:
            if at < end:
                level = (end - at).bit_length() - 1
                run = self.runs[level]
                best = max(run[at], run[end - 2**level])
                if best > mine and self.ranked[best] >= need:
                    return True
                end = at
            need += self.amounts[at]
            if need > self.tops[end]:
                return False  # it could fall again, where nodes use this much elsewhere, too
        return False


def _hurdles(pool: Pool, holdings: Sequence[Holding], place: int) -> list[Hurdle]:
    """Where what one holding uses more than was used before changes, from its start backwards."""
    at, _, usage = holdings[place]
    most = pool.once(most_of, usage)
    found = []
    rise = 0.0
    for first, last, before in reversed(holdings[max(0, place - MAX_BEFORE) : place]):
        if last < at:
            if most != rise:
                found.append((at, most - rise))
                rise = most
            at = last
        more = pool.once(most_added, before, usage)
        if more != rise:
            found.append((at, more - rise))
            rise = more
        at = first
    if most != rise:
        found.append((at, most - rise))
    return found
