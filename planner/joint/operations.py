"""What the operations of a pass add up to: of layers, of units of layers, in buckets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from costmodels.simulation import Compiler, Queue
from costmodels.simulation.buckets import unit_of
from costmodels.simulation.host import launches
from costmodels.simulation.least_held import StageLives
from costmodels.simulation.operations import Key, Operation
from costmodels.simulation.pieces import Piece
from costmodels.simulation.schedules import BACKWARD
from costmodels.simulation.stage_program import StageProgram
from costmodels.simulation.tensors import ACTIVATIONS, GRADIENTS, JobView
from costmodels.simulation.updates import update_operations

# Kinds of operations: a backward pass of a weight by itself, and what is gathered again for one.
WEIGHT_PASS, GATHERED = "backward of weight", "change for backward"


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
    last = _last_ends(operations, pieces, (Queue.COMPUTE,))
    return {unit: end for (unit, _), end in last.items()}


def beside_each_other(
    operations: Sequence[Operation], pieces: Mapping[str, Piece]
) -> dict[str, float]:
    """As `seconds_of_layers`, less where collectives run beside computation of the same unit. [s]

    Each of both is done in order. A unit takes until both are through, and its layers share that.

    Parameters
    ----------
    operations, pieces
        Of a pass, and the layers.
    """
    seconds = seconds_of_layers(operations, pieces)
    serial: dict[str, float] = {}
    for name, each in seconds.items():
        serial[unit_of(name)] = serial.get(unit_of(name), 0.0) + each
    through: dict[str, float] = {}
    for (unit, _), end in _last_ends(operations, pieces, (Queue.COMPUTE, Queue.FEATURE)).items():
        through[unit] = max(through.get(unit, 0.0), end)
    shares = {unit: through[unit] / whole for unit, whole in serial.items() if whole > 0.0}
    return {name: each * min(shares.get(unit_of(name), 1.0), 1.0) for name, each in seconds.items()}


def _last_ends(
    operations: Sequence[Operation], pieces: Mapping[str, Piece], in_order: Collection[Queue]
) -> dict[tuple[str, Queue], float]:
    """When the last operation of each unit of layers ends on some queues, each unit by itself. [s]

    Parameters
    ----------
    operations, pieces
        Of a pass, and the layers.
    in_order
        Queues that do one operation after the other; all others do any number at once.
    """
    ends: dict[tuple[str, Key], float] = {}
    last: dict[tuple[str, Queue], float] = {}
    for operation in operations:
        unit, queue = unit_of(layer_of(operation.name, pieces)), operation.queue
        before = [ends[unit, key] for _, _, key in operation.after if (unit, key) in ends]
        if queue in in_order:
            before.append(last.get((unit, queue), 0.0))
        if not before:
            continue
        ends[unit, operation.key] = max(before) + operation.seconds + operation.transfer
        if queue in in_order:
            last[unit, queue] = ends[unit, operation.key]
    return last


def launched_of_layers(operations: Sequence[Operation], view: JobView) -> dict[str, float]:
    """What the host takes to launch the operations of each layer, if it runs ahead. [s]

    Parameters
    ----------
    operations, view
        Of a pass, and the job.
    """
    found: dict[str, float] = {}
    counts = launches(operations, view.graph, view.runtime, view.fresh_size > 0.0)
    for operation, count in zip(operations, counts, strict=True):
        seconds = count * view.launch_time
        if operation.queue == Queue.FEATURE:
            seconds += view.runtime.check(operation.ranks)
        name = layer_of(operation.name, view.pieces)
        found[name] = found.get(name, 0.0) + seconds
    return found


def without_weights(
    operations: Sequence[Operation], pieces: Mapping[str, Piece], weighted: Collection[str]
) -> Iterator[Operation]:
    """A backward pass without that of weights: what waits for nothing that only these read.

    Parameters
    ----------
    operations, pieces
        Of the whole pass, and the layers.
    weighted
        The layers whose weight has a pass.
    """
    apart = {op.name for op in operations if op.kind == WEIGHT_PASS}
    for op in operations:
        if op.kind == WEIGHT_PASS:
            continue
        if op.kind == "backward" and op.name in weighted and op.name not in apart:
            piece = pieces[op.name]
            after = tuple(ref for ref in op.after if ref[2][0] != GATHERED)
            part = piece.backward_data / piece.backward
            op = op._replace(after=after, seconds=op.seconds * part)
        yield op


def held_for_weights(
    phases: Mapping[str, Sequence[Operation]], weighted: Collection[str]
) -> dict[str, float]:
    """What the backward passes of weights read, of what is freed after the backward pass. [B]

    Parameters
    ----------
    phases
        Operations of both passes.
    weighted
        The layers whose weight has a pass.
    """
    sizes = {
        tensor: size
        for operations in phases.values()
        for operation in operations
        for tensor, holder, size in operation.makes
        if holder in (ACTIVATIONS, GRADIENTS)
    }
    found: dict[str, float] = {}
    for operation in phases[BACKWARD]:
        if operation.kind in ("backward", WEIGHT_PASS) and operation.name in weighted:
            own = ("grad", operation.name, 0)
            for tensor in (*operation.takes, *operation.uses, own):
                found[tensor[1]] = found.get(tensor[1], 0.0) + sizes.pop(tensor, 0.0)
    return found


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


def read_by_others(
    program: StageProgram, block_of: Mapping[str, str], stops_early: bool
) -> dict[str, float]:
    """What layers of other blocks read of each output where blocks are computed again. [B]

    Parameters
    ----------
    program
        Of the whole network as one stage.
    block_of
        The block of each layer.
    stops_early
        Whether what is computed again ends with the last tensor that a backward pass reads, so that
        it may read less.
    """
    tensors, found = program.tensors, {}
    for name, piece in program.pieces.items():
        sizes: dict[bytes, float] = {}
        for edge in program.graph.consumers[name]:
            again = program.graph.layers[edge.target].keeps_inputs or not stops_early
            if not again or block_of[edge.target] == block_of[name]:
                continue
            # as many copies as there are layouts that it is read in
            if tensors.change(edge).copies and not tensors.gathered_again(edge):
                reader = program.pieces[edge.target]
                sizes[reader.codes_read[edge.slot]] = reader.inputs[edge.slot]
            else:
                sizes[b""] = piece.output
        found[name] = sum(sizes.values())
    return found


def held_beside(compiler: Compiler, kept: Mapping[str, float]) -> dict[str, float]:
    """What passes of each layer hold beside what layers before it keep and what stays. [B]

    Parameters
    ----------
    compiler
        Of a step of one micro-batch in one stage.
    kept
        What is kept for backward of each layer. [B]
    """
    (work,) = compiler.weights
    before = dict(zip(kept, accumulate(kept.values(), initial=0.0), strict=False))
    lives = StageLives(work)
    # weights that are gathered count with those that stay
    held = lives.held("weights")
    found = dict.fromkeys(kept, 0.0)
    for operation, size in zip(lives.computed, held, strict=True):
        name = layer_of(operation.name, found)
        if name in found:
            found[name] = max(found[name], size - before[name])
    pieces = compiler.roles.every[0].reserved
    if pieces is not None:
        # what lies between tensors; an allocator that is short of memory gives back what the update
        # needs, and how much that is depends on the number of devices
        update = max(op.scratch for _, op in update_operations([work]))
        between = max(pieces - max(lives.held()) - update, 0.0)
        found = {name: size + between for name, size in found.items()}
    return found
