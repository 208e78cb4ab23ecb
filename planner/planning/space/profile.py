"""Weights of the terms of a step, and what they make count of every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.graph import Graph
from planner.simulation.run import OVERLAP_FACTOR

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
    exchanged
        What part of an all-reduce any exchange of gradients takes at least.
    """

    counted: Floats
    plain: Floats
    alone: Floats
    linked: Floats
    beside: Floats
    exchanged: float = 1.0

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

    def towards(self, term: int, part: float) -> Profile:
        """A profile with some weight moved to one term.

        Parameters
        ----------
        term
            Number of the term, of all kinds one after the other.
        part
            How much of the weight is moved, from 0 to 1.
        """
        weights = np.zeros((NUM_KINDS, 1 + len(self.counted)))
        weights.flat[term] = 1.0
        other = Profile.of(weights)

        def between(one: Floats, two: Floats) -> Floats:
            return (1.0 - part) * one + part * two

        return Profile(
            counted=between(self.counted, other.counted),
            plain=between(self.plain, other.plain),
            alone=between(self.alone, other.alone),
            linked=between(self.linked, other.linked),
            beside=between(self.beside, other.beside),
            exchanged=self.exchanged,
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


# Of a layer all of whose messages count.
EVERY_GAP = Gaps(before=True, after=True, back_before=True, back_after=True, sums=True)


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


class CostKey(NamedTuple):
    """What layers must agree in to have the same costs in an additive problem: the first layer that
    is alike, and how much of it counts."""

    space: str
    share: LayerShare


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
    counted, plain, alone, linked, beside, exchanged = profile
    if not overlap:
        return [LayerShare(one, 1.0, 0.0, 1.0, 1.0, exchanged, 0.0, 0.0) for one in gaps]
    kept = 1.0 - OVERLAP_FACTOR
    slowed = np.maximum(1.0 - counted - plain, 0.0)
    ends, alone_ends = (row - np.append(row[1:], 0.0) for row in (counted, alone))
    columns = (
        1.0 - kept * counted,
        kept * ends,
        plain,
        plain + kept * slowed,
        exchanged * (counted - alone - linked + OVERLAP_FACTOR * (slowed - beside + alone)),
        exchanged * kept * alone_ends,
        exchanged * (linked + OVERLAP_FACTOR * beside),
    )
    rows = np.stack(columns, axis=1).tolist()
    return [LayerShare(one, *row) for one, row in zip(gaps, rows, strict=True)]
