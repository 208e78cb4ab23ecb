"""A small work of known cost beside every measurement, which tells when the machine is disturbed.

What a process computes takes more processor time while others use the caches, the memory or the
other half of its core. The ranks that are measured do that to each other, and are meant to: they
sing at the same time, so that what is usual has it in. Where the canary takes longer than usual,
what was measured beside it is thrown away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Longer than the fastest quarter by more than this part is a disturbance.
TOLERANCE: Final = 0.12
# Songs that tell what is usual: the last ones, since machines change. [items]
_LATEST: Final = 400
_FIRST: Final = 30
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
        self.rejected = 0
        self.learn()

    def learn(self) -> None:
        """Learn what is usual from now on; ranks that compute side by side do so together."""
        self.times: list[float] = []
        for _ in range(_FIRST):
            self._sing()

    def quiet(self) -> bool:
        """Whether nothing disturbs the machine now."""
        seconds = self._sing()
        is_quiet = seconds <= (1.0 + TOLERANCE) * self.usual
        self.rejected += not is_quiet
        return is_quiet

    @property
    def usual(self) -> float:
        """How long it takes when nothing disturbs it: up to the fastest quarter. [s]"""
        latest = sorted(self.times[-_LATEST:])
        return latest[len(latest) // 4]

    def _sing(self) -> float:
        start = self.clock()
        self.work()
        seconds = self.clock() - start
        self.times.append(seconds)
        return seconds


def _usual_work() -> Callable[[], object]:
    import torch

    matrix, row = torch.randn(_SIZE, _SIZE), torch.randn(2**18)

    def work() -> None:
        for _ in range(_REPEATS):
            torch.matmul(matrix, matrix)
            row.clone()

    return work
