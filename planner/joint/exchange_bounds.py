"""What exchanges of weights and gradients take at least, and computation beside them.

What a message takes grows less than its size: where it is not known which gradients travel
together, all of them take no less than in a single one.
"""

from __future__ import annotations

from functools import wraps
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.estimate import Estimates
from planner.joint.micro_batch import MicroBatch
from planner.joint.unit_travels import travels_of_units
from planner.simulation.run import OVERLAP_FACTOR, waiting_time

Floats = NDArray[np.float64]


class Exchanged(Protocol):
    """What exchanges of all weights take, or of those of some layers. [s]"""

    def __call__(
        self,
        estimates: Estimates,
        choice: Choice,
        inside: MicroBatch,
        layers: NDArray[np.bool_] | None = None,
    ) -> float:
        """As of `gathers`."""


def by_weights_alone(exchanged: Exchanged) -> Exchanged:
    """Find out once what exchanges of all weights take that many choices have in common."""

    @wraps(exchanged)
    def found(
        estimates: Estimates,
        choice: Choice,
        inside: MicroBatch,
        layers: NDArray[np.bool_] | None = None,
    ) -> float:
        if layers is not None:
            return exchanged(estimates, choice, inside, layers)
        known = estimates.exchanges.least
        key = (exchanged, inside.weighs, choice.zero, choice.pp, choice.shard_size)
        if key not in known:
            known[key] = exchanged(estimates, choice, inside)
        return known[key]

    return found


def slowed_by_exchanges(computed: float, gaps: float, exchanged: float) -> float:
    """What computation takes beside exchanges, each of which slows the other one down. [s]

    Parameters
    ----------
    computed, gaps
        Computation, and what it waits for other communication. [s]
    exchanged
        Exchanges at full speed, of which what fits travels in the gaps. [s]
    """
    rest = max(exchanged - gaps, 0.0)
    return gaps + max(computed, rest) + OVERLAP_FACTOR * min(computed, rest)


def slowed_by_each_other(computed: Floats, moved: Floats) -> Floats:
    """What computation and exchanges of several groups take that slow each other down. [s]"""
    both: Floats = np.maximum(computed, moved) + OVERLAP_FACTOR * np.minimum(computed, moved)
    return both


def updates_by_layer(estimates: Estimates, choice: Choice, inside: MicroBatch) -> Floats:
    """What devices update of the weight of each layer, nothing where hosts may do that. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    if choice.offload:
        return np.zeros(len(inside.update))
    return inside.update / (estimates.ranks(choice, inside) if choice.zero else 1.0)


def passes_in_turn(
    estimates: Estimates, choice: Choice, inside: MicroBatch, updates: float
) -> float:
    """What the passes of one stage and one micro-batch take, the update, and what follows it.

    One begins when the one before it is through, with what it computes: a forward pass has gathered
    all weights, and the update waits for all gradients. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    updates
        Of all weights. [s]
    """
    overlaps = estimates.exchanges.gradients(choice.zero).overlap
    gathered = gathers(estimates, choice, inside)
    reduced = reductions(estimates, choice, inside)
    forward = float(inside.forward_computed.sum())
    backward = inside.total_computed - forward
    beside = max(reduced if overlaps else 0.0, gathered)
    if overlaps and choice.zero > 2:
        gathers_fill, sums_fill, _ = links_filled(estimates, choice, inside)
        beside = max(beside, float((gathers_fill + sums_fill).max()))
    return (
        slowed_by_exchanges(forward, inside.gaps[0], gathered)
        + slowed_by_exchanges(backward, inside.gaps[1], beside)
        + (0.0 if overlaps else reduced)
        + updates
        + gathered_after(estimates, choice, inside)
        + waiting_time(forward + backward + updates, estimates.setting.gpus)
    )


def passes_beside_exchanges(estimates: Estimates, choice: Choice, inside: MicroBatch) -> float:
    """What passes and exchanges of all micro-batches take side by side, in the mean of the groups.

    However a device lays them out, each slows the other one down where both run. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    count, pp = choice.micro_batches, choice.pp
    rounds = count if estimates.exchanges.gradients(choice.zero).each_micro_batch else 1
    gathered = 2.0 * count * gathers(estimates, choice, inside)
    exchanged = max(gathered, rounds * reductions(estimates, choice, inside))
    heaviest = 0.0
    if choice.zero > 2:
        gathers_fill, sums_fill, largest = links_filled(estimates, choice, inside)
        fills = 2.0 * count * gathers_fill + rounds * sums_fill
        exchanged, heaviest = max(exchanged, float(fills.max())), 2.0 * count * largest
    return max(
        slowed_by_exchanges(count * inside.total_computed / pp, 0.0, exchanged / pp), heaviest
    )


def links_filled(
    estimates: Estimates, choice: Choice, inside: MicroBatch
) -> tuple[Floats, Floats, float]:
    """How long gathers of all weights that are cut, and their reductions fill links of each level.

    Messages that share a link get a part of it each, so that what fills it takes as long as all of
    them one after the other.

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.

    Returns
    -------
    Of gathers and of reductions, (levels,) each, and what the gather of a unit of layers takes that
    takes the longest. [s]
    """
    known = estimates.exchanges.filled
    key = (inside.weighs, choice.pp, choice.shard_size)
    if key not in known:
        units = estimates.insides(choice.zero).sums
        travels = travels_of_units(estimates.exchanges, units, inside, choice)
        gathered, scattered, summed = (each.busy.sum(axis=1) for each in travels)
        known[key] = gathered, scattered + summed, float(travels[0].time.max())
    return known[key]


@by_weights_alone
def gathers(
    estimates: Estimates,
    choice: Choice,
    inside: MicroBatch,
    layers: NDArray[np.bool_] | None = None,
) -> float:
    """Gathers of all weights that are cut, once: every unit of layers has its own. [s]

    Parameters
    ----------
    estimates, choice, inside
        Of the question, the choice, and its micro-batch.
    layers
        Of these layers alone, None for all.
    """
    if choice.zero < 3:
        return 0.0
    size, found = estimates.setting.machine.training.activation_size, 0.0
    for number, cut in enumerate(inside.cuts):
        mine = inside.numbers * (inside.cut_of == number) * size
        mine = mine if layers is None else mine * layers
        sizes = _of_units(estimates, mine) if len(inside.cuts) == 1 else mine.sum(keepdims=True)
        for one, count in _messages(sizes):
            time = estimates.exchanges.time("all_gather", choice.pp, cut, one, choice.shard_size)
            found += count * time
    return found


def slowed_by_gathers(estimates: Estimates, choice: Choice, inside: MicroBatch) -> float:
    """By how much gathers of weights slow down what is computed beside them, at least. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    gathered = gathers(estimates, choice, inside)
    beside = 2.0 * gathered - float((inside.least - inside.computed).clip(min=0.0).sum())
    count, slow = choice.micro_batches, OVERLAP_FACTOR / (1.0 + OVERLAP_FACTOR)
    return max(count * beside, 0.0) * slow / choice.pp


def gathered_after(
    estimates: Estimates,
    choice: Choice,
    inside: MicroBatch,
    layers: NDArray[np.bool_] | None = None,
) -> float:
    """Gathers of updated weights where only their state is cut, after the update. [s]

    Each stage has one of them.

    Parameters
    ----------
    estimates, choice, inside, layers
        As of `gathers`.
    """
    if not 0 < choice.zero < 3 or choice.offload:
        return 0.0
    mine = estimates.ranks(choice, inside) > 1.0
    cut = inside.parameters[mine if layers is None else mine & layers]
    whole = float(cut.sum()) * estimates.setting.machine.training.activation_size
    time = estimates.exchanges.time
    ways = _cuts_of_largest(estimates, choice, inside)
    rows = (time("all_gather", choice.pp, way, whole, choice.shard_size) for way in ways)
    return min(rows, default=0.0)


def _cuts_of_largest(
    estimates: Estimates, choice: Choice, inside: MicroBatch
) -> list[tuple[int, ...]]:
    """Cuts over which some stage may gather, wherever stages begin: that of its largest weight.

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    known, cuts = estimates.exchanges.over, estimates.cuts
    key = (inside.weighs, choice.pp, choice.shard_size)
    if key not in known:
        mine = inside.parameters * (estimates.ranks(choice, inside) > 1.0)
        over = inside.cut_of.copy()
        for owner, sharer in estimates.exchanges.shared:
            # a stage of its own has a copy
            mine[sharer], over[sharer] = mine[owner], over[owner]
        starts = [0] if choice.pp == 1 else [] if cuts.by_shares else cuts.pieces
        parts = np.split(np.arange(len(mine)), starts[1:]) if starts else []
        largest = {int(part[mine[part].argmax()]) for part in parts if mine[part].any()}
        numbers = sorted({int(over[place]) for place in largest})
        known[key] = [inside.cuts[n] for n in numbers] if starts else list(inside.cuts)
    return known[key]


@by_weights_alone
def reductions(
    estimates: Estimates,
    choice: Choice,
    inside: MicroBatch,
    layers: NDArray[np.bool_] | None = None,
) -> float:
    """Reductions of the gradients of all stages, one after the other. [s]

    All that is left of gradients takes no less than in a single message, and a gradient that fills
    a bucket has one of its own; those of a unit of layers have, where they travel by units.

    Parameters
    ----------
    estimates, choice, inside, layers
        As of `gathers`.
    """
    exchanges = estimates.exchanges
    gradients = exchanges.gradients(choice.zero)
    found = 0.0
    for number, cut in enumerate(inside.cuts):
        message = (gradients.kind, choice.pp, cut)

        def time(sizes: Floats, message: tuple[str, int, tuple[int, ...]] = message) -> float:
            shards = choice.shard_size
            rows = _messages(sizes)
            return sum(count * exchanges.reduced(*message, size, shards) for size, count in rows)

        sizes = inside.gradients * (inside.cut_of == number) * gradients.part
        sizes = sizes if layers is None else sizes * layers
        if gradients.by_unit and len(inside.cuts) == 1:
            found += time(_of_units(estimates, sizes))
            continue
        whole = time(sizes.sum(keepdims=True))
        if gradients.limit is not None:
            whole = max(whole, time(sizes[sizes >= gradients.limit]))
        found += whole
    return found


def after_first(estimates: Estimates, choice: Choice, inside: MicroBatch) -> float:
    """What follows the backward pass of the first layer at least, where that is the last of all.

    Its gradient is reduced then, by itself or with others, and its weight is updated, and gathered
    where only its state is cut. Of what hosts may update, the reduction alone counts. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    known = estimates.exchanges.least
    key = (after_first, inside.weighs, choice.zero, choice.pp, choice.shard_size, choice.offload)
    if key not in known:
        first = np.arange(len(inside.gradients)) == 0
        known[key] = reductions(estimates, choice, inside, first)
        if not choice.offload:
            known[key] += float(updates_by_layer(estimates, choice, inside)[0])
            known[key] += gathered_after(estimates, choice, inside, first)
    return known[key]


def _of_units(estimates: Estimates, sizes: Floats) -> Floats:
    """Sizes of all layers summed up for each unit of them. [B]"""
    return np.bincount(estimates.plain.unit_of_layer, weights=sizes).astype(np.float64)


def _messages(sizes: Floats) -> list[tuple[float, int]]:
    """Sizes of messages, each once, and how many there are of them."""
    if len(sizes) == 1:
        return [(size, 1) for size in sizes.tolist() if size > 0.0]
    values, counts = np.unique(sizes[sizes > 0.0], return_counts=True)
    return list(zip(values.tolist(), counts.tolist(), strict=True))
