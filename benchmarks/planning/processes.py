"""Commands of the planner as whole processes: how long they take, and how much memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process from its start to its end.

    Parameters
    ----------
    status
        Exit status.
    output
        What it printed.
    wall, cpu
        How long it took, and how long it kept processors busy. [s]
    memory
        Peak resident memory. [B]
    """

    status: int
    output: str
    wall: float
    cpu: float
    memory: float


def run_planner(*arguments: str) -> Run:
    """Run one command of the planner in a new process; errors are shown where this one shows its.

    It finds its bytecode, as that of an installed package does.

    Parameters
    ----------
    arguments
        The words behind `planner`.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "planner", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    return Run(
        status=os.waitstatus_to_exitcode(status),
        output=output,
        wall=time.perf_counter() - start,
        cpu=usage.ru_utime + usage.ru_stime,
        memory=usage.ru_maxrss * 1024.0,
    )
