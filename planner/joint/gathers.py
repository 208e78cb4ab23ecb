"""Passes beside which weights are gathered and gradients reduced, unit by unit of layers.

Each unit's weights travel while the one before it is computed, and while a group waits for others:
with few micro-batches, waiting hides most of what computation does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.simulation.run import OVERLAP_FACTOR

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
Places = NDArray[np.intp]


class Travel(NamedTuple):
    """A collective, or several one after the other; of several units in the last dimension.

    Parameters
    ----------
    time
        By itself. [s]
    busy
        Of it, how long the links of each level would be full; (levels, ...). [s]
    """

    time: Floats
    busy: Floats

    @classmethod
    def none(cls, shape: tuple[int, int]) -> Travel:
        """Nothing at so many levels, of so many units."""
        return cls(np.zeros(shape[1]), np.zeros(shape))

    def add(self, places: Sequence[int], other: Travel) -> None:
        """Let another one follow at some places."""
        self.time[places] += other.time
        self.busy[:, places] += other.busy[:, None]

    def then(self, other: Travel) -> Travel:
        """Both of each unit, one after the other."""
        return Travel(self.time + other.time, self.busy + other.busy)

    def beside(self, other: Travel) -> Floats:
        """What it takes while another one travels that it shares links with, half of each. [s]"""
        full = (self.busy + np.minimum(self.busy, other.busy)).max(axis=0)
        return np.asarray(np.maximum(self.time, full))

    def times(self, factors: Floats | Marks) -> Travel:
        """So many times as much of each unit."""
        return Travel(self.time * factors, self.busy * factors)

    def at(self, places: Places) -> Travel:
        """Of the units at some places."""
        return Travel(self.time[places], self.busy[:, places])


class Around(NamedTuple):
    """What travels around passes, while a group waits if it does; rows are chunks.

    Parameters
    ----------
    lead
        How much sooner forward, backward and weight passes end where a group waits as long before
        them. [s]
    late
        How much longer what is gathered for the next pass travels than each of them lasts. [s]
    opening, behind
        Gathers before the first pass of each group, and what gradients take behind its last one
        because others do not leave room for them. [s]
    """

    lead: tuple[Floats, Floats, Floats]
    late: tuple[Floats, Floats, Floats]
    opening: Floats
    behind: Floats


class RunsOfUnits(NamedTuple):
    """Units that bring weights, each with those without weights that run meanwhile.

    Parameters
    ----------
    forward, backward
        Of each unit the one that it runs with, in both passes.
    next, before
        Of each one with weights the next and the one before in its stage, or itself.
    opens, ends
        Whether it is the first of its stage with weights, and the last one.
    """

    forward: Places
    backward: Places
    next: Places
    before: Places
    opens: Marks
    ends: Marks

    @classmethod
    def of(cls, starts: Sequence[int], firsts: Places, weighs: Marks) -> RunsOfUnits:
        """The runs of the stages of a cut.

        Parameters
        ----------
        starts, firsts
            The first layer of each stage, and of each unit.
        weighs
            Whether a unit has weights.
        """
        count = len(firsts)
        place, stage = np.arange(count), np.searchsorted(starts, firsts, side="right")
        same = stage[:-1] == stage[1:]
        # the nearest one with weights up to a unit and from it on, in its stage
        up_to = np.maximum.accumulate(np.where(weighs, place, -1))
        from_it = np.minimum.accumulate(np.where(weighs, place, count)[::-1])[::-1]
        has_before = (up_to >= 0) & (stage[up_to] == stage)
        has_next = (from_it < count) & (stage[from_it.clip(max=count - 1)] == stage)
        earlier = weighs & np.append(False, has_before[:-1] & same)
        later = weighs & np.append(has_next[1:] & same, False)
        return cls(
            forward=np.where(has_before, up_to, np.where(has_next, from_it, place)),
            backward=np.where(has_next, from_it, np.where(has_before, up_to, place)),
            next=np.where(later, np.append(from_it[1:], 0), place),
            before=np.where(earlier, np.append(0, up_to[:-1]), place),
            opens=weighs & ~earlier,
            ends=weighs & ~later,
        )


class BesideUnits(NamedTuple):
    """A pass, unit by unit.

    Parameters
    ----------
    took
        Of each unit with weights, and what runs with it. [s]
    opening
        Of it, before the first unit is through. [s]
    lead, late
        As of `Around`, of the first unit and of the last one. [s]
    """

    took: Floats
    opening: Floats
    lead: Floats
    late: Floats

    @classmethod
    def of(
        cls, work: Floats, gathered: Travel, reduced: Travel, coming: Travel, first: Marks
    ) -> BesideUnits:
        """What passes take beside what travels.

        Parameters
        ----------
        work
            Computation of each unit. [s]
        gathered, reduced
            Weights that the next one waits for, and gradients that nothing does. [s]
        coming
            Weights for the next pass, which travel beside it as well. [s]
        first
            Which units are the first of their stage.
        """
        took = slowed_beside(work, gathered.beside(reduced), reduced.time)
        longer = slowed_beside(work, gathered.then(coming).beside(reduced), reduced.time)
        return cls(
            took=took,
            opening=took * first,
            lead=np.where(first, took - work, 0.0),
            late=longer - took,
        )


def _with_others(owners: Places, work: Floats) -> Floats:
    """What units take, each with all that run with it. [s]"""
    return np.asarray(np.bincount(owners, weights=work, minlength=len(work)), dtype=np.float64)


def slowed_beside(work: Floats, moved: Floats, reduced: Floats) -> Floats:
    """Computation beside what travels: as long as both last, each slows the other down. [s]

    Parameters
    ----------
    work
        The computation. [s]
    moved, reduced
        What must be there in the end, and what need not be. [s]
    """
    both = np.minimum(work, np.maximum(moved, reduced))
    return np.asarray(np.maximum(work, moved) + OVERLAP_FACTOR * both)


def passes_beside(
    runs: RunsOfUnits,
    work: tuple[Floats, Floats],
    gathers: Travel,
    scatters: Travel,
    count: int,
) -> tuple[BesideUnits, BesideUnits]:
    """Both passes of each unit, beside the weights of the next and the gradients of the one before.

    Parameters
    ----------
    runs
        Units that bring weights.
    work
        Computation of each unit in both passes. [s]
    gathers, scatters
        Of the weights and of the gradients of each unit. [s]
    count
        Micro-batches: each forward pass but the first follows a backward pass. [items]
    """
    forward, backward = (
        _with_others(owners, each)
        for owners, each in zip((runs.forward, runs.backward), work, strict=True)
    )
    before = scatters.times(np.where(runs.opens, 1.0 - 1.0 / count, 0.0))
    behind, following = (one.at(runs.next).times(~runs.ends) for one in (scatters, gathers))
    preceding = gathers.at(runs.before).times(~runs.opens)
    last, first = gathers.times(runs.ends), gathers.times(runs.opens)
    return (
        BesideUnits.of(forward, following, before, last, runs.opens),
        BesideUnits.of(backward, preceding, behind, first, runs.ends),
    )
