"""Small strategies on machines whose timelines can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from machines import LinearCompute, cluster, graph

from costmodels.cluster import Cluster
from costmodels.compute import Work
from costmodels.graph import Graph
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Job,
    Queue,
    Runtime,
    SimulatedStep,
    load_runtime,
    run_graph,
)
from costmodels.step.training import Training
from costmodels.strategy import Strategy

PLAIN = Behaviour(overlap_factor=0.0, sharing=False)
# Links so fast that communication is free.
FREE: dict[str, Any] = {"latency": 0.0, "bandwidth": 1e18}
SAMPLES, CHANNELS = 5000, 1000
MS = 1e-3  # a product of SAMPLES x CHANNELS x CHANNELS multiply-adds
BLOCK = 4.0 * SAMPLES * CHANNELS  # an activation of the chain. [B]
P2P = {"latency": 0.0, "bandwidth": BLOCK / (0.5 * MS)}  # sent in half a unit of time
COMPUTES = ("forward", "recompute", "backward", "backward of weight")


class FreeUpdates(LinearCompute):
    """Linear compute on which updates take nothing."""

    def time(self, work: Work) -> tuple[Any, Any]:
        seconds, source = super().time(work)
        return seconds * (not work.operation.endswith("_update")), source


def chain(layers: int) -> Graph:
    """Linear layers that take 1 ms forward and 2 ms backward each.

    An activation comes first, which is free, and taken to be trained, so that the first of them
    needs the gradient of its input like all the others.
    """
    rows: list[Any] = [("relu", "activation", {})]
    rows += [(f"fc.{n}", "linear", {"filters": CHANNELS, "bias": False}) for n in range(layers)]
    made = graph({"channel": CHANNELS}, rows, SAMPLES)
    vars(made)["untrained"] = frozenset()
    return made


def compile_job(
    g: Graph,
    strategy: Strategy,
    where: Cluster,
    runtime: str | Runtime = "ddp",
    updates: bool = False,
    links: str = "shared",
    **options: Any,
) -> Compiler:
    """The compiler of a job on a machine with linear compute, using all of the cluster."""
    training = Training(**{"launch_time": 0.0, **options})
    kind = LinearCompute if updates else FreeUpdates
    return Compiler(
        Job(
            graph=g,
            strategy=strategy,
            cluster=where,
            shape=tuple(level.size for level in where.levels),
            compute=kind(where.device, training.precision),
            training=training,
            runtime=load_runtime(runtime) if isinstance(runtime, str) else runtime,
            links=links,
        )
    )


def simulated(
    g: Graph,
    strategy: Strategy,
    where: Cluster | None = None,
    behaviour: Behaviour = PLAIN,
    steps: int = 1,
    **options: Any,
) -> SimulatedStep:
    """A step of a strategy; communication is free unless a cluster says otherwise."""
    where = where or cluster(strategy.num_devices, **FREE)
    return run_graph(compile_job(g, strategy, where, **options).compile(steps), behaviour)


class Pass(NamedTuple):
    """A pass of a stage on a micro-batch, in ms."""

    name: str
    start: float
    end: float


def passes(result: SimulatedStep, role: int) -> list[Pass]:
    """What a role computes, in order, as such as Pass("F0.1", 0, 2): stage 0, micro-batch 1."""
    line = result.task_times
    letters = dict(zip(COMPUTES, "FRBW", strict=True))
    found: dict[str, tuple[float, float]] = {}
    for number, task in enumerate(line.graph.tasks):
        if task.role != role or task.queue != Queue.COMPUTE or task.kind not in COMPUTES:
            continue
        if not task.seconds:
            continue
        name = f"{letters[task.kind]}{task.stage}.{task.micro}"
        start, end = found.get(name, (line.starts[number], 0.0))
        found[name] = (start, max(end, line.ends[number]))
    rows = [Pass(name, round(a / MS, 6), round(b / MS, 6)) for name, (a, b) in found.items()]
    return sorted(rows, key=lambda row: row.start)


def as_text(rows: Sequence[Pass]) -> str:
    """Such as "F0.0 0-2, F0.1 2-4"."""
    return ", ".join(f"{row.name} {row.start:g}-{row.end:g}" for row in rows)


def in_flight(result: SimulatedStep, role: int) -> int:
    """Most micro-batches of a role between the start of forward and the end of backward."""
    events = []
    ends: dict[tuple[int, int], float] = {}
    line = result.task_times
    for number, task in enumerate(line.graph.tasks):
        if task.role != role or task.kind not in COMPUTES:
            continue
        mark = (task.stage, task.micro)
        if task.kind == "forward" and mark not in ends:
            events.append((line.starts[number], 1))
            ends[mark] = line.ends[number]
        ends[mark] = max(ends[mark], line.ends[number])
    events += [(end, -1) for end in ends.values()]
    # what ends when another begins makes room for it
    ordered = sorted((round(time / MS, 6), change) for time, change in events)
    return int(np.cumsum([change for _, change in ordered]).max())
