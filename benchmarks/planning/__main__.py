"""How long planning takes and how much memory, as whole processes, and what the heuristic loses.

    python -m benchmarks.planning [--smoke] [--json] [--memory-limits [MODEL ...]]

The first table runs `planner optimize MODEL --gpus N` cold, each time in a new process, and takes
the median; search time is that of the search alone, with all costs known, measured in this process.
The second compares the longest-path heuristic of Dryden et al. with the exact optimum of the same
additive problem for every built-in network. `--memory-limits` prints another table instead: what
planning on 64 GPUs comes to under limits on memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from benchmarks.planning.memory_limits import faults, limit_rows
from benchmarks.planning.processes import run_planner

# How long the whole process may take; with None, twice as long as resnet50 on 256 GPUs. [s]
TARGETS = {
    ("resnet50", 256): 2.0,
    ("resnet152", 256): 5.0,
    ("densenet161", 256): 5.0,
    ("inception_v3", 256): 5.0,
    ("unet", 256): 5.0,
    ("gpt2", 256): 5.0,
    ("resnet50", 4096): None,
}
# Where planning under memory limits is tried. [items]
GPUS_OF_LIMITS = 64


def cold(model: str, gpus: int) -> tuple[float, float, dict[str, object]]:
    """Wall time [s] and peak resident memory [B] of one process, and what it printed."""
    words = ("optimize", model, "--gpus", str(gpus), "--json")
    run = run_planner(*words)
    if run.status != 0:
        raise SystemExit(f"planner {' '.join(words)} failed with status {run.status}")
    return run.wall, run.memory, json.loads(run.output)


def search_seconds(model: str, gpus: int) -> float:
    """Time of the search alone, the costs being there. [s]"""
    from planner.planning.options import SearchOptions
    from planner.planning.prepare import prepare
    from planner.planning.search_plan import search_plan
    from planner.request.request import Request
    from planner.request.setting import resolve

    prepared = prepare(resolve(Request(source=model, gpus=gpus)), SearchOptions())
    start = time.perf_counter()
    search_plan(prepared.formulation, starts=prepared.starts)
    return time.perf_counter() - start


def planning_rows(cases: Iterable[tuple[str, int]], repeats: int) -> list[dict[str, object]]:
    """Time and memory of planning, a row a case.

    Parameters
    ----------
    cases
        Networks and numbers of GPUs.
    repeats
        Processes of each case; times are their median, memory is their largest. [items]
    """
    # a new process counts the memory of the one it was forked from: fork while this one is small
    measured = {case: [cold(*case) for _ in range(repeats)] for case in cases}
    rows = []
    for (model, gpus), runs in measured.items():
        answer = runs[0][2]
        rows.append(
            {
                "model": model,
                "gpus": gpus,
                "wall_s": statistics.median(r[0] for r in runs),
                "target_s": TARGETS.get((model, gpus)),
                "peak_memory_bytes": max(r[1] for r in runs),
                "search_s": search_seconds(model, gpus),
                "step_time_s": answer["step_time_s"],
                "gap": answer["gap"],
                "proven_optimal": answer["proven_optimal"],
            }
        )
    base = next((r for r in rows if (r["model"], r["gpus"]) == ("resnet50", 256)), None)
    for row in rows:
        if (row["model"], row["gpus"]) == ("resnet50", 4096) and base:
            row["target_s"] = 2.0 * float(str(base["wall_s"]))
    return rows


def heuristic_rows(models: Iterable[str], gpus: int) -> list[dict[str, object]]:
    """The longest-path heuristic against elimination on the same problem."""
    from planner.planning.options import SearchOptions
    from planner.planning.prepare import prepare
    from planner.request.request import Request
    from planner.request.setting import resolve
    from search import SOLVERS

    rows = []
    for model in models:
        formulation = prepare(
            resolve(Request(source=model, gpus=gpus)), SearchOptions()
        ).formulation
        problem = formulation.problem(1.0)
        start = time.perf_counter()
        exact = SOLVERS["auto"](problem, time_limit=60.0, seed=0)
        middle = time.perf_counter()
        heuristic = SOLVERS["longest-path"](problem, time_limit=60.0, seed=0)
        end = time.perf_counter()
        rows.append(
            {
                "model": model,
                "gpus": gpus,
                "status": str(exact.status),
                "exact_s": exact.cost,
                "heuristic_s": heuristic.cost,
                "heuristic_gap": heuristic.cost / exact.cost - 1.0,
                "exact_seconds": middle - start,
                "heuristic_seconds": end - middle,
            }
        )
    return rows


def print_rows(rows: list[dict[str, object]], title: str) -> None:
    """Print rows of figures as a table."""
    table = Table(title=title)
    for key in rows[0]:
        table.add_column(key, justify="left" if key in ("model", "status") else "right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=150).print(table)


def print_limits(models: list[str], *, as_json: bool) -> None:
    """Print what planning under memory limits comes to, and fail where more memory is worse."""
    rows = limit_rows(models, GPUS_OF_LIMITS)
    if as_json:
        print(json.dumps(rows, indent=1))
    else:
        print_rows(rows, "planner optimize --memory, as parts of the peak without a limit")
    if found := faults(rows):
        raise SystemExit("more memory is worse: " + "; ".join(found))


def main() -> None:
    """Run both benchmarks, and print their tables or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="one quick case of each")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--memory-limits",
        nargs="*",
        metavar="MODEL",
        help="planning under memory limits instead, of all built-in networks unless some are named",
    )
    options = parser.parse_args()
    from planner.models import BUILT_IN

    if options.memory_limits is not None:
        print_limits(options.memory_limits or list(BUILT_IN), as_json=options.json)
        return
    cases = [("resnet50", 256)] if options.smoke else list(TARGETS)
    models = ["resnet18"] if options.smoke else list(BUILT_IN)
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "planning": planning_rows(cases, 1 if options.smoke else options.repeats),
        "heuristic": heuristic_rows(models, 64),
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{result['date']}, {result['machine']}")
    print_rows(result["planning"], "planner optimize, cold, whole process")  # type: ignore[arg-type]
    print_rows(result["heuristic"], "longest-path heuristic against the exact optimum")  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
