"""How one layer is split over the devices, and all ways of doing so that are sensible.

A distribution gives each dim of a layer a degree at each level of the cluster. Ranks are numbered
from the inside out; within a level the dims take their digits of the rank in the canonical order
of `costmodels.graph.DIMS`, the most significant first, and what no dim uses is least significant:
there the layer is replicated. Blocks of a dim are contiguous, and outer levels choose the larger
blocks, so that devices of one host hold neighbouring blocks.

Division may be uneven: block i of n positions split d ways starts at floor(i n / d), and the
largest block, ceil(n / d), is what costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from costmodels.distribution.rows import unique_rows
from costmodels.errors import InputError
from costmodels.graph import DIMS, Axis, Layer, Tensor

REPLICATED = "replicated"


class Distribution(Struct, frozen=True, kw_only=True):
    """The split of one layer.

    Parameters
    ----------
    degrees
        For each split dim, how many ways at each level, from the inside out. Dims with one way
        everywhere are dropped. [ways]
    shape
        Members of each level, from the inside out. [items]
    """

    degrees: Mapping[str, tuple[int, ...]]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        for dim, degrees in self.degrees.items():
            if dim not in DIMS:
                raise InputError(
                    f"a distribution must split dims of {', '.join(DIMS)} but splits '{dim}'; "
                    "correct the dim"
                )
            if len(degrees) != len(self.shape) or any(ways < 1 for ways in degrees):
                raise InputError(
                    f"a distribution must give dim {dim} at least 1 way at each of the "
                    f"{len(self.shape)} levels but gives {list(degrees)}; correct the degrees"
                )
        # the ways of all dims at each level
        at_levels = zip(*self.degrees.values(), strict=True) if self.degrees else ()
        for level, (size, ways) in enumerate(zip(self.shape, at_levels, strict=False)):
            used = math.prod(ways)
            if size % used:
                raise InputError(
                    f"a distribution must divide level {level} of {size} members but uses "
                    f"{used} ({self}); choose degrees whose product divides {size}"
                )
        # one way is no split: equal distributions must look equal
        split = {dim: tuple(ways) for dim, ways in self.degrees.items() if math.prod(ways) > 1}
        structs.force_setattr(self, "degrees", split)

    def degree(self, dim: str) -> int:
        """How many ways `dim` is split over all levels. [ways]"""
        return math.prod(self.degrees.get(dim, (1,)))

    @property
    def level_replication(self) -> tuple[int, ...]:
        """How many members of each level do the same work. [items]"""
        used = (
            math.prod(d[level] for d in self.degrees.values()) for level in range(len(self.shape))
        )
        return tuple(size // ways for size, ways in zip(self.shape, used, strict=True))

    @property
    def replication(self) -> int:
        """How many devices do the same work. [ways]"""
        return math.prod(self.shape) // math.prod(self.degree(d) for d in self.degrees)

    def __str__(self) -> str:
        """Such as 'sample 64 x height 4 x replicated 2', over all levels."""
        parts = [
            f"{dim} {math.prod(degrees)}"
            for dim in DIMS
            if math.prod(degrees := self.degrees.get(dim, (1,))) > 1
        ]
        if self.replication > 1:
            parts.append(f"{REPLICATED} {self.replication}")
        return " x ".join(parts) if parts else "one device"

    def describe(self, level_names: Sequence[str]) -> str:
        """Such as 'host: height 4 | network: sample 64'."""
        rows = []
        for level, name in enumerate(level_names):
            split = [f"{d} {self.degrees[d][level]}" for d in DIMS if d in self.degrees]
            split = [s for s in split if not s.endswith(" 1")]
            used = math.prod(d[level] for d in self.degrees.values())
            if self.shape[level] // used > 1:
                split.append(f"{REPLICATED} {self.shape[level] // used}")
            if split:
                rows.append(f"{name}: {' x '.join(split)}")
        return " | ".join(rows) if rows else "one device"


@lru_cache(maxsize=1024)
def shared_distribution(
    degrees: tuple[tuple[str, tuple[int, ...]], ...], shape: tuple[int, ...]
) -> Distribution:
    """The split of all layers that are split so: there are few, and many layers.

    Parameters
    ----------
    degrees, shape
        As of `Distribution`, dim by dim.
    """
    return Distribution(degrees=dict(degrees), shape=shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """Many distributions of one layer as arrays.

    Parameters
    ----------
    dims
        The dims that may be split, in canonical order.
    degrees
        Ways of each candidate, level (inside out) and dim; shape (candidates, levels, dims).
    shape
        Members of each level. [items]
    """

    dims: tuple[str, ...]
    degrees: NDArray[np.int64]
    shape: tuple[int, ...]
    _ways: dict[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)
    _blocks: dict[tuple[str, int], NDArray[np.int64]] = field(default_factory=dict, repr=False)
    _alike: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(
        default_factory=list, repr=False
    )
    _chosen: dict[int, Distribution] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        # levels and dims are few: numpy is several times faster where candidates lie side by side
        object.__setattr__(self, "degrees", np.asfortranarray(self.degrees))

    def __len__(self) -> int:
        return len(self.degrees)

    def level_degrees(self, dim: str) -> NDArray[np.int64]:
        """Ways of one dim at each level, ones when it is not split; (candidates, levels)."""
        if dim not in self.dims:
            return np.ones(self.degrees.shape[:2], dtype=np.int64)
        return self.degrees[:, :, self.dims.index(dim)]

    def degree(self, dim: str) -> NDArray[np.int64]:
        """Ways of one dim over all levels; (candidates,)."""
        if dim not in self._ways:
            # level by level: many times faster than products over an axis as short as that
            ways: NDArray[np.int64] = reduce(np.multiply, self.level_degrees(dim).T)
            ways.flags.writeable = False
            self._ways[dim] = ways
        return self._ways[dim]

    def group(self, dims: Iterable[str]) -> NDArray[np.int64]:
        """Members at each level of the groups of ranks that split `dims`; (candidates, levels)."""
        chosen = [i for i, dim in enumerate(self.dims) if dim in set(dims)]
        if not chosen:
            return np.ones(self.degrees.shape[:2], dtype=np.int64)
        members: NDArray[np.int64] = reduce(np.multiply, (self.degrees[:, :, i] for i in chosen))
        return members if len(chosen) > 1 else members.copy()

    @property
    def replication(self) -> NDArray[np.int64]:
        """Members at each level that do the same work; (candidates, levels)."""
        alike: NDArray[np.int64] = np.asarray(self.shape) // self.degrees.prod(axis=2)
        return alike

    def local(self, dim: str, extent: int) -> NDArray[np.int64]:
        """Positions of the largest block of a dim of that extent; (candidates,). [items]"""
        # each is asked for dozens of times, and whole numbers are slow to divide
        key = (dim, extent)
        if key not in self._blocks:
            block = -(-extent // self.degree(dim))
            block.flags.writeable = False
            self._blocks[key] = block
        return self._blocks[key]

    def axis_degrees(self, axis: Axis) -> NDArray[np.int64]:
        """Ways that an axis is really split at each level; (candidates, levels).

        Fewer than those of its dim where that is split into more ways than the axis has units, or
        into ways that do not divide them: the outer levels tell units apart, and what is left over
        of the inner ones repeats them.
        """
        ways = self.level_degrees(axis.dim) if axis.dim is not None else self.level_degrees("")
        if axis.units is None or axis.dim not in self.dims:
            return ways
        left, kept = np.full(len(self), axis.units), ways.copy()
        for level in reversed(range(len(self.shape))):
            kept[:, level] = np.gcd(left, ways[:, level])
            left //= kept[:, level]
        return kept

    def axis_extent(self, axis: Axis) -> NDArray[np.int64]:
        """Positions of the largest block of an axis; (candidates,). [items]"""
        if axis.units is None:
            return self.local(axis.dim or "", axis.extent)
        ways: NDArray[np.int64] = reduce(np.multiply, self.axis_degrees(axis).T)
        return axis.extent // ways  # which divide the units

    def sharing_group(self, tensor: Tensor, dims: Iterable[str]) -> NDArray[np.int64]:
        """Members at each level of the groups that have the same block; (candidates, levels).

        Parameters
        ----------
        tensor
            A tensor of the layer.
        dims
            Dims of the layer that the tensor lacks.
        """
        members = self.group(dims)
        for axis in tensor.axes:
            if axis.units is not None and axis.dim in self.dims:
                members = members * (self.level_degrees(axis.dim) // self.axis_degrees(axis))
        return members

    @property
    def totals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first candidate of those that split each dim in as many ways in all; (totals,).

        And the place of each candidate among these; (candidates,).
        """
        if not self._alike:
            ways = np.stack([self.degree(dim) for dim in self.dims], axis=1)
            self._alike.append(unique_rows(ways))
        return self._alike[0]

    def distribution(self, index: int) -> Distribution:
        """One candidate as a distribution, the same for all layers that share the candidates."""
        if index not in self._chosen:
            row = self.degrees[index]
            split = {
                dim: tuple(int(v) for v in row[:, i])
                for i, dim in enumerate(self.dims)
                if row[:, i].prod() > 1
            }
            self._chosen[index] = Distribution(degrees=split, shape=self.shape)
        return self._chosen[index]

    def take(self, indices: NDArray[np.int64]) -> Candidates:
        """Some of the candidates."""
        return Candidates(dims=self.dims, degrees=self.degrees[indices], shape=self.shape)

    def joined(self, others: Candidates) -> Candidates:
        """These candidates, and others of the same layer behind them."""
        degrees = np.concatenate([self.degrees, others.degrees])
        return Candidates(dims=self.dims, degrees=degrees, shape=self.shape)

    def find(self, distribution: Distribution) -> int | None:
        """Index of a distribution, None when it is not among the candidates."""
        wanted = np.ones(self.degrees.shape[1:], dtype=np.int64)
        for dim, degrees in distribution.degrees.items():
            if dim not in self.dims:
                return None
            wanted[:, self.dims.index(dim)] = degrees
        hits = np.flatnonzero((self.degrees == wanted).all(axis=(1, 2)))
        return int(hits[0]) if len(hits) else None


def one_candidate(distribution: Distribution, dims: Iterable[str] = ()) -> Candidates:
    """A distribution as the only candidate, with further dims that it leaves whole."""
    known = {*distribution.degrees, *dims}
    order = tuple(dim for dim in DIMS if dim in known)
    whole = (1,) * len(distribution.shape)
    rows = [distribution.degrees.get(dim, whole) for dim in order]
    degrees = np.array(rows, dtype=np.int64).reshape(len(order), len(whole))
    return Candidates(dims=order, degrees=degrees.T[None, :, :], shape=tuple(distribution.shape))


def split_dims(layer: Layer) -> tuple[str, ...]:
    """Dims of a layer that can be split at all, in the canonical order."""
    return tuple(dim for dim in DIMS if dim in layer.splittable and layer.dims[dim] > 1)


def devices_at_work(distributions: Iterable[Distribution]) -> int:
    """How many devices have work that no other device does: those left over repeat all of theirs.

    What no layer splits is least significant in the numbering of ranks, whatever it does split, so
    that the same ranks repeat the same work in every layer.
    """
    distinct = list(
        {(tuple(sorted(d.degrees.items())), d.shape): d for d in distributions}.values()
    )
    levels = zip(*(d.level_replication for d in distinct), strict=True)
    return math.prod(distinct[0].shape) // math.prod(math.gcd(*alike) for alike in levels)


def limit_reason(layer: Layer, distribution: Distribution) -> str | None:
    """Why a layer cannot be split that way, or None when it can (Kahira et al., Table III)."""
    for dim, degrees in distribution.degrees.items():
        ways = math.prod(degrees)
        if ways == 1:
            continue
        if dim not in layer.splittable:
            return f"layer '{layer.name}' ({layer.kind}) cannot be split by {dim}"
        if ways > layer.dims[dim]:
            return (
                f"layer '{layer.name}' has {layer.dims[dim]} {dim} positions, fewer than the "
                f"{ways} ways asked for"
            )
        if layer.evenly and layer.dims[dim] % ways:
            return (
                f"layer '{layer.name}' has {layer.dims[dim]} {dim} positions, which {ways} ways do "
                "not divide"
            )
    return None
