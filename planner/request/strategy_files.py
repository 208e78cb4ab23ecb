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
from costmodels.units.tables import read_text
from planner.output import write_text
from planner.request.strategy_tables import StrategyFile, format_strategy, parse_strategy

__all__ = [
    "StrategyFile",
    "dump_strategy",
    "format_strategy",
    "load_strategy",
    "parse_strategy",
    "read_strategy_file",
    "strategy_of",
    "strategy_text",
]


def read_strategy_file(path: str | os.PathLike[str]) -> StrategyFile:
    """What a strategy file says; `parse_strategy` of its text.

    Raises
    ------
    InputError
        When the file is missing or wrong.
    """
    text = read_text(path, f"the strategy file {path}")
    try:
        return parse_strategy(text)
    except InputError as error:
        raise InputError(f"the strategy file {path}: {error}") from None


def load_strategy(
    path: str | os.PathLike[str], graph: Graph, cluster: Cluster, gpus: int
) -> tuple[Strategy, tuple[Note, ...]]:
    """The strategy that a file stands for.

    Parameters
    ----------
    path
        The file.
    graph
        The network at the batch of one micro-batch: `read_strategy_file` tells their number.
    cluster, gpus
        The machine, and how many of its devices are used. [items]

    Returns
    -------
        The strategy, and notes on what it does that one may not expect.

    Raises
    ------
    InputError
        When the file is missing or wrong, or does not fit the network or the machine.
    """
    return strategy_of(read_strategy_file(path), path, graph, cluster, gpus)


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
    """The text of a file that `load_strategy` turns into an equal strategy.

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


def dump_strategy(
    path: str | os.PathLike[str],
    strategy: Strategy,
    graph: Graph,
    cluster: Cluster,
    gpus: int,
    *,
    model: str | None = None,
    global_batch_size: int | None = None,
    precision: str | None = None,
) -> None:
    """Write a strategy as a file, which appears whole or not at all.

    Parameters
    ----------
    path
        Where to.
    strategy, graph, cluster, gpus, model, global_batch_size, precision
        As of `strategy_text`.
    """
    text = strategy_text(
        strategy,
        graph,
        cluster,
        gpus,
        model=model,
        global_batch_size=global_batch_size,
        precision=precision,
    )
    write_text(path, text)
