"""What messages between stages of blocks take at least, wherever the stages are cut."""

from __future__ import annotations

import math

import numpy as np

from planner.joint.choices import Choice
from planner.joint.estimate import Estimates
from planner.joint.micro_batch import MicroBatch
from planner.joint.unequal import cuts_of


def least_message(estimates: Estimates, choice: Choice, kept: MicroBatch) -> float:
    """A message from a stage to the next one, at least; 0 where stages are not made of blocks. [s]

    Parameters
    ----------
    estimates, choice, kept
        Of the question, the choice, and its micro-batch of which nothing is computed again.
    """
    pieces, pp = estimates.cuts.pieces, choice.pp
    if pp == 1 or len(pieces) < choice.parts or estimates.cuts.by_shares:
        return 0.0
    size = min(float(kept.sent[start - 1]) for start in pieces[1:])
    groups = pp if choice.chunks > 1 else pp - 1
    return min(estimates.exchanges.send(pp, group, size) for group in range(groups))


def tied_message(estimates: Estimates, choice: Choice, kept: MicroBatch) -> float:
    """What the first and the last stage send each other of the gradients of a weight they share.

    Each of them does in the end, when the last micro-batch is back. [s]

    Parameters
    ----------
    estimates, choice, kept
        As of `least_message`.
    """
    pieces, pp = estimates.cuts.pieces, choice.pp
    if pp == 1 or len(pieces) < choice.parts or estimates.cuts.by_shares:
        return 0.0
    return sum(
        estimates.exchanges.between(pp, 0, pp - 1, float(kept.gradients[owner]))
        for owner, sharer in estimates.exchanges.shared
        if owner < pieces[1] and sharer >= pieces[-1]
    )


def passed_on(choice: Choice, once: float, message: float, *, chain: bool) -> float:
    """What a step takes at least as its micro-batches cross the borders of stages. [s]

    A device sends one message after the other. With all its micro-batches under way, the first
    group begins another one when the first of them is back; with several stages a group, that is
    not known.

    Parameters
    ----------
    choice
        The choice.
    once, message
        What all stages take for one micro-batch at least, and one of these messages. [s]
    chain
        Whether no stage works on a micro-batch while another one does.
    """
    sent = 2.0 * (choice.parts - 1) * message
    found = choice.micro_batches * sent / choice.pp
    flying = int(choice.flying[0]) if choice.chunks == 1 else choice.micro_batches
    rounds = 1 + (choice.micro_batches - 1) // flying
    return max(found, rounds * (once + sent)) if chain else found


def interleaved(
    estimates: Estimates, choice: Choice, inside: MicroBatch, message: float, *, chain: bool
) -> float:
    """Each group works on all micro-batches, after the first stages of those before it. [s]

    Parameters
    ----------
    estimates, choice, inside
        Of the question, the choice, and its micro-batch.
    message, chain
        As of `passed_on`.
    """
    found = math.inf
    sent = 2.0 * message * np.arange(choice.pp)
    for starts in cuts_of(estimates, choice):
        each = np.add.reduceat(inside.least, starts).reshape(choice.chunks, choice.pp)
        before = np.concatenate(([0.0], np.cumsum(each[0])[:-1])) + sent
        least = float((choice.micro_batches * each.sum(axis=0) + before * chain).max())
        found = min(found, least)
    return found
