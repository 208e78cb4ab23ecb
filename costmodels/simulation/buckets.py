"""Gradients that travel together, in the order in which the backward pass makes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from costmodels.graph import Layer
from costmodels.simulation.pieces import Piece
from costmodels.simulation.runtimes import Runtime
from costmodels.step.training import Training
from costmodels.strategy import MemoryConfig

Group = tuple[int, ...]


class GradientBucket(Struct, frozen=True, kw_only=True):
    """Gradients that travel together.

    Parameters
    ----------
    layers
        Whose they are.
    group
        Members that hold the same weights, at each level. [items]
    cut
        Whether each member gets the sum of a part only.
    late
        Whether it leaves once all of the backward pass is through.
    num_bytes
        Their size. [B]
    """

    layers: tuple[str, ...]
    group: Group
    cut: bool
    late: bool
    num_bytes: float


def unit_of(name: str) -> str:
    """The unit of layers that a layer is wrapped in: its block, or itself."""
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: place + 1])
    return name


def travelling_part(runtime: Runtime, training: Training) -> float:
    """The size of gradients as they travel, as part of that in which they are kept.

    Parameters
    ----------
    runtime, training
        How the step runs.
    """
    if runtime.low_precision_gradients:
        return training.activation_size / training.gradient_size
    return 1.0


def runtime_buckets(
    layers: Sequence[Layer],
    pieces: Mapping[str, Piece],
    runtime: Runtime,
    training: Training,
    memory: Callable[[str], MemoryConfig],
) -> list[GradientBucket]:
    """Buckets of the gradients of a stage.

    A bucket leaves when it is full or no gradient is left for it; without a size of buckets, when
    its unit of layers is through; where the runtime fuses gradients itself, each is a bucket.

    Parameters
    ----------
    layers
        Of the stage, in the order of the forward pass.
    pieces
        What they cost.
    runtime, training
        How the step runs.
    memory
        What is cut of a layer.
    """
    shrink = travelling_part(runtime, training)
    # servers of their own have the weights even of a lone worker
    served = runtime.gradient == "push_pull" and runtime.servers > 0
    by_unit = runtime.bucket is None and runtime.fusion is None
    filling: dict[tuple[Group, bool, bool], tuple[list[str], float]] = {}
    done: list[GradientBucket] = []
    last_unit = ""

    def close(key: tuple[Group, bool, bool]) -> None:
        names, size = filling.pop(key)
        group, cut, late = key
        bucket = GradientBucket(
            layers=tuple(names), group=group, cut=cut, late=late, num_bytes=size
        )
        done.append(bucket)

    for layer in reversed(layers):
        name, piece = layer.name, pieces[layer.name]
        num_bytes = piece.gradients if served else piece.gradient_bytes
        if num_bytes <= 0.0:
            continue
        if by_unit and unit_of(name) != last_unit:
            for key in list(filling):
                close(key)
        last_unit = unit_of(name)
        kept = memory(name)
        key = (piece.gradient_group, runtime.scatters(kept), reduced_late(kept, runtime))
        names, size = filling.get(key, ([], 0.0))
        filling[key] = ([*names, name], size + num_bytes * shrink)
        limit = math.inf if key[2] else runtime.bucket
        if runtime.first_bucket is not None and not done:
            limit = runtime.first_bucket
        if runtime.fusion is not None or (limit is not None and filling[key][1] >= limit):
            close(key)
    for key in list(filling):
        close(key)
    return done


def reduced_late(memory: MemoryConfig, runtime: Runtime) -> bool:
    """Whether a gradient is reduced with all others, after the backward pass."""
    return runtime.waits_to_reduce and (memory.gradients or memory.state)
