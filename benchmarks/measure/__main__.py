"""Predict steps, then run them: `python -m benchmarks.measure [--seconds 240] [--device cuda]`.

On two ranks of this machine (gloo, one thread each) the local shapes of some thirty plans and the
links are profiled, as `planner profile` does, the steps of all plans are predicted from that table,
and each plan is run. Times are of the processor, and what a canary says was disturbed is thrown
away. On a GPU, steps of whole networks on one device are predicted and measured instead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure.questions import predict, questions, this_machine
from benchmarks.measure.ranks import RankWork, measure
from benchmarks.measure.scores import mean_relative_error, regret, spearman
from costmodels.compute import CostTable

AIM_RANKS, AIM_REGRET = 0.9, 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """A plan, predicted and measured. [s]"""

    question: str
    plan: str
    predicted: float
    measured: float
    runs: int
    rejected: int
    received: float
    charged: float


def machine_memory() -> float:
    """Memory of this machine. [B]"""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def compared(scale: int, seconds: float, folder: str) -> tuple[list[PlanRow], CostTable]:
    """All plans, predicted and measured, and the table that predictions rest on.

    Parameters
    ----------
    scale
        Part of the samples that is left.
    seconds
        How long plans are run. [s]
    folder
        Where profiles are kept.
    """
    import torch.multiprocessing as processes

    asked = tuple(questions(scale))
    work = RankWork(questions=asked, folder=folder, seconds=seconds, memory=machine_memory())
    processes.spawn(measure, (work,), nprocs=2)
    table = CostTable.load(Path(folder) / "table0.json")
    cluster, known = this_machine(work.memory), {q.name: q for q in asked}
    rows = []
    for found in json.loads((Path(folder) / "steps.json").read_text()):
        said = predict(known[found["question"]], found["plan"], cluster, table)
        rows.append(
            PlanRow(
                question=found["question"],
                plan=found["plan"],
                predicted=said.seconds,
                measured=found["seconds"],
                runs=found["runs"],
                rejected=found["rejected"],
                received=found["received"],
                charged=said.received,
            )
        )
    return rows, table


def report(rows: Sequence[PlanRow]) -> bool:
    """Print the comparison; whether it keeps what is aimed at."""
    print(f"{'layers':12s}{'plan':18s}{'predicted':>11s}{'measured':>11s}{'error':>8s}  runs")
    for row in rows:
        error = row.predicted / row.measured - 1
        times = f"{row.predicted * 1e3:8.2f} ms{row.measured * 1e3:8.2f} ms{error:+8.1%}"
        print(f"{row.question:12s}{row.plan:18s}{times}  {row.runs} kept, {row.rejected} disturbed")
    by_question: dict[str, list[PlanRow]] = defaultdict(list)
    for row in rows:
        by_question[row.question].append(row)
    ranks = spearman([r.predicted for r in rows], [r.measured for r in rows])
    regrets = [
        regret([r.predicted for r in some], [r.measured for r in some])
        for some in by_question.values()
    ]
    within = [
        spearman([r.predicted for r in some], [r.measured for r in some])
        for some in by_question.values()
        if len(some) > 2
    ]
    quiet = sum(row.runs > 0 for row in rows)
    error = mean_relative_error([(row.predicted, row.measured) for row in rows])
    print(f"\n{len(rows)} plans, {quiet} of them measured while nothing disturbed")
    print(f"Spearman over all plans       {ranks:6.3f}  (aim: at least {AIM_RANKS})")
    print(f"Spearman within layers, mean  {sum(within) / len(within):6.3f}")
    print(f"top-1 regret, mean            {sum(regrets) / len(regrets):6.1%}")
    print(f"top-1 regret, worst           {max(regrets):6.1%}  (aim: at most {AIM_REGRET:.0%})")
    print(f"error of a step, mean         {error:6.1%}")
    return ranks >= AIM_RANKS and max(regrets) <= AIM_REGRET


def main() -> int:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=150.0, help="how long plans are run")
    parser.add_argument("--scale", type=int, default=1, help="divide the samples by this")
    parser.add_argument("--folder", help="keep the profile there, and go on with it")
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        from benchmarks.measure.gpu import measure_gpu

        return measure_gpu(arguments.folder)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "meeting").unlink(missing_ok=True)
        rows, table = compared(arguments.scale, arguments.seconds, str(folder))
    print(f"{table.describe()}\n")
    return 0 if report(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
