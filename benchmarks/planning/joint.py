"""Plans over stages, micro-batches and sharding beside published ways to train the same network.

Each published configuration is simulated as it is, on the same inputs as the plan. A row is told as
soon as it is known, and a rerun goes on with the rows of a file.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import planner
from benchmarks.planning.published import Published
from costmodels.simulation import Runtime, load_runtime
from planner.errors import InfeasibleError
from planner.plan import Plan
from planner.planning.staged import tried
from planner.report.parallelism import split_words
from planner.request.request import make_request
from planner.request.setting import DEFAULT_RUNTIME, resolve

Row = dict[str, object]


def rows_beside(
    published: Sequence[Published], only: str = "", resume: Path | None = None
) -> list[Row]:
    """A row for each published configuration.

    Parameters
    ----------
    published
        The configurations.
    only
        Those with this in their names alone.
    resume
        File of the rows so far, which are not made again.
    """
    known: dict[str, Row] = {}
    if resume is not None and resume.exists():
        lines = resume.read_text(encoding="utf-8").splitlines()
        known = {str(row["configuration"]): row for row in map(json.loads, lines)}
    rows = []
    for one in published:
        if only not in one.name:
            continue
        row = known.get(one.name) or row_beside(one)
        if one.name not in known:
            print(", ".join(f"{key} {_told(value)}" for key, value in row.items()), file=sys.stderr)
            if resume is not None:
                with resume.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        rows.append(row)
    return rows


def row_beside(one: Published) -> Row:
    """The plan for a question beside what is published."""
    began = time.process_time()
    try:
        plan: Plan | None = planner.optimize(**one.asked)
    except InfeasibleError:
        plan = None
    took = time.process_time() - began
    setting = resolve(make_request("optimize", one.asked))
    step, reason = tried(setting, one.degrees, runtime_beside(one))
    return {
        "configuration": one.name,
        "plan [s]": "none" if plan is None else plan.step_time_s,
        "[GiB]": "" if plan is None else plan.peak_memory / 2**30,
        "gap": "" if plan is None else plan.search.gap,
        "cpu [s]": took,
        "published [s]": reason if step is None else step.seconds,
        "its [GiB]": "" if step is None else step.peak_memory / 2**30,
        "fits": step is not None and step.fits,
        "plan": "" if plan is None else plan_words(plan),
    }


def runtime_beside(one: Published) -> Runtime:
    """Under which what is published is simulated: as plans with the same sharding are."""
    return load_runtime("fsdp" if one.degrees.sharding == 3 else DEFAULT_RUNTIME)


def slower_than_published(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Configurations that fit and that the plan is predicted to be slower than."""
    found = []
    for row in rows:
        ours, theirs = row["plan [s]"], row["published [s]"]
        if row["fits"] and not (isinstance(ours, float) and ours <= float(str(theirs))):
            found.append(f"{row['configuration']} ({ours} and {theirs} s)")
    return found


def plan_words(plan: Plan) -> str:
    """How a plan trains: splits, stages, micro-batches, what is cut, computed again or away."""
    words = [split_words(plan)]
    if len(plan.stages) > 1:
        chunks = len(plan.stages) // plan.num_groups
        words.append(f"{plan.num_groups} groups" + (f" x {chunks} stages" if chunks > 1 else ""))
    if plan.schedule.micro_batches > 1:
        words.append(f"{plan.schedule.micro_batches} micro-batches")
    cut = dict.fromkeys(what for layer in plan.layers.values() for what in layer.sharded)
    if cut:
        words.append(f"{', '.join(cut)} cut")
    again = sum(len(stage.recompute) for stage in plan.stages)
    if again:
        words.append(f"{again} parts computed again")
    if plan.offload:
        words.append(f"{', '.join(plan.offload)} in the memory of the hosts")
    return "; ".join(word for word in words if word)


def _told(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
