"""What the operations of a pass add up to: of layers, of units of layers, in buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.simulation import Queue
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.operations import Key, Operation
from costmodels.simulation.pieces import Piece


def layer_of(name: str, known: Mapping[str, object]) -> str:
    """The layer that an operation belongs to: changes of layout are named after their maker."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name


def seconds_of_layers(
    operations: Sequence[Operation],
    pieces: Mapping[str, Piece],
    queues: Sequence[Queue] = (Queue.COMPUTE, Queue.FEATURE),
) -> dict[str, float]:
    """What the operations of each layer take, one after the other. [s]

    Parameters
    ----------
    operations, pieces
        Of a pass, and the layers.
    queues
        Those that are counted.
    """
    found: dict[str, float] = {}
    for operation in operations:
        if operation.queue in queues:
            name = layer_of(operation.name, pieces)
            found[name] = found.get(name, 0.0) + operation.seconds + operation.transfer
    return found


def spans_of_units(
    operations: Sequence[Operation], pieces: Mapping[str, Piece]
) -> dict[str, float]:
    """From the first to the last computation of each unit of layers: the longest chain. [s]

    A device computes in the order of its operations, so that no two units, nor two micro-batches,
    are under way between the same two of them.

    Parameters
    ----------
    operations, pieces
        Of a pass, and the layers.
    """
    ends: dict[tuple[str, Key], float] = {}
    last: dict[str, float] = {}
    for operation in operations:
        unit = unit_of(layer_of(operation.name, pieces))
        before = [ends[unit, key] for _, _, key in operation.after if (unit, key) in ends]
        if operation.queue == Queue.COMPUTE:
            before.append(last.get(unit, 0.0))
        if not before:
            continue
        end = max(before) + operation.seconds + operation.transfer
        ends[unit, operation.key] = end
        if operation.queue == Queue.COMPUTE:
            last[unit] = end
    return last


def full_buckets(
    sizes: Sequence[float], kinds: Sequence[int], limit: float | None
) -> NDArray[np.bool_]:
    """Whether a bucket of gradients is full with that of each layer.

    Parameters
    ----------
    sizes, kinds
        Of the gradients, in the order of the forward pass; those of one kind travel together. [B]
    limit
        When a bucket is full, None for never. [B]
    """
    full = np.zeros(len(sizes), dtype=bool)
    filled: dict[int, float] = {}
    for place in range(len(sizes) - 1, -1, -1):
        kind, size = kinds[place], sizes[place]
        if size <= 0.0 or limit is None:
            continue
        size += filled.get(kind, 0.0)
        full[place] = size >= limit
        filled[kind] = 0.0 if full[place] else size
    return full
