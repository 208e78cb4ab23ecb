"""Where a network is cut into stages: equal numbers of blocks, or numbers that balance the work.

Networks without blocks are cut as they are simulated, by the seconds of their layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy.blocks import block_numbers, cut_stages, is_transformer
from costmodels.strategy.shares import cut_by_shares
from planner.joint.choices import Choice

Floats = NDArray[np.float64]
# By so much the heaviest stage must be lighter before stages get different numbers of blocks.
WORTH_BALANCING = 0.01
# The heaviest stage of a cut is at most that part heavier than that of the best cut.
_EXACT = 1e-4


class Cuts:
    """Cuts of one network.

    Parameters
    ----------
    graph
        The network.
    by_shares
        When a stage is full that has a share of the weights, one of
        `costmodels.strategy.shares.FULL`; None where stages have blocks.
    """

    def __init__(self, graph: Graph, *, by_shares: str | None = None) -> None:
        self.graph, self.by_shares = graph, by_shares
        names = [layer.name for layer in graph.compute_layers]
        self.place = {name: number for number, name in enumerate(names)}
        self.first: list[int] = []  # of each block the first layer; what comes before with it
        if is_transformer(graph):
            numbers = block_numbers(names)
            seen = {block: self.place[n] for n, block in reversed(numbers.items())}
            self.first = [seen[block] for block in sorted(seen)]
            self.first[:1] = [0]
        # the last stage may have what comes after all blocks alone
        self.pieces = list(self.first)
        if self.first and numbers:
            after = max(self.place[name] for name in numbers) + 1
            self.pieces += [after] if after < len(names) else []
        self.known: dict[tuple[int, bytes], tuple[int, ...]] = {}
        self.dealt_out: dict[tuple[int, bytes, bool], tuple[int, ...]] = {}

    def divides(self, parts: int) -> bool:
        """Whether stages have equally many blocks, or need none."""
        return self.by_shares is not None or not self.first or len(self.first) % parts == 0

    def are_possible(self, parts: int) -> bool:
        """Whether there is a cut into so many stages."""
        try:
            return not self.by_shares or bool(self.starts(parts))
        except InputError:
            return False

    def are_many(self, choice: Choice) -> bool:
        """Whether stages may have other numbers of blocks; several of a group have known ones."""
        return not self.by_shares and choice.chunks == 1 < choice.pp < len(self.pieces)

    def starts(
        self, parts: int, blocks: Sequence[int] = (), work: Floats | None = None
    ) -> tuple[int, ...]:
        """The first layer of each stage.

        Parameters
        ----------
        parts
            Stages. [items]
        blocks
            How many each has; as the network is usually cut by default.
        work
            Of every layer, which stages without blocks are balanced by. [s]
        """
        if blocks:
            return tuple(self.pieces[sum(blocks[:stage])] for stage in range(parts))
        by_work = work is not None and not self.first and not self.by_shares
        key = (parts, work.tobytes() if work is not None and by_work else b"")
        if key not in self.known:
            self.known[key] = self._usual(parts, work if by_work else None)
        return self.known[key]

    def _usual(self, parts: int, work: Floats | None) -> tuple[int, ...]:
        """As of `starts`, without numbers of blocks."""
        if self.first and self.divides(parts) and not self.by_shares:
            return tuple(self.first[:: len(self.first) // parts])
        if self.by_shares:
            rows = cut_by_shares(self.graph, parts, self.by_shares)
        else:
            weights = None if work is None else dict(zip(self.place, work.tolist(), strict=True))
            rows = cut_stages(self.graph, parts, weights)
        return tuple(self.place[names[0]] for names in rows)

    def ways(self, parts: int, work: Floats, chunks: int) -> list[tuple[int, ...]]:
        """Blocks of each stage that come into question, the simplest first; none for equally many.

        Parameters
        ----------
        parts, work
            As of `balanced`.
        chunks
            Stages of each group of devices. [items]
        """
        divides = self.divides(parts)
        if self.by_shares or not self.first or (divides and (chunks > 1 or parts == 1)):
            return [()]
        found: list[tuple[int, ...]] = [()] if divides else []
        blocks = self.balanced(parts, work)
        if chunks == 1 and not blocks[-1]:
            # what is exchanged for a head takes its time as well
            found.append(self.balanced(parts, work, head_alone=False))
        return [*found, blocks]

    def balanced(self, parts: int, work: Floats, *, head_alone: bool = True) -> tuple[int, ...]:
        """Blocks of each stage so that the heaviest one has the least work.

        The last one may have none, where that is worth it.

        Parameters
        ----------
        parts
            Stages, no more than blocks. [items]
        work
            Of every layer. [s]
        head_alone
            Whether it may.
        """
        key = (parts, work.tobytes(), head_alone)
        if key not in self.dealt_out:
            blocks, heaviest = _lightest(np.add.reduceat(work, self.first), parts)
            if head_alone and len(self.pieces) > len(self.first):
                pieces, other = _lightest(np.add.reduceat(work, self.pieces), parts)
                if other < heaviest * (1.0 - WORTH_BALANCING):
                    blocks = (*pieces[:-1], pieces[-1] - 1)
            self.dealt_out[key] = blocks
        return self.dealt_out[key]


def _lightest(each: Floats, parts: int) -> tuple[tuple[int, ...], float]:
    """Pieces of each stage so that the heaviest one has the least work, and that. [s]

    Parameters
    ----------
    each
        Work of every piece. [s]
    parts
        Stages, no more than pieces. [items]
    """
    ends = [0.0, *np.cumsum(each).tolist()]
    low, high = max(float(each.max()), ends[-1] / parts), ends[-1]
    found, _ = _filled(ends, parts, high)
    while high > low * (1.0 + _EXACT):
        # blocks are mostly alike, so that few numbers of them come into question
        trial, low = _filled(ends, parts, low)
        if trial:
            found = trial
            break
        middle = (low + high) / 2.0
        trial, more = _filled(ends, parts, middle)
        if trial:
            found, high = trial, middle
        else:
            low = more
    firsts = np.cumsum((0, *found[:-1]))
    return found, float(np.add.reduceat(each, firsts).max())


def _filled(ends: Sequence[float], parts: int, most: float) -> tuple[tuple[int, ...], float]:
    """Pieces of each stage of at most so much work, none without one; empty if it cannot be.

    With it the least that would make any difference. [s]

    Parameters
    ----------
    ends
        Work up to each piece: a block, or what comes after them. [s]
    parts, most
        Stages, and the most that one may have. [items], [s]
    """
    blocks, at, count, more = [], 0, len(ends) - 1, ends[-1]
    for left in range(parts, 0, -1):
        reach = bisect_right(ends, ends[at] + most * (1.0 + 1e-12)) - 1
        if reach < count:
            more = min(more, ends[reach + 1] - ends[at])
        # one piece at least is left for every stage that follows
        reach = min(reach, count - left + 1)
        if reach <= at:
            return (), more
        blocks.append(reach - at)
        at = reach
    return (tuple(blocks) if at == count else ()), more
