"""What choices that do not fit take with some of them in the hosts, roughly: which come first.

How long a choice takes without says little of how long it takes so: what has the most to copy is
often the fastest without, since it gathers nothing or computes nothing again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from planner.joint.choices import Choice
from planner.joint.estimate import Estimate, Estimates
from planner.joint.memory_bounds import MemoryBounds
from planner.joint.offload import HostRates, ways_to_wait
from planner.joint.passes import begun_before_backward

# What holds more by less may fit nevertheless, as groups are taken to hold equally much: none that
# fitted was left out so of 22,000 choices of four questions (2026-11-30). [parts]
ROUGH = 0.1


class Promise(NamedTuple):
    """A choice with some of it in the memory of the hosts.

    Parameters
    ----------
    seconds
        About what it takes. [s]
    place
        Of the choice without, among those that were asked for.
    names
        What waits there.
    """

    seconds: float
    place: int
    names: tuple[str, ...]


def promises(bounds: MemoryBounds, rows: Sequence[Estimate], most: float) -> list[list[Promise]]:
    """All ways of some choices that may fit, the fastest first; those choices first that have it.

    Parameters
    ----------
    bounds
        Of memory.
    rows
        Estimates without anything in the hosts, or bounds of both: these have no memory. Of a row
        all groups are taken to hold and to copy equally much.
    most
        What may fit is estimated to hold no more than that. [B]
    """
    estimates, found = bounds.estimates, []
    host = estimates.host
    for place, one in enumerate(rows):
        if one.memory == math.inf:
            one = replace(one, memory=bounds.of_samples(one.choice))
        sums, fit = _copied_and_held(estimates, one.choice), []
        for names in ways_to_wait(one.choice):
            seconds, held = sums.with_offload(one, names, host)
            if held <= most * (1.0 + ROUGH):
                fit.append(Promise(seconds, place, names))
        if fit:
            found.append(sorted(fit, key=lambda promise: promise.seconds))
    return sorted(found, key=lambda ways: (ways[0].seconds, ways[0].place))


class _CopiedAndHeld(NamedTuple):
    """What a group of devices holds and copies on average, a device each.

    Parameters
    ----------
    kept
        What a micro-batch keeps for backward. [B]
    flying
        Micro-batches that the first group has under way at most. [items]
    sent, gradients, updated
        Weights and gradients as they are copied, and parameters that are updated. [B], [items]
    weights, state
        What stays of both. [B]
    """

    kept: float
    flying: float
    sent: float
    gradients: float
    updated: float
    weights: float
    state: float

    def with_offload(
        self, one: Estimate, names: Sequence[str], host: HostRates
    ) -> tuple[float, float]:
        """About what a step takes, and what a device holds, with something in the hosts. [s], [B]

        Parameters
        ----------
        one, names, host
            The estimate without, what waits there, and what the hosts take for it.
        """
        kept = self.kept * ("activations" in names)
        weights, state = "weights" in names, "optimizer" in names
        held = one.memory - self.flying * kept - self.weights * weights - self.state * state
        sent = self.sent * weights
        ahead = max(max(kept, sent) * host.copy, (kept + sent) * host.shared)
        behind = (kept + sent) * host.copy
        seconds = max(one.seconds, one.choice.micro_batches * (ahead + behind))
        if state:
            back = 0.0 if weights else self.updated * host.sent
            seconds += max(back * host.copy, self.updated * host.update + back * host.shared)
        elif weights:
            seconds += self.gradients * host.copy
        return seconds, held


def _copied_and_held(estimates: Estimates, choice: Choice) -> _CopiedAndHeld:
    """What a choice holds and copies."""
    insides, pp = estimates.insides(choice.zero), choice.pp
    # what is known not to fit may not be costed yet, but of a single sample
    known = insides.known.get((choice.inside, choice.samples))
    inside, times = (known, 1) if known else (insides.of(choice.inside, 1), choice.samples)
    ranks = estimates.ranks(choice, inside)
    cut, state = (ranks if choice.zero > 2 else 1.0), (ranks if choice.zero else 1.0)
    # a forward pass of several stages a group leaves a part of a micro-batch
    first = choice.flying if choice.chunks == 1 else begun_before_backward(choice) / choice.chunks
    return _CopiedAndHeld(
        kept=times * inside.total_kept / pp,
        flying=float(first[0]),
        sent=float((inside.numbers / cut).sum()) * estimates.host.sent / pp,
        gradients=float((inside.gradients / state).sum()) / pp,
        updated=float((inside.parameters / state).sum()) / pp,
        weights=float((inside.weights / cut).sum()) / pp,
        state=float((inside.state / state).sum()) / pp,
    )
