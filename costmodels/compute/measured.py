"""What tables say of work that they measured, and of work that they did not.

A measured shape takes the time that was measured. Every other shape takes the modelled time,
corrected by how far the model is off on measured work: else a plan would flee from what was
measured as slow to what nobody measured. What is averaged is the logarithm of the *ratio* of
measured to modelled time, so that the model's own idea of small pieces is kept.

Two averages are joined. Among rows that differ from the shape in their extents alone (one
operation, direction, kernel, stride and number of groups), each counts by the inverse fourth power
of its distance on logarithmic scales, which follows a power law between two rows. Their
counterweight is the ratio at this *size*, that is at the modelled time: a kernel-weighted mean over
rows of the same operation and direction, drawn to that of the operation, which is drawn to that of
its kind (matrix products are bound by arithmetic, all others by memory), which is drawn to that of
the device, which is drawn to the model. How much each is drawn is what a hierarchy of normal
distributions says (Gelman and Hill 2007, "Data Analysis Using Regression and Multilevel/
Hierarchical Models", section 12.2): as much as noise / bias rows weigh, where the noise is the
variance from row to akin row and the bias what a level adds to that of the one around it. So the
correction falls back from the neighbours to the operation, the device and the model as measurements
grow scarce or contradict each other, without a step; where many rows agree it is what they say.

A row that is far off what akin rows say (see `outliers`) is taken for its own shape and corrects
no others. Assumes that what makes a device slower than modelled (clocks, libraries, frameworks)
makes akin work slower alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.compute.outliers import NORMAL, expected_ratios, find_outliers
from costmodels.compute.repeats import each_shape_once, flattened
from costmodels.compute.table import CostTable
from costmodels.compute.work import MULTIPLYING_OPERATIONS, Work

FloatArray = NDArray[np.float64]
Model = Callable[[Work], FloatArray]

REACH: Final = 4.0
"""Largest factor in any dim between a shape and the nearest row that it is interpolated from."""

# Distance at which a row of akin extents says as much as all that is known of its operation: two
# steps of `REACH`. Sizes a step apart count half.
_FAR: Final = 2.0 * math.log(REACH)
_STEP: Final = math.log(REACH)
# Standard deviation of the logarithm of the ratio before anything was measured, both of the device
# as a whole and from shape to shape. An assumption; models are a fifth to a third off.
_BIAS: Final = 0.25
# Sizes at which the ratio of an operation is worked out. [items]
_GRID: Final = 65

# operation, direction, kernel, stride, number of input and of output extents
_Key = tuple[str, str, tuple[int, ...], tuple[int, ...], int, int]


class MeasuredRatio(Struct, frozen=True, kw_only=True):
    """How measured times agree with modelled ones.

    Parameters
    ----------
    rows
        How many were measured. [items]
    ratio
        Typical measured time as a multiple of the modelled one.
    spread
        Standard deviation of the logarithm of that ratio from row to akin row.
    """

    rows: int
    ratio: float
    spread: float


class _Block(Struct, frozen=True, kw_only=True):
    """Rows that differ in their extents alone."""

    shapes: FloatArray
    groups: FloatArray
    seconds: FloatArray
    ratios: FloatArray
    sound: NDArray[np.bool_]


class Measured:
    """The rows of some tables, beside a model.

    Parameters
    ----------
    tables
        The tables, most trusted first.
    precision
        Precision that is computed in; rows of others are left out.
    model
        Modelled time of work. [s]
    """

    def __init__(self, tables: Sequence[CostTable], precision: str, model: Model) -> None:
        shapes = each_shape_once(tables, precision)
        named = shapes.rows
        self.widest_repeat, self.tables_apart = shapes.widest_repeat, shapes.tables_apart
        self._rows = [row for _, row in named]
        seconds = np.array([row.seconds for row in self._rows])
        works = [row.work for row in self._rows]
        members_of = _members_by_key([_block_key(work) for work in works])
        modelled = np.ones(len(works))
        for members in members_of.values():
            modelled[members] = model(_stacked([works[i] for i in members]))
        self._ratios = np.log(seconds / modelled)
        self._sizes = np.log(modelled)
        expected = expected_ratios(works, self._sizes, self._ratios)
        outliers = find_outliers(works, self._ratios, expected)
        self._sound = ~outliers
        self.outliers = tuple(
            f"{row.place} of {name} ({row.work.operation} {row.work.direction})"
            for (name, row), out in zip(named, outliers, strict=True)
            if out
        )
        self._left = self._ratios - expected
        # variance from row to akin row; what is known before any row counts as one
        left = np.square(self._left[self._sound]) if self._sound.sum() > 1 else np.zeros(0)
        self._noise = (left.sum() + _BIAS**2) / (left.size + 1.0)
        self._operations = np.array([work.operation for work in works], dtype=object)
        self._directions = np.array([work.direction for work in works], dtype=object)
        self._dense = np.isin(self._operations, list(MULTIPLYING_OPERATIONS))
        self._agreements: dict[str | None, MeasuredRatio | None] = {}
        self._blocks: dict[_Key, _Block] = {}
        self._curves: dict[tuple[str, str], FloatArray] = {}
        for key, members in members_of.items():
            self._blocks[key] = _Block(
                shapes=np.concatenate([_shapes(works[i], 1) for i in members]),
                groups=np.array([float(works[i].groups) for i in members]),
                seconds=seconds[members],
                ratios=self._ratios[members],
                sound=self._sound[members],
            )

    def __len__(self) -> int:
        return len(self._rows)

    def agreement(self, operation: str | None = None) -> MeasuredRatio | None:
        """How well rows agree with the model, None where there are none that count.

        Parameters
        ----------
        operation
            Of the rows; None for all.
        """
        if operation not in self._agreements:
            chosen = self._sound if operation is None else self._sound & self._is(operation)
            self._agreements[operation] = self._summarised(chosen) if chosen.any() else None
        return self._agreements[operation]

    def _summarised(self, chosen: NDArray[np.bool_]) -> MeasuredRatio:
        count, left = int(chosen.sum()), np.abs(self._left[chosen])
        return MeasuredRatio(
            rows=count,
            ratio=float(np.exp(np.mean(self._ratios[chosen]))),
            # of one row nothing is known but how far off it is
            spread=float(np.median(left)) * (NORMAL if count > 1 else 1.0),
        )

    def _is(self, operation: str) -> NDArray[np.bool_]:
        return np.asarray(self._operations == operation, dtype=bool)

    def agreements(self) -> dict[str, MeasuredRatio]:
        """How well the rows of each operation agree with the model."""
        found = {name: self.agreement(name) for name in sorted(set(self._operations))}
        return {name: known for name, known in found.items() if known is not None}

    def times(
        self,
        work: Work,
        modelled: FloatArray,
        *,
        deviation: float | None = 0.0,
        slips: bool = True,
    ) -> tuple[FloatArray, NDArray[np.bool_], NDArray[np.bool_]]:
        """Times of work, which of them were measured, and which lie between measured ones.

        Parameters
        ----------
        work
            Local work of the candidates.
        modelled
            The modelled time of each candidate. [s]
        deviation
            By how many of their spreads unmeasured shapes are slower than expected; None leaves
            them as they are modelled.
        slips
            Whether outliers are taken for their own shapes.
        """
        count = modelled.size
        nothing = np.zeros(count, dtype=bool)
        if not self._sound.any() and _block_key(work) not in self._blocks:
            return modelled, nothing, nothing
        size = np.log(np.maximum(modelled, np.finfo(np.float64).tiny))
        level = np.interp(size, *self._curve(work.operation, work.direction))
        block = self._blocks.get(_block_key(work))
        if block is None:
            return modelled * self._factor(work, level, 1.0, deviation), nothing, nothing
        same = np.broadcast_to(work.groups, count)[:, None] == block.groups
        square, furthest = _distances(_shapes(work, count), block.shapes)
        square = np.where(same, square, np.inf)
        nearest = square.argmin(axis=1)
        exact = square[np.arange(count), nearest] < 1e-18
        if not slips:
            exact &= block.sound[nearest]
        near = ((furthest <= _STEP + 1e-12) & same & block.sound).any(axis=1) & ~exact
        weights = np.where(block.sound, _FAR**4 / np.square(np.maximum(square, 1e-18)), 0.0)
        total = weights.sum(axis=1) + 1.0
        mean = (weights @ block.ratios + level) / total
        factor = self._factor(work, mean, 1.0 / np.sqrt(total), deviation)
        return np.where(exact, block.seconds[nearest], modelled * factor), exact, near

    def _factor(
        self, work: Work, mean: FloatArray, part: FloatArray | float, deviation: float | None
    ) -> FloatArray:
        """Factors on modelled times.

        Parameters
        ----------
        work
            Local work of the candidates.
        mean
            Expected logarithm of the ratio.
        part
            What part of the spread of the operation it has: little beside a measured shape.
        deviation
            As of `times`.
        """
        if deviation is None:
            return np.ones_like(mean)
        known = self.agreement(work.operation) or self.agreement()
        spread = known.spread if known else 0.0
        result: FloatArray = np.exp(mean + deviation * spread * part)
        return result

    def _curve(self, operation: str, direction: str) -> tuple[FloatArray, FloatArray]:
        """Sizes, and the ratio of an operation and direction at each, as logarithms."""
        if not self._sound.any():
            return np.zeros(1), np.zeros(1)
        sizes = self._sizes[self._sound]
        grid = np.linspace(sizes.min(), sizes.max(), _GRID)
        if (operation, direction) not in self._curves:
            kind = self._dense == (operation in MULTIPLYING_OPERATIONS)
            of_operation = self._is(operation)
            of_pass = of_operation & (self._directions == direction)
            curve = np.zeros(_GRID)
            levels = (self._sound, kind, of_operation, of_pass)
            prior = len(levels) * self._noise / _BIAS**2
            for level in levels:
                chosen = level & self._sound
                apart = (grid[:, None] - self._sizes[chosen][None, :]) / _STEP
                weights = 1.0 / (1.0 + np.square(apart))
                total = weights.sum(axis=1) + prior
                curve = (weights @ self._ratios[chosen] + prior * curve) / np.maximum(total, 1e-18)
            self._curves[operation, direction] = curve
        return grid, self._curves[operation, direction]


def _distances(shapes: FloatArray, rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Squared distance of every shape to every row, and the largest part of it in one dim."""
    square = np.zeros((len(shapes), len(rows)))
    furthest = np.zeros_like(square)
    for shape, row in zip(shapes.T, rows.T, strict=True):
        apart = np.abs(shape[:, None] - row)
        square += apart * apart
        np.maximum(furthest, apart, out=furthest)
    return square, furthest


def _block_key(work: Work) -> _Key:
    work = flattened(work)
    ranks = len(work.in_extents), len(work.out_extents)
    return (work.operation, work.direction, work.kernel, work.stride, *ranks)


def _members_by_key(keys: Iterable[_Key]) -> dict[_Key, list[int]]:
    """Numbers of rows by key."""
    found: dict[_Key, list[int]] = {}
    for number, key in enumerate(keys):
        found.setdefault(key, []).append(number)
    return found


def _shapes(work: Work, count: int) -> FloatArray:
    """Logarithms of the extents, (candidates, dims)."""
    work = flattened(work)
    extents = (*work.in_extents, *work.out_extents)
    dims = (work.samples, work.channels, work.filters, work.visible, *extents)
    columns = [np.broadcast_to(dim, count) for dim in dims]
    shapes: FloatArray = np.stack(columns, axis=1)
    return np.log(np.maximum(shapes, np.finfo(np.float64).tiny))


def _stacked(works: Sequence[Work]) -> Work:
    """Works that differ in their extents alone, as one of many candidates."""
    works = [flattened(work) for work in works]
    first = works[0]

    def gather(pick: Callable[[Work], FloatArray | float]) -> FloatArray:
        return np.array([float(pick(work)) for work in works])

    return Work(
        operation=first.operation,
        direction=first.direction,
        samples=gather(lambda w: w.samples),
        channels=gather(lambda w: w.channels),
        filters=gather(lambda w: w.filters),
        in_extents=tuple(
            gather(lambda w, i=i: w.in_extents[i])  # type: ignore[misc]
            for i in range(len(first.in_extents))
        ),
        out_extents=tuple(
            gather(lambda w, i=i: w.out_extents[i])  # type: ignore[misc]
            for i in range(len(first.out_extents))
        ),
        kernel=first.kernel,
        stride=first.stride,
        groups=gather(lambda w: w.groups),
        visible=gather(lambda w: w.visible),
    )
