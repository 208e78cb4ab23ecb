"""What devices hold at least under a global choice; docs/joint-search.md has the proofs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from costmodels.errors import InputError
from planner.joint.choices import Choice
from planner.joint.estimate import ROUNDING, Estimates
from planner.joint.micro_batch import MicroBatch
from planner.joint.passes import begun_before_backward
from planner.joint.runtimes import choice_runtime
from planner.joint.unequal import cuts_of

Floats = NDArray[np.float64]


class MemoryBounds:
    """Bounds of the memory of one question's choices.

    Parameters
    ----------
    estimates
        What choices cost.
    """

    def __init__(self, estimates: Estimates) -> None:
        self.estimates = estimates
        self.capacity = estimates.setting.cluster.device.memory

    def of_all(self, choices: Iterable[Choice]) -> Iterator[float]:
        """As `of`, of all choices that can run. [B]"""
        for choice in choices:
            insides = self.estimates.insides(choice.zero)
            with suppress(InputError):
                yield self.of(choice, insides.of(choice.inside, choice.samples))

    def of(self, choice: Choice, inside: MicroBatch) -> float:
        """What some device holds at least, wherever the stages are cut. [B]

        Parameters
        ----------
        choice, inside
            The choice, and what a micro-batch of it costs.
        """
        least = self._anyhow(choice, inside)
        if choice.chunks == 1 or "activations" in choice.offload:
            return least
        rows = (self.of_stages(choice, inside, s) for s in cuts_of(self.estimates, choice))
        return max(least, min(rows, default=math.inf))

    def of_stages(self, choice: Choice, inside: MicroBatch, starts: Sequence[int]) -> float:
        """What some device holds at least of several stages a group that begin there. [B]

        Parameters
        ----------
        choice, inside
            As of `of`.
        starts
            The first layer of each stage.
        """
        pp, chunks = choice.pp, choice.chunks
        held = np.add.reduceat(self.standing(choice, inside), starts).reshape(-1, pp).sum(axis=0)
        rounds, rest = np.divmod(begun_before_backward(choice), pp * chunks)
        under = rounds * pp + np.clip(rest - pp * np.arange(chunks)[:, None], 0, pp)
        if "activations" not in choice.offload:
            held += (under * np.add.reduceat(inside.kept, starts).reshape(-1, pp)).sum(axis=0)
        return float(held.max()) + self.reserved(choice)

    def refutes(self, choice: Choice) -> bool:
        """Whether a choice is known not to fit, by a micro-batch of a single sample."""
        try:
            return self.of_samples(choice) * (1.0 - ROUNDING) > self.capacity
        except InputError:
            return False

    def of_samples(self, choice: Choice) -> float:
        """As `of`, less where there are several chunks, by a micro-batch of a single sample. [B]

        What is kept of several samples is so many times what is kept of one.
        """
        one = self.estimates.insides(choice.zero).of(choice.inside, 1)
        return self._anyhow(choice, one, choice.samples)

    def standing(self, choice: Choice, inside: MicroBatch) -> Floats:
        """As of `MicroBatch.standing`. [B]"""
        return inside.standing(choice, self.estimates.ranks(choice, inside))

    def reserved(self, choice: Choice) -> float:
        """What the framework reserves at least. [B]"""
        reserved = self.estimates.setting.cluster.device.reserved_memory
        runtime = choice_runtime(self.estimates.runtime, choice.zero)
        staged = choice.pp > 1 and "stages" in runtime.groups
        if runtime.caching and (choice.dp > 1 or staged):
            # its replicas or stages have a communicator besides that of all devices
            reserved += min(runtime.communicator, runtime.communicator_of_two)
        return reserved

    def _anyhow(self, choice: Choice, inside: MicroBatch, times: int = 1) -> float:
        """As `of`, however stages of several chunks are cut. [B]

        Parameters
        ----------
        choice, inside
            As of `of`.
        times
            How often what the micro-batch keeps is there.
        """
        standing, pp = self.standing(choice, inside), choice.pp
        reserved = self.reserved(choice)
        if "activations" in choice.offload:
            return float(standing.sum()) / pp + reserved
        least = (float(standing.sum()) + times * inside.total_kept) / pp
        # a layer lies whole on one stage, and its weight is gathered for its backward pass
        alone = standing
        if choice.zero > 2 and not choice.offload:
            gathered = inside.numbers * (self.estimates.ranks(choice, inside) > 1.0)
            sent = self.estimates.setting.machine.training.activation_size
            alone = standing + gathered * sent
        least = max(least, float(alone.max(initial=0.0)))
        pieces = self.estimates.cuts.pieces
        if choice.chunks == 1 and pieces and not self.estimates.cuts.by_shares:
            held = np.add.reduceat(standing, pieces)
            kept = times * np.add.reduceat(inside.kept, pieces)
            flying = choice.flying
            if kept.min() > 0.0:
                share = float((held / kept).min())
                least = max(least, float(kept.sum()) / float((1.0 / (share + flying)).sum()))
        return least + reserved
