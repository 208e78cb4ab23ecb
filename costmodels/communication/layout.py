"""Where the blocks of one activation lie under many distributions.

A layout gives each axis of a tensor a degree at each level. The devices of a level that split
none of its axes either hold the same block (replicated) or hold partial sums of it. There are far
fewer layouts than distributions; what changing one into another moves is counted in `movement`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.distribution import Candidates
from costmodels.graph import Tensor

AXES = (
    *("sample", "sequence", "channel", "hidden", "depth", "height", "width"),
    *("expert", "table"),
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Layouts(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Layouts of a tensor, one for each candidate distribution of a layer.

    Parameters
    ----------
    degrees
        Ways of each axis at each level, samples first; (layouts, levels, axes).
    strides
        Distance in ranks, within the level, between neighbouring blocks; like `degrees`.
    partial
        Members at each level that hold partial sums of the same block; (layouts, levels).
    """

    degrees: Ints
    strides: Ints
    partial: Ints

    def __len__(self) -> int:
        return len(self.degrees)

    @classmethod
    def of(
        cls,
        candidates: Candidates,
        tensor: Tensor,
        partial_dims: Iterable[str],
        axes: Sequence[str] = AXES,
    ) -> Layouts:
        """Layouts of a tensor that a layer reads or writes.

        Parameters
        ----------
        candidates
            Distributions of the layer.
        tensor
            The tensor, its axes indexed by the layer's dims.
        partial_dims
            Dims that the tensor lacks: over their ranks it is (or becomes) a partial sum.
        axes
            Axes that are told apart, samples first.
        """
        shape = np.asarray(candidates.shape)
        # the first dim of the canonical order has the most significant digit of a level
        strides = shape[None, :, None] // candidates.degrees.cumprod(axis=2)
        count, levels = candidates.degrees.shape[:2]
        degrees = np.ones((count, levels, len(axes)), dtype=np.int64)
        steps = np.ones_like(degrees)
        for axis in tensor.axes:
            if axis.dim in candidates.dims:
                column, place = candidates.dims.index(axis.dim), axes.index(axis.name)
                ways = candidates.axis_degrees(axis)
                degrees[:, :, place] = ways
                # what repeats a block lies inside of what tells blocks apart
                steps[:, :, place] = strides[:, :, column] * (
                    candidates.degrees[:, :, column] // ways
                )
        # an axis that is not split has no stride: equal layouts must look equal
        steps[degrees == 1] = 0
        return cls(
            degrees=degrees, strides=steps, partial=candidates.sharing_group(tensor, partial_dims)
        )

    def codes(self) -> Ints:
        """One row of numbers for each layout; equal rows are equal layouts."""
        flat = (self.degrees, self.strides, self.partial)
        return np.concatenate([a.reshape(len(self), -1) for a in flat], axis=1)

    @cached_property
    def key(self) -> tuple[tuple[int, ...], bytes]:
        """What is equal where all layouts are."""
        return self.degrees.shape, self.codes().tobytes()

    def take(self, indices: Ints) -> Layouts:
        """Some of the layouts."""
        return Layouts(
            degrees=self.degrees[indices],
            strides=self.strides[indices],
            partial=self.partial[indices],
        )


def concatenate(parts: Iterable[Layouts]) -> Layouts:
    """All layouts of several tables, in one."""
    rows = list(parts)
    return Layouts(
        degrees=np.concatenate([r.degrees for r in rows]),
        strides=np.concatenate([r.strides for r in rows]),
        partial=np.concatenate([r.partial for r in rows]),
    )
