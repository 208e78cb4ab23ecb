"""How long simulating takes, beside Proteus's Table VI, and all step models on the same steps.

    python -m benchmarks.simulation [--smoke] [--json] [--profile]

Times are medians in one warm process: the execution graph compiled and run, as the paper counts
them (operators' costs are known there), and the whole of `planner.simulate`. Proteus ran on another
machine, so that the comparison is one of magnitude.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import json
import os
import platform
import pstats
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

import planner
from benchmarks.accuracy.claims import table_of
from costmodels.errors import InputError
from costmodels.simulation import Behaviour, Compiler, Job, execute, load_runtime, measure_step
from planner.models.gpt import gpt2
from planner.request.inputs.simulating import step_models
from planner.request.parts import Degrees
from planner.request.placement import PlacedNetwork, place_network
from planner.request.request import Request
from planner.simulation.run import OVERLAP_FACTOR

PUBLISHED = Path(__file__).parent.parent / "published" / "data"
Row = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step to simulate.

    Parameters
    ----------
    name, model
        What it is called, and the network: a name, or blocks of a GPT-2.
    gpus, batch
        GPUs and global batch. [items]
    cluster
        The machine.
    degrees
        Ways of parallelism; data parallelism by default.
    aim
        Time of the whole call that is aimed at. [s]
    against
        A case whose time it may double.
    """

    name: str
    model: str | int
    gpus: int
    batch: int
    cluster: str = "proteus-hc2"
    degrees: Degrees | None = None
    aim: float | None = None
    against: str | None = None

    def given(self) -> dict[str, Any]:
        """As `planner.simulate` takes it."""
        model = self.model if isinstance(self.model, str) else gpt2(1024, blocks=self.model)
        result: dict[str, Any] = {
            "source": model,
            "gpus": self.gpus,
            "cluster": self.cluster,
            "global_batch_size": self.batch,
        }
        return result if self.degrees is None else {**result, "degrees": self.degrees}


DEEP = Degrees(dp=1, tp=1, pp=64, micro_batches=128)
CASES = (
    *(Case(name=f"vgg19, {n} GPUs", model="vgg19", gpus=n, batch=32 * n) for n in (1, 8)),
    Case(name="vgg19, 32 GPUs", model="vgg19", gpus=32, batch=1024, aim=0.2),
    *(Case(name=f"gpt2, {n} GPUs", model="gpt2", gpus=n, batch=32 * n) for n in (1, 8)),
    Case(name="gpt2, 32 GPUs", model="gpt2", gpus=32, batch=1024, aim=0.5),
    Case(
        name="vgg19, 1024 GPUs",
        model="vgg19",
        gpus=1024,
        batch=32 * 1024,
        cluster="dgx1-v100",
        against="vgg19, 32 GPUs",
    ),
    Case(
        name="gpt2, 1024 GPUs",
        model="gpt2",
        gpus=1024,
        batch=32 * 1024,
        cluster="dgx1-v100",
        against="gpt2, 32 GPUs",
    ),
    Case(
        name="gpt of 64 blocks, 64 stages x 128 micro-batches",
        model=64,
        gpus=64,
        batch=128,
        cluster="dgx1-v100",
        degrees=DEEP,
    ),
)
SMOKE = (
    Case(name="vgg19, 8 GPUs", model="vgg19", gpus=8, batch=256, aim=0.2),
    Case(
        name="gpt of 8 blocks, 8 stages x 16 micro-batches",
        model=8,
        gpus=8,
        batch=16,
        degrees=Degrees(dp=1, tp=1, pp=8, micro_batches=16),
    ),
)


def proteus_seconds(case: Case) -> float | None:
    """What Proteus took to compile and run it, where Table VI says. [s]"""
    with (PUBLISHED / "proteus_table6_cost.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["model"], int(row["gpus"])) == (case.model, case.gpus):
                return float(row["compile_s"]) + float(row["execute_s"])
    return None


def _job(subject: PlacedNetwork) -> Job:
    setting = subject.setting
    return Job(
        graph=subject.graph,
        strategy=subject.strategy,
        cluster=setting.cluster,
        shape=setting.machine.topology.shape,
        compute=setting.machine.compute,
        training=setting.machine.training,
        runtime=load_runtime("ddp"),
    )


def _median(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def speed(case: Case, repeats: int) -> Row:
    """Times of one case, each the median of some repetitions. [s]"""
    given = case.given()
    if case.degrees is not None:
        repeats = min(repeats, 3)
    whole = _median(lambda: planner.simulate(**given), repeats)
    job = _job(place_network(Request(**given)))
    graph = Compiler(job).compile(1)
    behaviour = Behaviour(overlap_factor=OVERLAP_FACTOR)
    task_times = execute(graph, behaviour)
    run = _median(lambda: execute(graph, behaviour), repeats)
    built = _median(lambda: Compiler(job).compile(1), repeats)
    return {
        "case": case.name,
        "tasks": len(graph.tasks),
        "compile [s]": built,
        "execute [s]": run,
        "measure [s]": _median(lambda: measure_step(task_times), repeats),
        "tasks/s executed": len(graph.tasks) / run,
        "whole call [s]": whole,
        "Proteus [s]": proteus_seconds(case),
        "aim [s]": case.aim,
        "met": None if case.aim is None else ("yes" if whole <= case.aim else "NO"),
    }


def speeds(cases: tuple[Case, ...], repeats: int) -> list[Row]:
    """Times of all cases."""
    planner.simulate(**cases[0].given())  # what is read once is read now
    rows = [speed(case, repeats) for case in cases]
    whole = {str(row["case"]): float(str(row["whole call [s]"])) for row in rows}
    for case, row in zip(cases, rows, strict=True):
        if case.against in whole:
            row["aim [s]"] = 2.0 * whole[case.against]
            row["met"] = "yes" if whole[case.name] <= 2.0 * whole[case.against] else "NO"
    return rows


# name, network, GPUs, machine, samples a GPU, degrees
SIDE_BY_SIDE: tuple[tuple[str, str, int, str, int, Degrees | None], ...] = (
    ("resnet50, 1 V100", "resnet50", 1, "dgx1-v100", 32, None),
    ("resnet50, 8 V100", "resnet50", 8, "dgx1-v100", 32, None),
    ("vgg19, HC1, 8", "vgg19", 8, "proteus-hc1", 32, None),
    ("vgg19, HC2, 32", "vgg19", 32, "proteus-hc2", 32, None),
    ("gpt2, HC1, 8x1x1", "gpt2", 8, "proteus-hc1", 1, None),
    ("gpt2, HC1, 4x2x1", "gpt2", 8, "proteus-hc1", 1, Degrees(dp=4, tp=2)),
    ("gpt2, HC2, 16x1x1", "gpt2", 16, "proteus-hc2", 4, None),
    ("gpt2, HC2, 8x1x2(8)", "gpt2", 16, "proteus-hc2", 4, Degrees(dp=8, pp=2, micro_batches=8)),
    ("resnet50, JUWELS, 4", "resnet50", 4, "juwels-booster", 64, None),
    ("resnet50, JUWELS, 1024", "resnet50", 1024, "juwels-booster", 64, None),
)


def side_by_side(smoke: bool = False) -> list[Row]:
    """Steps by every step model. [ms]"""
    rows: list[Row] = []
    for name, network, gpus, cluster, samples, degrees in SIDE_BY_SIDE[: 1 if smoke else None]:
        given: dict[str, Any] = {
            "source": network,
            "gpus": gpus,
            "cluster": cluster,
            "global_batch_size": samples * gpus,
            "degrees": degrees,
        }
        row: Row = {"step": name}
        for model in step_models():
            try:
                row[f"{model} [ms]"] = planner.simulate(model=model, **given).step_time * 1e3
            except InputError:  # closed forms know few strategies
                row[f"{model} [ms]"] = None
        rows.append(row)
    return rows


def profile(case: Case) -> None:
    """Print where the time of one whole call goes."""
    given = case.given()
    planner.simulate(**given)
    with cProfile.Profile() as profiler:
        planner.simulate(**given)
    print(case.name)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(18)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--smoke", action="store_true", help="two quick cases, one step")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--profile", action="store_true", help="print where the time goes instead")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    cases = SMOKE if options.smoke else CASES
    if options.profile:
        for case in cases:
            if case.gpus != 1:
                profile(case)
        return
    result: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "speed": speeds(cases, 1 if options.smoke else options.repeats),
        "step_models": side_by_side(options.smoke),
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{result['date']}, {result['machine']}")
    console = Console(width=None if Console().is_terminal else 170)
    console.print(table_of(result["speed"], "Time to simulate a step, warm"))
    console.print(table_of(result["step_models"], "The same steps by every step model"))


if __name__ == "__main__":
    main()
