"""Strategies in TOML files, as `docs/strategy-files.md` describes them.

A file names a few layers and subgraphs; `costmodels.strategy` makes a complete strategy of it.
"""

from __future__ import annotations

import os

from costmodels.cluster import Cluster
from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.notes import Note
from costmodels.strategy import Strategy, build_strategy, describe_strategy
from planner.request.strategy_tables import StrategyFile, format_strategy


def strategy_of(
    file: StrategyFile, path: str | os.PathLike[str], graph: Graph, cluster: Cluster, gpus: int
) -> tuple[Strategy, tuple[Note, ...]]:
    """The strategy of a file that is read already, and notes on what followed from it.

    Parameters
    ----------
    file
        What it says.
    path
        Where it lies, for messages.
    graph
        The network at the batch of one micro-batch.
    cluster, gpus
        The machine, and how many of its GPUs take part. [items]

    Raises
    ------
    InputError
        When it does not fit the network or the machine.
    """
    try:
        strategy, notes = build_strategy(file.description, graph, cluster.shape(gpus))
    except InputError as error:
        raise InputError(f"the strategy file {path}: {error}") from None
    return strategy, tuple(notes)


def strategy_text(
    strategy: Strategy,
    graph: Graph,
    cluster: Cluster,
    gpus: int,
    *,
    model: str | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
) -> str:
    """The text of a file that `strategy_of` turns into an equal strategy.

    Parameters
    ----------
    strategy
        The strategy.
    graph
        The network at the batch of one micro-batch.
    cluster, gpus
        The machine, and how many of its devices are used. [items]
    model, global_batch_size, precision
        Further defaults to put in the file.
    """
    if strategy.shares:
        raise InputError(
            "a strategy file must share samples out evenly but the strategy gives the groups of "
            "hosts uneven shares; keep the plan instead"
        )
    description = describe_strategy(strategy, graph, cluster.shape(gpus))
    file = StrategyFile(
        description=description,
        model=model,
        cluster=cluster.name,
        gpus=gpus,
        global_batch_size=global_batch_size,
        precision=precision,
    )
    return format_strategy(file)
