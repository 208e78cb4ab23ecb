"""How long planning takes and how much memory, as whole processes that start cold."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable

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
