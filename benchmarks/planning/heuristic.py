"""What the longest-path heuristic of Dryden et al. loses against the exact optimum."""

from __future__ import annotations

import time
from collections.abc import Iterable


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
        # where every message counts; the problem that bounds a step is a chain, which both solve
        problem = formulation.as_on_timeline.problem(1.0)
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
