"""Networks, strategies and runtimes that tests of the simulation share."""

from __future__ import annotations

from typing import Any

from machines import cluster
from pipelines import CHANNELS, chain, simulated

from costmodels.graph import Graph, build_graph
from costmodels.simulation import (
    SimulatedStep,
    load_runtime,
)
from costmodels.strategy import Strategy
from costmodels.strategy.usual import hybrid
from planner.models.gpt import gpt2

WEIGHT = 4.0 * CHANNELS**2  # the weight of a layer of the chain. [B]


def gpt(blocks: int = 2, batch: int = 8, sequence: int = 16) -> Graph:
    return build_graph(gpt2(sequence, blocks=blocks, hidden=32, heads=4), batch)


def dp(g: Graph, p: int, micro: int = 1, shape: tuple[int, ...] | None = None) -> Strategy:
    return hybrid(g, shape or (p,), dp=p, micro_batches=micro)


LAYERS = 6


def zero(name: str, p: int = 4, micro: int = 1, **changes: Any) -> SimulatedStep:
    runtime = load_runtime(name, **changes)
    return simulated(chain(LAYERS), dp(chain(LAYERS), p, micro), cluster(p), runtime=runtime)
