"""Stages by shares of the weights that products read, filled up one after the other.

As in nanotron (models/base.py, build_model): a stage takes blocks until it has its share of the
multiply-adds of linear layers, so that a large head weighs as much as the blocks that it is worth,
and the last stages may have few blocks. Two things are inferences from runs of 16 blocks with a
head worth 4 of them (The Ultra-Scale Playbook): since the pipeline was mended, an exact share is
enough, where the code went on to the next block before (between steps, processes hold 10 blocks of
the first of 2 and 5 of the first of 4 stages, and held 11 and 6); and no stage computes the loss
alone (8 stages took less time than it takes to send logits).
"""

from __future__ import annotations

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy.blocks import block_of

# Sums of whole numbers are exact, shares of them are not.
_ROUNDING = 1e-9
# When a stage is full: with exactly its share, or with more.
FULL = ("reached", "exceeded")


def cut_by_shares(
    graph: Graph, parts: int, full_when: str = FULL[0]
) -> tuple[tuple[str, ...], ...]:
    """The layers of each stage.

    Parameters
    ----------
    graph
        The network.
    parts
        Stages. [items]
    full_when
        One of `FULL`: when a stage has enough.

    Raises
    ------
    InputError
        When a stage would have no layers.
    """
    units: dict[str, list[str]] = {}
    weights: dict[str, float] = {}
    for layer in graph.compute_layers:
        unit = block_of(layer.name) or layer.name
        units.setdefault(unit, []).append(layer.name)
        weights[unit] = weights.get(unit, 0.0) + layer.macs * (layer.kind == "linear")
    total, passed = sum(weights.values()), 0.0
    stages: list[list[str]] = [[]]
    full, enough = False, 1.0 if full_when == "exceeded" else -1.0
    for unit, names in units.items():
        if full and len(stages) < parts:
            stages.append([])
        stages[-1] += names
        passed += weights[unit]
        full = passed >= total * len(stages) / parts * (1.0 + enough * _ROUNDING)
    idles = not any(weights.get(block_of(name) or name, 0.0) for name in stages[-1])
    if len(stages) < parts or (parts > 1 and idles):
        stages = _with_tail(stages, parts)
    if len(stages) != parts:
        raise InputError(
            f"{graph.name} fills {len(stages)} stages by shares of its linear layers but {parts} "
            "are asked for; choose fewer"
        )
    return tuple(map(tuple, stages))


def _with_tail(stages: list[list[str]], parts: int) -> list[list[str]]:
    """Stages that would idle get what comes after the last block, where that is enough for them."""
    names = [name for stage in stages for name in stage]
    last = max((n for n, name in enumerate(names) if block_of(name) is not None), default=-1)
    tail = names[last + 1 :]
    rows = [row for stage in stages if (row := [name for name in stage if name not in set(tail)])]
    missing = parts - len(rows)
    if not 1 <= missing <= len(tail):
        return stages
    return [*rows, *([name] for name in tail[: missing - 1]), tail[missing - 1 :]]
