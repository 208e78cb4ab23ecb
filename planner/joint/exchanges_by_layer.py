"""What exchanges of weights and gradients take at least, as sums over layers.

What a message takes grows less than its size, so that a part of all that may travel together takes
no less than its share of what all of it takes in one message.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.estimate import Estimates
from planner.joint.exchange_bounds import gathered_after
from planner.joint.micro_batch import MicroBatch
from planner.joint.runtimes import choice_runtime
from planner.joint.unit_travels import travels_of_units

Floats = NDArray[np.float64]


def reductions_by_layer(estimates: Estimates, choice: Choice, inside: MicroBatch) -> Floats:
    """What the gradients of each layer take at least of a message with any others. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    exchanges, gradients = estimates.exchanges, estimates.exchanges.gradients(choice.zero)
    found = np.zeros(len(inside.gradients))
    for number, cut in enumerate(inside.cuts):
        sizes = inside.gradients * (inside.cut_of == number) * gradients.part
        if whole := float(sizes.sum()):
            message = (gradients.kind, choice.pp, cut, whole, choice.shard_size)
            found += sizes / whole * exchanges.reduced(*message)
    return found


def gathers_by_layer(estimates: Estimates, choice: Choice, inside: MicroBatch) -> Floats:
    """What gathers of weights before a pass take at least, at the first layer of each unit. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    found = np.zeros(len(inside.numbers))
    if choice.zero < 3:
        return found
    size, firsts = estimates.setting.machine.training.activation_size, estimates.plain.units
    for number, cut in enumerate(inside.cuts):
        sizes = inside.numbers * (inside.cut_of == number) * size
        whole = float(sizes.sum())

        def time(num_bytes: float, cut: tuple[int, ...] = cut) -> float:
            message = (choice.pp, cut, num_bytes, choice.shard_size)
            return estimates.exchanges.time("all_gather", *message)

        if len(inside.cuts) == 1:
            units = np.bincount(estimates.plain.unit_of_layer, weights=sizes).tolist()
            found[[places[0] for places in firsts]] = [time(one) if one else 0.0 for one in units]
        elif whole:
            found += sizes / whole * time(whole)
    return found


def units_ahead(estimates: Estimates, choice: Choice) -> int:
    """Units of layers whose weights are gathered before a pass that uses them, at most. [items]"""
    return 1 + choice_runtime(estimates.runtime, choice.zero).prefetch


def fills_by_layer(
    estimates: Estimates, choice: Choice, inside: MicroBatch
) -> tuple[Floats, Floats]:
    """How long gathers of weights and reductions fill links of each level, where both travel. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.

    Returns
    -------
    (levels, layers) each, at the first layer of each unit; of no level where nothing is gathered.
    """
    if choice.zero < 3:
        return np.zeros((0, len(inside.numbers))), np.zeros((0, len(inside.numbers)))
    units = estimates.insides(choice.zero).sums
    gathered, scattered, summed = travels_of_units(estimates.exchanges, units, inside, choice)
    return gathered.busy, scattered.busy + summed.busy


def gathered_after_by_layer(estimates: Estimates, choice: Choice, inside: MicroBatch) -> Floats:
    """What gathers of updated weights take at least of a message with any others. [s]

    Parameters
    ----------
    estimates, choice, inside
        As of `gathers`.
    """
    sizes = inside.parameters * (estimates.ranks(choice, inside) > 1.0)
    whole = float(sizes.sum())
    return sizes / (whole or 1.0) * gathered_after(estimates, choice, inside)
