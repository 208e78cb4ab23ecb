"""Runs of solvers on problem files, each in a new process, and what was found when.

Assumes: a reported cost is worth nothing until `benchmarks.search.check` has computed the same from
the file.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.search.known import Instance

ROOT = Path(__file__).resolve().parent.parent.parent
# how long a process may go on after its limit or an interrupt
OVERTIME = 120.0
GRACE = 20.0

# seconds since the search began, cost, proven bound
Point = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverRun:
    """One solver on one instance.

    Parameters
    ----------
    instance, solver, seed
        What was run.
    num_nodes, num_edges
        The size of the problem.
    reading, solving, process
        How long reading the file, the search and the whole process took. [s]
    cost, bound
        The cost and the proven bound.
    peak_usage
        What the solution uses at most. [B]
    peak_memory
        The most memory that the process had resident. [B]
    status, stopped_by, path, notes
        What the solver says of its answer.
    trace
        Every improvement.
    choices
        The candidate of each node; empty where no solution was found.
    failure
        Why there is no answer, or what is wrong with it, in one sentence.
    """

    instance: Instance
    solver: str
    seed: int
    num_nodes: int = 0
    num_edges: int = 0
    reading: float = math.nan
    solving: float = math.nan
    process: float = math.nan
    cost: float = math.inf
    bound: float = -math.inf
    peak_usage: float = math.nan
    peak_memory: float = math.nan
    status: str = "failed"
    stopped_by: str = ""
    path: str = ""
    notes: tuple[str, ...] = ()
    trace: tuple[Point, ...] = ()
    choices: tuple[int, ...] = field(default=(), repr=False)
    failure: str = ""

    @property
    def watched(self) -> bool:
        """Whether the solver announced anything before its end."""
        return len(self.trace) > 1

    @property
    def gap(self) -> float:
        """How far the cost may lie above the optimum, as a fraction of the cost."""
        if not self.choices:
            return math.inf
        if self.cost <= self.bound:
            return 0.0
        return (self.cost - self.bound) / abs(self.cost) if self.cost else math.inf

    def first_within(self, cost: float) -> float | None:
        """When a solution at this cost or less was there. [s]"""
        return next((point[0] for point in self.trace if point[1] <= cost), None)

    @property
    def first(self) -> float | None:
        """When the first solution was there. [s]"""
        return self.first_within(sys.float_info.max)

    def as_dict(self) -> dict[str, Any]:
        """All but the choices, as JSON has it."""
        left_out = ("instance", "choices")
        row = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in left_out}
        known = self.instance.known
        row["trace"] = [[_json(value) for value in point] for point in self.trace]
        return {
            "instance": self.instance.name,
            "time_limit": self.instance.time_limit,
            "best_contest_cost": known.best,
            "winner_team01_cost": known.winner,
            "xla_cost": known.xla,
            **{key: _json(value) for key, value in row.items()},
        }


def _json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def run(instance: Instance, solver: str, seed: int, *, whole_process: bool = False) -> SolverRun:
    """Run a solver in a new process; an interrupt is passed on, and its answer awaited.

    Parameters
    ----------
    instance
        What to solve.
    solver
        A name in `search.SOLVERS`.
    seed
        Seed of what is random.
    whole_process
        Whether starting and reading count towards the time limit.

    Raises
    ------
    RunInterrupted
        After an interrupt; it has the run as far as it came.
    """
    with tempfile.TemporaryDirectory(prefix="planner-") as folder:
        result = Path(folder) / "result.json"
        begin = time.perf_counter()
        command = [
            *(sys.executable, "-m", "benchmarks.search.worker"),
            *(str(instance.path.resolve()), str(result), solver),
            *(repr(instance.time_limit), str(seed)),
            repr(time.monotonic()) if whole_process else "-",
        ]
        # in a group of its own: else a Ctrl-C would reach it twice
        process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True, process_group=0
        )
        interrupted = False
        try:
            message, interrupted = _wait(process, 2.0 * instance.time_limit + OVERTIME)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        lasted = time.perf_counter() - begin
        found = json.loads(result.read_bytes()) if result.exists() else None
    if found is None:
        failure = _failure(process.returncode, message)
        one = SolverRun(
            instance=instance, solver=solver, seed=seed, process=lasted, failure=failure
        )
    else:
        one = make_run(instance, solver, seed, lasted, found)
    if interrupted:
        raise RunInterrupted(one)
    return one


class RunInterrupted(Exception):
    """An interrupt while a process ran."""

    def __init__(self, partial: SolverRun) -> None:
        super().__init__("interrupted")
        self.partial = partial


def _wait(process: subprocess.Popen[str], limit: float) -> tuple[str, bool]:
    """What the process had to say, and whether it was interrupted."""
    try:
        return process.communicate(timeout=limit)[1], False
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"killed after {limit:.0f} s, long past its time limit", False
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=GRACE)[1], True
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.communicate()
        return f"killed {GRACE:.0f} s after the interrupt or at the next one", True


def _failure(status: int, message: str) -> str:
    """Why a process ended without an answer."""
    last = (message.strip().splitlines() or [""])[-1]
    if last:
        return last
    if status == -signal.SIGKILL:
        return "the process was killed, as happens when memory is short"
    return "interrupted" if status == 130 else f"the process ended with exit status {status}"


def make_run(
    instance: Instance, solver: str, seed: int, process: float, found: dict[str, Any]
) -> SolverRun:
    """A run from what its process wrote; null stands for what is not finite.

    Parameters
    ----------
    instance, solver, seed
        What was run.
    process
        How long the whole process took. [s]
    found
        What it wrote.
    """

    def number(value: float | None, otherwise: float) -> float:
        return otherwise if value is None else float(value)

    trace = tuple(
        (float(seconds), number(cost, math.inf), number(bound, -math.inf))
        for seconds, cost, bound in found["trace"]
    )
    return SolverRun(
        instance=instance,
        solver=solver,
        seed=seed,
        num_nodes=found["num_nodes"],
        num_edges=found["num_edges"],
        reading=found["reading"],
        solving=found["solving"],
        process=process,
        cost=number(found["cost"], math.inf),
        bound=number(found["bound"], -math.inf),
        peak_usage=number(found["peak_usage"], math.nan),
        peak_memory=found["peak_memory"],
        status=found["status"],
        stopped_by=found["stopped_by"],
        path=found["path"],
        notes=tuple(found["notes"]),
        trace=trace,
        choices=tuple(found["choices"]),
    )


def best_known(runs: Sequence[SolverRun], instance: Instance) -> tuple[float, str]:
    """The least cost that anyone has reached, and who; +inf where nobody has."""
    ours = min((r.cost for r in runs if r.instance.path == instance.path), default=math.inf)
    best = instance.known.best
    if best is not None and best <= ours:
        return float(best), f"contest, {instance.known.best_team}".rstrip(", ")
    return ours, "here"
