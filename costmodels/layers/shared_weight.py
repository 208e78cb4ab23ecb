"""What a weight costs beyond its owner's share when another layer uses it, too.

Each of the two layers says which block of the weight a rank needs. A rank holds the union of the
two, with its gradient and optimizer state, and updates all of it. Gradients are summed as follows:

- where every rank has the same block for both layers, and the ranks that sum the sharer's gradient
  are among those that sum the owner's, both travel in one all-reduce: that of the owner;
- else the sharer's gradient is all-reduced by itself over the ranks that hold the same block of it;
- where the blocks differ, each rank then gets what it lacks of the other layer's sum, both ways.
  That exchange comes when the backward pass and all all-reduces are through, as Megatron-LM sums
  the gradients of tied embeddings (Narayanan et al. 2021), and nothing hides it.

Assumes that more than two users of a weight are compared with its owner one by one: what two
sharers hold in common beyond the owner's block is counted for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.communication.lacking import lacking_part
from costmodels.communication.layout import Layouts
from costmodels.communication.movement import movement
from costmodels.distribution import Candidates
from costmodels.distribution.rows import unique_rows
from costmodels.graph import Axis, Layer, Tensor
from costmodels.graph.sharing import shared_dims
from costmodels.layers.local_work import local_numbers, update_work
from costmodels.step.machine import Machine
from costmodels.step.timeline import bucketed_time

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Axes of a weight. Layouts have samples first, by which no weight is split.
_WEIGHT_AXES = ("sample", "row", "column")


class SharedBlock(Struct, frozen=True, kw_only=True):
    """What a sharer of a weight adds under one distribution of it and one of the owner.

    Parameters
    ----------
    parameters, frozen
        Numbers that a rank holds for the sharer beyond the owner's block: trained and others.
        [items]
    gradient_bytes, gradient_group, gradient_time
        The sharer's own all-reduce, see `SharedWeight`. [B], [items], [s]
    update, update_source
        What the update takes longer, and the `TimeSource` of that. [s]
    exchange, exchange_latency, exchange_bytes
        Of the exchange after all all-reduces, see `SharedWeight`. [s], [B]
    """

    parameters: float
    frozen: float
    gradient_bytes: float
    gradient_group: tuple[int, ...]
    gradient_time: float
    update: float
    update_source: int
    exchange: float
    exchange_latency: float
    exchange_bytes: float


class SharedWeight(Struct, frozen=True, kw_only=True, eq=False):
    """What a sharer of a weight adds, by how the owner and the sharer are distributed.

    Distributions that cut the weight alike and sum its gradient over as many ranks share a row.

    Parameters
    ----------
    owner_rows, sharer_rows
        Row of each candidate of the owner, and of the sharer.
    parameters, frozen
        Numbers that a rank holds for the sharer beyond the owner's block: trained and others.
        [items]
    beyond_mean
        By how many the union of both blocks exceeds their mean. [items]
    gradient_bytes
        The sharer's gradient where it is all-reduced by itself, else 0. [B]
    gradient_group
        Members at each level of the groups that all-reduce it; (sharer's rows, levels). [items]
    gradient_time
        What it adds at least to all-reduces of buckets. [s]
    update, update_source
        What the update takes longer, and the `TimeSource` of that. [s]
    exchange, exchange_latency, exchange_bytes
        Sums that ranks get of each other after all all-reduces: the time, the part of it before
        bytes flow, and what a rank receives. [s], [B]
    """

    owner_rows: Ints
    sharer_rows: Ints
    parameters: Floats
    frozen: Floats
    beyond_mean: Floats
    gradient_bytes: Floats
    gradient_group: Ints
    gradient_time: Floats
    update: Floats
    update_source: Ints
    exchange: Floats
    exchange_latency: Floats
    exchange_bytes: Floats

    def spread(self, values: Floats) -> Floats:
        """Values by rows as values by candidates of the owner and of the sharer."""
        return values[np.ix_(self.owner_rows, self.sharer_rows)]

    def block(self, owner: int, sharer: int) -> SharedBlock:
        """What the sharer adds under a candidate of the owner and one of its own."""
        place = (self.owner_rows[owner], self.sharer_rows[sharer])
        return SharedBlock(
            parameters=float(self.parameters[place]),
            frozen=float(self.frozen[place]),
            gradient_bytes=float(self.gradient_bytes[place]),
            gradient_group=tuple(int(n) for n in self.gradient_group[place[1]]),
            gradient_time=float(self.gradient_time[place]),
            update=float(self.update[place]),
            update_source=int(self.update_source[place]),
            exchange=float(self.exchange[place]),
            exchange_latency=float(self.exchange_latency[place]),
            exchange_bytes=float(self.exchange_bytes[place]),
        )


def within_whole(whole: float, held: float, blocks: Sequence[SharedBlock]) -> list[SharedBlock]:
    """The blocks that several sharers add, which no rank holds more of than the whole weight.

    Parameters
    ----------
    whole
        The weight. [items]
    held
        The owner's block. [items]
    blocks
        What each sharer adds to it.
    """
    rows = []
    for block in blocks:
        more = block.parameters + block.frozen
        part = min(more, max(whole - held, 0.0)) / more if more else 0.0
        held += more * part
        row = replace(block, parameters=block.parameters * part, frozen=block.frozen * part)
        rows.append(row)
    return rows


class _Blocks(Struct, frozen=True, kw_only=True, eq=False):
    """The distinct ways to hold a weight that one of its users has.

    Parameters
    ----------
    rows
        Which of them each candidate has.
    layouts
        Their blocks.
    numbers
        Size of the largest block. [items]
    group
        Members at each level that sum its gradient. [items]
    """

    rows: Ints
    layouts: Layouts
    numbers: Floats
    group: Ints


def _weight_blocks(layer: Layer, candidates: Candidates, dims: tuple[str, ...]) -> _Blocks:
    """How a layer cuts its weight.

    Parameters
    ----------
    layer, candidates
        The layer and its distributions.
    dims
        Its dims in the order of the axes of the weight as its owner holds it.
    """
    axes = tuple(
        Axis(name=name, extent=layer.dims[dim], dim=dim)
        for name, dim in zip(_WEIGHT_AXES[1:], dims, strict=False)
    )
    # what is partial is summed before anything is exchanged
    layouts = Layouts.of(candidates, Tensor(axes=axes), (), _WEIGHT_AXES)
    group = candidates.group(set(candidates.dims) - set(layer.weight_dims))
    first, rows = unique_rows(np.concatenate([layouts.codes(), group], axis=1))
    return _Blocks(
        rows=rows,
        layouts=layouts.take(first),
        numbers=local_numbers(layer, candidates)[first],
        group=group[first],
    )


def _one_all_reduce(owner: _Blocks, sharer: _Blocks) -> NDArray[np.bool_]:
    """Whether the owner's all-reduce also sums the sharer's gradient; (rows, rows)."""
    same = owner.layouts.codes()[:, None] == sharer.layouts.codes()[None]
    within = owner.group[:, None] % sharer.group[None] == 0
    one: NDArray[np.bool_] = same.all(axis=2) & within.all(axis=2)
    return one


def _exchange(
    owner: _Blocks, sharer: _Blocks, machine: Machine, num_bytes: float
) -> tuple[Floats, Floats]:
    """Time of giving each rank what it lacks of the other layer's sum, and its latency. [s]

    Parameters
    ----------
    owner, sharer
        How the two layers cut the weight.
    machine
        Where and how the step runs.
    num_bytes
        Gradient of the whole weight. [B]
    """
    there = movement(owner.layouts, sharer.layouts, machine.topology)
    back = movement(sharer.layouts, owner.layouts, machine.topology)
    first, second = np.arange(len(owner.layouts)), np.arange(len(sharer.layouts))
    time = there.time(first, second, num_bytes) + back.time(second, first, num_bytes).T
    return time, there.latency + back.latency.T


def shared_weight(
    owner: tuple[Layer, Candidates],
    sharer: tuple[Layer, Candidates],
    machine: Machine,
    *,
    largest_bucket: float,
) -> SharedWeight:
    """What a sharer of a weight adds to what its owner costs.

    Parameters
    ----------
    owner, sharer
        The layer that has the weight and the one that uses it, too, with their distributions.
    machine
        Where and how the step runs.
    largest_bucket
        Largest size of gradient buckets. [B]
    """
    pairs = shared_dims(owner[0], sharer[0])
    assert pairs is not None, "layers that share a weight hold it in one shape"
    training, topology = machine.training, machine.topology
    a, b = (
        _weight_blocks(*owner, tuple(p[0] for p in pairs)),
        _weight_blocks(*sharer, tuple(p[1] for p in pairs)),
    )
    whole = float(owner[0].parameters)
    trained = owner[0].parameters / owner[0].held_parameters
    lacks = lacking_part(a.layouts, b.layouts, 0, topology.shape)
    lacks_back = lacking_part(b.layouts, a.layouts, 0, topology.shape).T
    # blocks of uneven division are charged the largest
    needed = 1.0 / b.layouts.degrees.prod(axis=(1, 2))
    further = b.numbers * lacks / needed
    further = np.maximum(further, b.numbers - a.numbers[:, None])
    summed = b.numbers * trained * training.gradient_size * (b.group.prod(axis=1) > 1)
    gradient_bytes = np.where(_one_all_reduce(a, b), 0.0, summed)
    time = bucketed_time(topology, b.group, summed, largest_bucket, training.all_reduce)
    update, source = _further_update(a.numbers[:, None] * trained, further * trained, machine)
    num_bytes = whole * training.gradient_size
    exchange, latency = _exchange(a, b, machine, num_bytes) if whole else (0.0 * further,) * 2
    return SharedWeight(
        owner_rows=a.rows,
        sharer_rows=b.rows,
        parameters=further * trained,
        frozen=further * (1.0 - trained),
        beyond_mean=((a.numbers[:, None] - b.numbers) / 2.0 + further) * trained,
        gradient_bytes=gradient_bytes,
        gradient_group=b.group,
        gradient_time=np.where(gradient_bytes > 0.0, time, 0.0),
        update=update,
        update_source=source,
        exchange=exchange,
        exchange_latency=latency,
        exchange_bytes=num_bytes * (lacks + lacks_back),
    )


def _further_update(own: Floats, further: Floats, machine: Machine) -> tuple[Floats, Ints]:
    """How much longer the update takes, and the source of that. [s]

    Parameters
    ----------
    own, further
        Parameters that a rank has anyway, and those that come on top. [items]
    machine
        Where and how the step runs.
    """
    latency = machine.compute.device.kernel_latency

    def seconds(parameters: Floats) -> tuple[Floats, Ints]:
        work = update_work(parameters.reshape(-1), machine.training.optimizer)
        time, source = machine.compute.time(work)
        time = np.maximum(np.broadcast_to(time, parameters.size) - latency, 0.0)
        source = np.broadcast_to(source, parameters.size)
        return time.reshape(parameters.shape), source.reshape(parameters.shape).astype(np.int64)

    before, _ = seconds(own)
    after, source = seconds(own + further)
    return np.where(further > 0.0, np.maximum(after - before, 0.0), 0.0), source
