"""How long one call takes: warm-up, then the median of several batches of calls, and their spread.

On a GPU a batch lies between two CUDA events, so that launches are hidden where the work is longer
than they are; on a CPU it is timed by a clock. A batch lasts some milliseconds. What takes long is
repeated less often, but at least three times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Final

from msgspec import Struct

WARM_UP: Final = 5
BATCHES: Final = 9
FEWEST_BATCHES: Final = 3
BATCH_SECONDS: Final = 5e-3
MOST_CALLS: Final = 1000
# Of all batches of a call that takes long.
PATIENCE_SECONDS: Final = 1.0

Batch = Callable[[Callable[[], object], int], float]


class Timing(Struct, frozen=True, kw_only=True):
    """How long a call takes.

    Parameters
    ----------
    seconds
        Median over the batches, of one call. [s]
    spread
        From the fastest to the slowest batch, relative to the median.
    """

    seconds: float
    spread: float


def time_call(call: Callable[[], object], batch: Batch, least: float = BATCH_SECONDS) -> Timing:
    """Time a call.

    Parameters
    ----------
    call
        What is timed.
    batch
        Seconds of one call, over some calls: `batch_by_events` or `batch_by_clock`.
    least
        How long a batch lasts, at least about. [s]
    """
    once = batch(call, 1)
    repeats = WARM_UP if once < least else 1
    for _ in range(repeats):
        call()
    once = batch(call, 1)
    calls = max(1, min(MOST_CALLS, round(least / max(once, 1e-7))))
    batches = round(PATIENCE_SECONDS / max(once * calls, 1e-7))
    times = [batch(call, calls) for _ in range(max(FEWEST_BATCHES, min(BATCHES, batches)))]
    middle = statistics.median(times)
    return Timing(seconds=middle, spread=(max(times) - min(times)) / max(middle, 1e-12))


def measuring_time(seconds: float) -> float:
    """About how long it takes to time a call that takes so long. [s]"""
    often = BATCHES * max(BATCH_SECONDS, seconds) + (WARM_UP + 2) * min(seconds, BATCH_SECONDS)
    return max(min(often, PATIENCE_SECONDS), (FEWEST_BATCHES + 3) * seconds)


def batch_by_events(call: Callable[[], object], calls: int) -> float:
    """Seconds of a call on the GPU, between two events on its stream.

    Parameters
    ----------
    call
        Launches work.
    calls
        How often. [items]
    """
    import torch

    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    # nothing that was launched before runs between the events
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / calls


def batch_by_clock(
    call: Callable[[], object], calls: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Seconds of a call by a clock.

    Parameters
    ----------
    call
        What is timed.
    calls
        How often. [items]
    clock
        Tells the time. [s]
    """
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls
