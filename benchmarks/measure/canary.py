"""A small work of known cost beside every measurement, which tells how fast the machine is now.

What a process computes takes more processor time while others use the caches, the memory or the
other half of its core, and machines that are shared do so for seconds or minutes. The ranks that
are measured do that to each other, and are meant to: they sing at the same time, so that what is
usual has it in. A measurement is told at the pace of the canary beside it, and thrown away where
that changed meanwhile.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

# Paces before and after that differ by more than this part are a disturbance.
TOLERANCE: Final = 0.12
# Songs that tell what is usual, and the pace of a moment, by their median. [items]
_FIRST: Final = 31
_SONGS: Final = 3
_SIZE: Final = 192
_REPEATS: Final = 8


class Canary:
    """Times a product of matrices and a copy again and again.

    Parameters
    ----------
    clock
        Tells the time. [s]
    work
        What is timed; a product and a copy by default.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.process_time,
        work: Callable[[], object] | None = None,
    ) -> None:
        self.clock = clock
        self.work = work or _usual_work()
        self.usual = self._song(_FIRST)

    def pace(self) -> float:
        """How much longer it takes now than at first. [times]"""
        return self._song(_SONGS) / self.usual

    def _song(self, songs: int) -> float:
        return statistics.median(self._sing() for _ in range(songs))

    def _sing(self) -> float:
        start = self.clock()
        self.work()
        return self.clock() - start


def is_steady(before: float, after: float) -> bool:
    """Whether what lies between two paces can be told by them."""
    return abs(before - after) <= TOLERANCE * min(before, after)


def _usual_work() -> Callable[[], object]:
    import torch

    matrix, row = torch.randn(_SIZE, _SIZE), torch.randn(2**18)

    def work() -> None:
        for _ in range(_REPEATS):
            torch.matmul(matrix, matrix)
            row.clone()

    return work
