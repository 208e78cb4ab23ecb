"""What is gathered of the weights of each unit of layers, and how its gradients travel."""

from __future__ import annotations

import numpy as np

from planner.joint.choices import Choice
from planner.joint.exchanges import Exchanges
from planner.joint.gathers import Travel
from planner.joint.micro_batch import MicroBatch
from planner.joint.units import Units


def travels_of_units(
    exchanges: Exchanges, units: Units, inside: MicroBatch, choice: Choice
) -> tuple[Travel, Travel, Travel]:
    """Gathers of weights, and what gradients take, at the first layer of each unit. [s]

    Gradients are reduced over the ranks that share weights, and summed up over others then.
    However stages are cut, that is the same.

    Parameters
    ----------
    exchanges
        What messages take, and what is known of units.
    units, inside
        Of the layers, and what these hold.
    choice
        Stages, shards, and what is cut.
    """
    gradients, cuts_weights = exchanges.gradients(choice.zero), choice.zero > 2
    pp, shards = choice.pp, choice.shard_size
    key = (inside.weighs, pp, cuts_weights, gradients.kind, shards)
    if key in exchanges.by_unit:
        return exchanges.by_unit[key]
    shape = len(exchanges.whole.shape), len(inside.forward)
    gathers, scatters, sums = (Travel.none(shape) for _ in range(3))
    # what no other rank holds is not gathered
    several = [exchanges.ranks(pp, cut) > 1 for cut in inside.cuts]
    gathered = inside.numbers * np.array([*several, False])[inside.cut_of] * cuts_weights
    largest = units.largest(gathered)
    sizes = [
        units.sums(inside.gradients * (inside.cut_of == number)) * gradients.part
        for number in range(len(inside.cuts))
    ]
    size = exchanges.setting.machine.training.activation_size
    # most units are alike
    places: dict[tuple[int, tuple[float, ...]], list[int]] = {}
    rows = zip(
        units.firsts.tolist(),
        inside.cut_of[largest].tolist(),
        (units.sums(gathered) * size).tolist(),
        *(each.tolist() for each in sizes),
        strict=True,
    )
    for first, cut, *row in rows:
        places.setdefault((cut, tuple(row)), []).append(first)
    for (cut, (whole, *each)), firsts in places.items():
        if whole > 0.0:
            message = ("all_gather", pp, inside.cuts[cut], whole, shards)
            gathers.add(firsts, exchanges.travels_by(*message))
        for other, part in zip(inside.cuts, each, strict=True):
            reduced = (gradients.kind, pp, other, part, shards)
            scatters.add(firsts, exchanges.travels_by(*reduced))
            sums.add(firsts, exchanges.travels_by(*reduced, sums=True))
    exchanges.by_unit[key] = gathers, scatters, sums
    return exchanges.by_unit[key]
