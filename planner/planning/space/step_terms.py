"""What no simulated step is faster than: terms, each a sum over layers and edges.

A device computes one thing after the other, in the order of the layers and back. What it waits for
between two neighbours in that order is in every step: the messages of a layer that reads the one
right before it. Those of other layers may travel beside the computation in between, and count as
nothing. Gradient all-reduces run one at a time, in the order in which gradients are made. While one
runs, it and the computation beside it take 1 + gamma times as long; and the devices wait for the
slowest of them. `docs/search.md` derives the terms from that.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.distribution import Candidates
from costmodels.layers.layer_cost import LayerCosts
from planner.planning.space.profile import NUM_KINDS, Gaps, LayerShare
from planner.simulation.run import OVERLAP_FACTOR, waiting_time

Floats = NDArray[np.float64]


class PassTimes(Struct, frozen=True, kw_only=True, eq=False):
    """What a layer takes in a step at least, an array over its candidates each. [s]

    Parameters
    ----------
    once
        Computation of the forward pass and the update, and what others wait for it.
    backward, behind
        Computation of the backward pass, and what others wait for it.
    ready
        The part of it that makes the weight's gradient.
    before, after
        Messages of the forward pass.
    back_before, back_after
        Messages of the backward pass.
    sums
        Reductions of the gradients of the inputs.
    gradient, alone
        What it adds to all-reduces, and its all-reduce when nothing travels with it.
    link, sums_link
        How long its all-reduce, and these reductions fill the outermost links at least.
    """

    once: Floats
    backward: Floats
    behind: Floats
    ready: Floats
    before: Floats
    after: Floats
    back_before: Floats
    back_after: Floats
    sums: Floats
    gradient: Floats
    alone: Floats
    link: Floats
    sums_link: Floats

    @classmethod
    def of(cls, candidates: Candidates, costs: LayerCosts) -> PassTimes:
        """The times of candidates that are costed in full."""
        waiting = _waiting(candidates)
        backward = costs.backward_data + costs.backward_weight + costs.slabs_backward
        return cls(
            once=(1.0 + waiting) * (costs.forward + costs.slabs_forward + costs.update),
            backward=backward,
            behind=waiting * backward,
            ready=np.where(costs.weight_first, costs.backward_weight, backward),
            before=costs.halo_forward - costs.slabs_forward,
            after=costs.statistics / 2 + np.minimum(costs.reduce_forward, costs.summed_forward),
            back_before=costs.halo_backward - costs.slabs_backward,
            back_after=costs.statistics / 2,
            sums=costs.least_backward,
            gradient=costs.gradient_time,
            alone=costs.gradient_alone,
            link=costs.gradient_link,
            sums_link=costs.link_backward,
        )

    @classmethod
    def computing(
        cls, candidates: Candidates, once: Floats, backward: Floats, ready: Floats
    ) -> PassTimes:
        """The times of computation alone.

        Parameters
        ----------
        candidates
            Candidates of a layer.
        once, backward, ready
            Computation of each. [s]
        """
        waiting, none = _waiting(candidates), np.zeros(len(candidates))
        return cls(
            once=(1.0 + waiting) * once,
            backward=backward,
            behind=waiting * backward,
            ready=ready,
            before=none,
            after=none,
            back_before=none,
            back_after=none,
            sums=none,
            gradient=none,
            alone=none,
            link=none,
            sums_link=none,
        )

    def forward_messages(self, gaps: Gaps) -> Floats:
        """Messages of the forward pass that count. [s]"""
        return gaps.before * self.before + gaps.after * self.after

    def backward_messages(self, gaps: Gaps) -> Floats:
        """Messages after the backward pass that count. [s]"""
        return gaps.back_after * self.back_after + gaps.sums * self.sums

    def on_links(self, gaps: Gaps) -> Floats:
        """How long what counts fills the outermost links. [s]"""
        return self.link + gaps.sums * self.sums_link

    def weighted(self, share: LayerShare) -> Floats:
        """The cost of every candidate in an additive problem, by how much of it counts. [s]"""
        gaps = share.gaps
        costs: Floats = (
            self.once
            + self.behind
            + self.forward_messages(gaps)
            + share.backward * self.backward
            + share.ready * self.ready
            + (share.waits * gaps.back_before) * self.back_before
            + share.messages * self.backward_messages(gaps)
            + share.gradient * self.gradient
            + share.alone * self.alone
            + share.link * self.on_links(gaps)
        )
        return costs

    def take(self, indices: NDArray[np.int64]) -> PassTimes:
        """The times of some of the candidates."""
        names = PassTimes.__struct_fields__
        return PassTimes(**{name: _some_of(getattr(self, name), indices) for name in names})

    def joined(self, more: PassTimes) -> PassTimes:
        """The times of these candidates and of others behind them."""
        names = PassTimes.__struct_fields__
        return PassTimes(**{n: np.concatenate([getattr(self, n), getattr(more, n)]) for n in names})


def _some_of(times: Floats, indices: NDArray[np.int64]) -> Floats:
    """Some of the times; of zeros, which most layers have many of, one is stored for all."""
    some = times[indices]
    return some if some.any() else np.broadcast_to(0.0, some.shape)


def _waiting(candidates: Candidates) -> Floats:
    """What devices wait for the slowest at least, as part of what each computes; (candidates,).

    No fewer devices have work of their own than a layer is split over.
    """
    ways, of_ways = np.unique(candidates.degrees.prod(axis=(1, 2)), return_inverse=True)
    return np.array([waiting_time(1.0, int(count)) for count in ways])[of_ways.reshape(-1)]


class ChosenTimes(Struct, frozen=True, kw_only=True, eq=False):
    """What the layers of an assignment take at least; (layers,) each. [s]

    Parameters
    ----------
    once, backward, behind, ready, gradient, alone
        As of `PassTimes`.
    waits, messages
        Halos of the backward pass, and its other messages, that count.
    link
        How long these and all-reduces fill the outermost links.
    end
        What comes after all of that.
    """

    once: Floats
    backward: Floats
    behind: Floats
    ready: Floats
    waits: Floats
    messages: Floats
    gradient: Floats
    alone: Floats
    link: Floats
    end: float

    def terms(self, *, overlap: bool) -> Floats:
        """The terms; (kinds, 1 + layers), the one without exposed all-reduces first. [s]

        Parameters
        ----------
        overlap
            Whether all-reduces run beside the backward pass.
        """
        always = float((self.once + self.behind).sum()) + self.end
        if not overlap:
            whole = self.backward + self.waits + self.messages + self.gradient
            return np.full((NUM_KINDS, len(self.once) + 1), always + whole.sum())
        kept = 1.0 - OVERLAP_FACTOR
        plain = self.backward + self.waits + self.messages
        slowed = self.backward + kept * self.messages + OVERLAP_FACTOR * self.gradient
        linked = self.backward + kept * self.messages + OVERLAP_FACTOR * self.link
        # up to the gradient of a layer, and from there on
        then = np.cumsum(OVERLAP_FACTOR * self.backward) + kept * self.ready
        reduced = np.cumsum(self.gradient)
        last = kept * self.alone + OVERLAP_FACTOR * reduced
        kinds = ((plain, reduced), (slowed, reduced), (slowed, last), (linked, self.link.cumsum()))
        rows = [
            np.append(one.sum(), one.sum() - np.cumsum(one) + then + more) for one, more in kinds
        ]
        return always + np.stack(rows)
