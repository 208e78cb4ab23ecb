"""How fast this machine runs Python: tells what there is time for, before anything is timed."""

from __future__ import annotations

from functools import cache
from time import perf_counter

# How long a loop of Python is timed, and how often, as others may run meanwhile. [items]
TURNS, TRIALS = 5_000, 3


@cache
def turn_of_a_loop() -> float:
    """What a turn of a small loop of Python takes: how slow this machine is. [s]"""

    def timed(turns: int) -> float:
        began, held = perf_counter(), dict[int, object]()
        for i in range(turns):
            held[i & 255] = i, held.get(i & 127)
        return (perf_counter() - began) / turns

    return min(timed(TURNS) for _ in range(TRIALS))
