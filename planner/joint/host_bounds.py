"""What copies to the memory of the hosts and back take at least, in all and pass by pass."""

from __future__ import annotations

import numpy as np

from planner.joint.choices import Choice
from planner.joint.estimate import Estimates
from planner.joint.micro_batch import MicroBatch
from planner.joint.offload import UNITS, HostRates


def copies_in_all(estimates: Estimates, choice: Choice, inside: MicroBatch) -> float:
    """What all stages take at least for copies, and for updates on hosts. [s]

    Some units stay where a backward pass follows its forward pass at once.

    Parameters
    ----------
    estimates, choice, inside
        Of the question, the choice, and its micro-batch.
    """
    setting, count = estimates.setting, choice.micro_batches
    copies = estimates.copies(choice, inside)
    moved = (copies.forward_out, copies.forward_in, copies.backward_in)
    away, there, back = (float(row.sum()) for row in moved)
    units = np.bincount(estimates.plain.unit_of_layer, weights=copies.backward_in)
    stay = UNITS * float(units.max())
    out, into = count * max(away - stay, 0.0), count * (there + max(back - stay, 0.0))
    last_out, last_in = float(copies.update_out.sum()), float(copies.update_in.sum())
    updated, rates = float(copies.updated.sum()), HostRates.mean(setting)
    shared = (out + last_out + into + last_in) * rates.shared + updated * rates.update
    shared = max(shared, max(out + last_out, into + last_in) * rates.copy)
    # the update waits for all gradients of a device, which hosts that update have by then
    rates = HostRates.of(setting, setting.gpus // choice.pp)
    if "optimizer" in choice.offload:
        before = max(out + last_out, into) * rates.copy
        return max(shared, before + max(updated * rates.update, last_in * rates.copy))
    return max(shared, (max(out, into) + max(last_out, last_in)) * rates.copy)


def copied_in_passes(
    estimates: Estimates, choice: Choice, inside: MicroBatch
) -> tuple[float, float]:
    """What all forward passes of all stages take at least for copies, and all backward passes. [s]

    No more than two units are left to leave when a forward pass ends, or a run of them without a
    backward pass between; no more than two come before the backward pass that reads them.

    Parameters
    ----------
    estimates, choice, inside
        As of `copies_in_all`.
    """
    pp, count = choice.pp, choice.micro_batches
    copies, units = estimates.copies(choice, inside), estimates.plain.unit_of_layer
    rows = (copies.forward_out, copies.forward_in, copies.backward_in)
    in_turn = choice.chunks > 1 and count == pp  # all forward passes come first
    passes = count * (1 if in_turn else choice.chunks)
    runs = 1 if in_turn else passes
    most = [UNITS * pp * float(np.bincount(units, weights=row).max()) for row in rows]
    out, there, back = (count * float(row.sum()) for row in rows)
    # devices that share a link may be at passes of either kind
    rate = HostRates.of(estimates.setting, estimates.setting.gpus // pp).copy
    forward = max(out - runs * most[0], there - passes * most[1], 0.0)
    return forward * rate, max(back - passes * most[2], 0.0) * rate
