"""What no simulated step is faster than: terms, each a sum over layers and edges.

A device computes one thing after the other, in the order of the layers and back. What it waits for
between two neighbours in that order is in every step: the messages of a layer that reads the one
right before it. Those of other layers may travel beside the computation in between, and count as
nothing. Gradient all-reduces run one at a time, in the order in which gradients are made. While one
runs, it and the computation beside it take 1 + gamma times as long; and the devices wait for the
slowest of them. `docs/search.md` derives the terms from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.distribution import Candidates
from costmodels.graph import Graph
from costmodels.layers.layer_cost import LayerCosts
from planner.simulation.run import OVERLAP_FACTOR, waiting_time

Floats = NDArray[np.float64]
# Kinds of terms: the messages of the backward pass count in full; or all-reduces slow what they run
# beside, and after the gradient of a layer come those of all layers before it, or its own alone, or
# all that fills the links of the outermost level.
PLAIN, SLOWED, ALONE, LINKED = 0, 1, 2, 3
NUM_KINDS = 4


class Profile(NamedTuple):
    """Weights of the terms, as what they make count of each layer; (layers,) each.

    Parameters
    ----------
    counted
        How much of the all-reduce, from 0 to 1, in forward order and never increasing; the backward
        pass counts by so much less.
    plain
        How much of the messages of the backward pass that an all-reduce could run beside.
    alone, linked
        How much of `counted` is of terms that count the all-reduce of one layer only, or links.
    beside
        How much of terms that count links leaves an all-reduce behind the backward pass.
    """

    counted: Floats
    plain: Floats
    alone: Floats
    linked: Floats
    beside: Floats

    @classmethod
    def of(cls, weights: Floats) -> Profile:
        """What weights of terms make count.

        Parameters
        ----------
        weights
            They sum to 1; (kinds, 1 + layers), the term without exposed all-reduces first.
        """
        counted = weights[:, :0:-1].cumsum(axis=1)[:, ::-1]
        return cls(
            counted=counted.sum(axis=0),
            plain=weights[PLAIN].sum() - counted[PLAIN],
            alone=counted[ALONE],
            linked=counted[LINKED],
            beside=weights[LINKED].sum() - counted[LINKED],
        )

    @classmethod
    def even(cls, counted: float, num_layers: int) -> Profile:
        """The same of every layer, all-reduces slowing what they run beside.

        Parameters
        ----------
        counted
            As above.
        num_layers
            Layers. [items]
        """
        none = np.zeros(num_layers)
        return cls(np.full(num_layers, counted), none, none, none, none)


class Gaps(NamedTuple):
    """Which messages of a layer nothing can be computed beside.

    Parameters
    ----------
    before, after
        Those of its forward pass before it, and after it.
    back_before, back_after
        Those of its backward pass.
    sums
        The reductions of the gradients of its inputs.
    """

    before: bool
    after: bool
    back_before: bool
    back_after: bool
    sums: bool


class LayerShare(NamedTuple):
    """How much of a layer counts in an additive problem.

    Parameters
    ----------
    gaps
        Which of its messages count at all.
    backward, ready
        Of its backward pass, and of the part that makes the weight's gradient.
    waits, messages
        Of the halo of the backward pass, and of its other messages.
    gradient, alone
        Of what it adds to all-reduces, and of its all-reduce when nothing travels with it.
    link
        Of how long its messages of the backward pass and its all-reduce fill the outermost links.
    """

    gaps: Gaps
    backward: float
    ready: float
    waits: float
    messages: float
    gradient: float
    alone: float
    link: float


def gaps_of(graph: Graph) -> list[Gaps]:
    """Which messages nothing can be computed beside, for each layer that computes."""
    layers = graph.compute_layers
    makers = [{edge.source for edge in graph.producers[layer.name]} for layer in layers]
    names = [layer.name for layer in layers]
    reads = [before in sources for before, sources in zip(names, makers[1:], strict=False)]
    ends = not graph.consumers[names[-1]]
    return [
        Gaps(before=first, after=after, back_before=last, back_after=back, sums=back and alone)
        for first, after, last, back, alone in zip(
            [True, *reads],
            [*reads, False],
            [*reads, ends],
            [False, *reads],
            [len(sources) == 1 for sources in makers],
            strict=True,
        )
    ]


def shares_of(profile: Profile, gaps: Sequence[Gaps], *, overlap: bool) -> list[LayerShare]:
    """How much of every layer counts.

    Parameters
    ----------
    profile
        Weights of the terms.
    gaps
        Of every layer.
    overlap
        Whether all-reduces run beside the backward pass.
    """
    if not overlap:
        return [LayerShare(one, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0) for one in gaps]
    counted, plain, alone, linked, beside = profile
    kept = 1.0 - OVERLAP_FACTOR
    slowed = np.maximum(1.0 - counted - plain, 0.0)
    ends, alone_ends = (row - np.append(row[1:], 0.0) for row in (counted, alone))
    columns = (
        1.0 - kept * counted,
        kept * ends,
        plain,
        plain + kept * slowed,
        counted - alone - linked + OVERLAP_FACTOR * (slowed - beside + alone),
        kept * alone_ends,
        linked + OVERLAP_FACTOR * beside,
    )
    rows = np.stack(columns, axis=1).tolist()
    return [LayerShare(one, *row) for one, row in zip(gaps, rows, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassTimes:
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
        return PassTimes(**{f.name: getattr(self, f.name)[indices] for f in fields(PassTimes)})


def _waiting(candidates: Candidates) -> Floats:
    """What devices wait for the slowest at least, as part of what each computes; (candidates,).

    No fewer devices have work of their own than a layer is split over.
    """
    ways, of_ways = np.unique(candidates.degrees.prod(axis=(1, 2)), return_inverse=True)
    return np.array([waiting_time(1.0, int(count)) for count in ways])[of_ways.reshape(-1)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChosenTimes:
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
