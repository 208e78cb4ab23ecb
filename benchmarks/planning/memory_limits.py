"""What planning comes to under memory limits: a plan, a proof that there is none, or neither."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.planning.processes import run_planner
from planner.cli.failures import INFEASIBLE, UNSOLVED

# Parts of the peak of the plan without a limit, what the framework reserves included.
SHARES = (0.97, 0.9, 0.8, 0.7, 0.6, 0.5)
# And of all built-in networks.
SHARES_OF_ALL = (0.95, 0.8, 0.6, 0.4)
# More memory may cost that much more before a plan counts as slower.
SLOWER = 1e-3
ANSWERS = {0: "plan", INFEASIBLE: "proof", UNSOLVED: "undecided"}


def limit_rows(
    models: Iterable[str], gpus: int, shares: Sequence[float] = SHARES
) -> list[dict[str, Any]]:
    """A row for every network and limit, the one without a limit first.

    Parameters
    ----------
    models
        Networks.
    gpus
        Number of GPUs. [items]
    shares
        Limits as parts of the peak without one, falling.
    """
    rows = []
    for model in models:
        free = _row(model, gpus, None, ())
        rows.append(free)
        # what fits no device without a limit has no peak to take parts of
        for share in shares if free["answer"] == "plan" else ():
            limit = share * free["peak_memory_bytes"]
            batch = ("--global-batch-size", str(free["global_batch_size"]))
            words = ("--memory", f"{limit:.0f} B", *batch)
            rows.append(_row(model, gpus, share, words))
    return rows


def _row(model: str, gpus: int, share: float | None, words: tuple[str, ...]) -> dict[str, Any]:
    """What one question comes to.

    Parameters
    ----------
    model, gpus
        Network and number of GPUs.
    share
        The limit as a part of the peak without one.
    words
        What is asked besides.
    """
    run = run_planner("optimize", model, "--gpus", str(gpus), "--json", *words)
    if run.status not in ANSWERS:
        raise SystemExit(f"{model} on {gpus} GPUs {' '.join(words)}: exit status {run.status}")
    plan = json.loads(run.output) if run.status == 0 else {}
    return {
        "model": model,
        "gpus": gpus,
        "share": share,
        "answer": ANSWERS[run.status],
        "wall_s": run.wall,
        "cpu_s": run.cpu,
        "step_time_s": plan["step_time_s"] if plan else math.nan,
        "gap": plan["gap"] if plan else math.nan,
        "peak_memory_bytes": plan["peak_memory_bytes"] if plan else math.nan,
        "global_batch_size": plan["global_batch_size"] if plan else None,
    }


def worse_with_more(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Where more memory gives a slower plan, or none though less memory has one."""
    found: list[str] = []
    less: dict[str, tuple[float, float]] = {}
    for row in reversed(list(rows)):
        step = row["step_time_s"] if row["answer"] == "plan" else math.inf
        best = less.get(row["model"], (math.inf, 0.0))
        if step > best[0] * (1.0 + SLOWER):
            found.append(
                f"{row['model']}: {row['answer']} of {step:.6g} s at {row['share'] or 1.0:.0%} of "
                f"the free peak, {best[0]:.6g} s at {best[1]:.0%}"
            )
        if step < best[0]:
            less[row["model"]] = (step, row["share"] or 1.0)
    return found
