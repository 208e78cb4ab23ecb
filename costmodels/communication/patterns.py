"""Which collective turns one layout of a tensor into another (Proteus, V.B).

Layouts are compared axis by axis and level by level. What no collective does in one go is left to
point-to-point messages.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.communication.lacking import parts_of_pairs
from costmodels.communication.layout import Layouts
from costmodels.distribution.rows import unique_rows

NOTHING, SLICE = "nothing", "slice"
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
SEND_RECV = "send_recv"
KINDS = (NOTHING, SLICE, *COLLECTIVES, SEND_RECV)


class Pattern(Struct, frozen=True, kw_only=True):
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
        return Pattern(kind=SEND_RECV, group=tuple(int(p) for p in partial))
    gathered, scattered = coarser.prod(axis=1), finer.prod(axis=1)
    # axes that stay split must lie alike, or whole blocks change places
    both = (before > 1) & (after > 1)
    span, spanned = before * source.strides[0], after * target.strides[0]
    moved = bool((span != spanned)[both].any())
    # outer digits of a block's number count for more: where they change, inner ones mean others
    moved = moved or bool(((before != after)[1:] & (both.cumsum(axis=0)[:-1] > 0)).any())
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


class Matches(Struct, frozen=True, kw_only=True, eq=False):
    """The communication between every source and every target layout.

    Parameters
    ----------
    kinds
        Places in `KINDS`; (sources, targets).
    gathered
        How much coarser the target is, at each level; (sources, targets, levels). [items]
    """

    kinds: NDArray[np.int8]
    gathered: NDArray[np.float64]

    def which(self, *kinds: str) -> NDArray[np.bool_]:
        """Where it is of one of some kinds; (sources, targets)."""
        return np.array([kind in kinds for kind in KINDS]).take(self.kinds)


class _ComparedSplits(Struct, frozen=True, kw_only=True, eq=False):
    """Every way to split an axis against every other, in rows.

    Parameters
    ----------
    apart
        Whether only messages between neighbours lead from the one to the other.
    coarser, finer
        How much coarser and how much finer the other is at each level.
    gathers
        Whether it is coarser at any.
    """

    apart: NDArray[np.bool_]
    coarser: NDArray[np.float64]
    finer: NDArray[np.float64]
    gathers: NDArray[np.bool_]


def _compared_splits(ways: NDArray[np.int64], steps: NDArray[np.int64]) -> _ComparedSplits:
    """Compare ways to split an axis.

    Parameters
    ----------
    ways, steps
        Degrees and strides; (splits, levels).
    """
    count, levels = ways.shape
    first, second = np.repeat(np.arange(count), count), np.tile(np.arange(count), count)
    before, after = ways[first], ways[second]
    coarser, finer = np.maximum(before / after, 1.0), np.maximum(after / before, 1.0)
    apart = ((coarser != np.rint(coarser)) | (finer != np.rint(finer))).any(axis=1)
    both = (before > 1) & (after > 1)
    apart |= ((before * steps[first] != after * steps[second]) & both).any(axis=1)
    inside = both.cumsum(axis=1)[:, : levels - 1] > 0
    apart |= ((before != after)[:, 1:] & inside).any(axis=1)
    gathers = np.asarray((coarser > 1).any(axis=1))
    return _ComparedSplits(apart=apart, coarser=coarser, finer=finer, gathers=gathers)


def match_all(source: Layouts, target: Layouts) -> Matches:
    """The communication between every source and every target layout, as of `match`.

    Parameters
    ----------
    source
        Layouts that the tensor is in; over their partial members it is a partial sum.
    target
        Layouts that it must get; partial members of them are replicas.
    """
    counts = (len(source), len(target))
    matches = Matches(
        kinds=np.empty(counts, dtype=np.int8),
        gathered=np.empty((*counts, source.degrees.shape[1])),
    )
    splits = []
    split = (source.degrees > 1).any(axis=(0, 1)) | (target.degrees > 1).any(axis=(0, 1))
    for axis in np.flatnonzero(split):
        # many layouts agree in an axis: each two ways to split it are compared once
        ways, steps = (
            np.concatenate([a, b])[:, :, axis]
            for a, b in ((source.degrees, target.degrees), (source.strides, target.strides))
        )
        first, number = unique_rows(np.concatenate([ways, steps], axis=1))
        before, after = number[: counts[0], None] * len(first), number[None, counts[0] :]
        splits.append((before, after, _compared_splits(ways[first], steps[first])))
    for rows in parts_of_pairs(*counts):
        some = [(before[rows] + after, one) for before, after, one in splits]
        partial, shape = source.partial[rows, None, :], matches.gathered[rows].shape
        matches.kinds[rows], matches.gathered[rows] = _matched(some, partial, shape)
    return matches


def _matched(
    splits: Sequence[tuple[NDArray[np.int64], _ComparedSplits]],
    partial: NDArray[np.int64],
    shape: tuple[int, ...],
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """What `Matches` says of some of the sources.

    Parameters
    ----------
    splits
        For each axis rows of what was compared, (sources, targets), and that.
    partial
        Members that hold partial sums; (sources, 1, levels).
    shape
        Numbers of these sources, of targets and of levels. [items]
    """
    counts = shape[:2]
    gathered, scattered = np.ones(shape), np.ones(shape)
    apart, axes = np.zeros(counts, dtype=bool), np.zeros(counts, dtype=np.int8)
    for pairs, one in splits:
        apart |= one.apart.take(pairs)
        gathered *= one.coarser.take(pairs, axis=0)
        scattered *= one.finer.take(pairs, axis=0)
        axes += one.gathers.take(pairs)
    gathers, scatters = (gathered > 1).any(axis=2), (scattered > 1).any(axis=2)
    exchanged = gathers & scatters & (scattered == gathered).all(axis=2) & (axes == 1)
    kinds = np.full(counts, KINDS.index(SEND_RECV), dtype=np.int8)
    sums = np.broadcast_to((partial > 1).any(axis=2), counts)
    # the first that is true
    cases = (
        (apart | (sums & gathers), SEND_RECV),
        (sums & (scattered == partial).all(axis=2), "reduce_scatter"),
        # further splits of what is then whole everywhere are slices
        (sums, "all_reduce"),
        (exchanged, "all_to_all"),
        (gathers & scatters, SEND_RECV),
        (gathers, "all_gather"),
        (scatters, SLICE),
        (np.ones(counts, dtype=bool), NOTHING),
    )
    for where, kind in reversed(cases):
        kinds[where] = KINDS.index(kind)
    return kinds, gathered
