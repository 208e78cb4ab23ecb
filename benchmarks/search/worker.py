"""Solves one problem file in a process of its own, and writes what happened.

    python -m benchmarks.search.worker FILE RESULT SOLVER TIME_LIMIT SEED STARTED

RESULT is JSON; a float that is not finite is null there. STARTED is the monotonic clock when the
process was asked for, or `-`: if given, the time limit counts from there instead of from when the
search begins. A problem that cannot be solved ends the process with one sentence and exit status 1.
Assumes: the peak memory of this process is that of reading and solving, nothing else is done here.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from search import Assignment

# what is left to a search that begins after its limit
LEAST_TIME = 0.1


class Trace:
    """When the best cost and the bound improved."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.start = clock()
        self.points: list[tuple[float, float, float]] = []

    def __call__(self, cost: float, bound: float) -> None:
        """Note an improvement."""
        if not self.points or self.points[-1][1:] != (cost, bound):
            self.points.append((self.clock() - self.start, float(cost), float(bound)))


def peak_memory() -> int:
    """The most memory that this process has had resident. [B]"""
    try:
        # not ru_maxrss: that counts the process this one was forked from, too
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def solve_file(
    path: str, solver: str, time_limit: float, seed: int, started: float | None = None
) -> dict[str, Any]:
    """Read and solve a file, and say what happened.

    Parameters
    ----------
    path
        The file.
    solver
        A name in `search.SOLVERS`.
    time_limit
        Time for solving, or for everything since `started`. [s]
    seed
        Seed of what is random.
    started
        When the process began, on the monotonic clock; None to count from here. [s]
    """
    import search
    from search.files.contest import read_problem

    begin = time.perf_counter()
    problem = read_problem(path).problem
    reading = time.perf_counter() - begin
    if started is not None:
        time_limit = max(LEAST_TIME, time_limit - (time.monotonic() - started))
    watch = Trace()
    answer = search.solve(problem, solver=solver, time_limit=time_limit, seed=seed, watch=watch)
    solving = watch.clock() - watch.start
    watch(answer.cost, answer.lower_bound)
    return {
        "num_nodes": problem.num_nodes,
        "num_edges": len(problem.edges),
        "reading": reading,
        "solving": solving,
        "trace": [[_finite(value) for value in point] for point in watch.points],
        "peak_memory": peak_memory(),
        **_answer_facts(answer),
    }


def _answer_facts(answer: Assignment) -> dict[str, Any]:
    from planner.notes import words

    return {
        "choices": list(answer.choices),
        "cost": _finite(answer.cost),
        "bound": _finite(answer.lower_bound),
        "peak_usage": _finite(answer.peak_usage),
        "status": str(answer.status),
        "stopped_by": answer.stopped_by,
        "path": answer.solver,
        "notes": [words(note) for note in answer.notes],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def main() -> None:
    """Solve the file named on the command line."""
    # whoever starts this forwards one interrupt, also where a shell ignores them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path, result, solver, time_limit, seed, started = sys.argv[1:]
    from search import ProblemError

    try:
        found = solve_file(
            path, solver, float(time_limit), int(seed), None if started == "-" else float(started)
        )
    except ProblemError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    partial = f"{result}.partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(found, file)
    os.replace(partial, result)


if __name__ == "__main__":
    main()
