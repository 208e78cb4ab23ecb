"""Which collective turns one layout of a tensor into another (Proteus, V.B).

Layouts are compared axis by axis and level by level. What no collective does in one go is left to
point-to-point messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.layout import Layouts

NOTHING, SLICE = "nothing", "slice"
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
SEND_RECV = "send_recv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """A communication.

    Parameters
    ----------
    kind
        One of `COLLECTIVES`, `SEND_RECV`, or `NOTHING`; `SLICE` where all that is needed is there.
    group
        Members of a collective at each level; with `SEND_RECV` those that hold partial sums.
        [items]
    """

    kind: str
    group: tuple[int, ...]


def _all_whole(ratio: NDArray[np.float64]) -> bool:
    """Whether all quotients are whole numbers."""
    return bool((ratio == np.rint(ratio)).all())


def match(source: Layouts, target: Layouts) -> Pattern:
    """The communication between two layouts, one row each.

    Parameters
    ----------
    source
        Layout that the tensor is in; over its partial members it is a partial sum.
    target
        Layout that it must get; partial members of it are replicas.
    """
    before, after = source.degrees[0].astype(float), target.degrees[0].astype(float)
    partial = source.partial[0]
    ones = (1,) * len(partial)
    coarser, finer = np.maximum(before / after, 1.0), np.maximum(after / before, 1.0)
    if not (_all_whole(coarser) and _all_whole(finer)):
        return Pattern(kind=SEND_RECV, group=ones)
    gathered, scattered = coarser.prod(axis=1), finer.prod(axis=1)
    # axes that stay split alike must lie alike, or whole blocks change places
    kept = (before > 1) & (before == after)
    moved = bool((source.strides[0] != target.strides[0])[kept].any())
    if (partial > 1).any():
        group = tuple(int(p) for p in partial)
        if (gathered > 1).any() or moved:
            return Pattern(kind=SEND_RECV, group=group)
        if (scattered == partial).all():
            return Pattern(kind="reduce_scatter", group=group)
        # further splits of what is then whole everywhere are slices
        return Pattern(kind="all_reduce", group=group)
    if moved:
        return Pattern(kind=SEND_RECV, group=ones)
    group = tuple(int(g) for g in gathered)
    if (gathered > 1).any():
        axes = int((coarser > 1).any(axis=0).sum())
        if (scattered > 1).any():
            alike = (scattered == gathered).all() and axes == 1
            if not alike:
                return Pattern(kind=SEND_RECV, group=ones)
            return Pattern(kind="all_to_all", group=group)
        return Pattern(kind="all_gather", group=group)
    return Pattern(kind=SLICE if (scattered > 1).any() else NOTHING, group=ones)
