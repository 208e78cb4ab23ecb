"""Every way to distribute a layer over the levels of a cluster, as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from costmodels.distribution.distribution import Candidates, split_dims
from costmodels.distribution.rows import unique_rows
from costmodels.graph import Layer


@lru_cache(maxsize=256)
def factorisations(size: int, count: int, most: int) -> tuple[tuple[int, ...], ...]:
    """All ways to write `size` as an ordered product of `count` factors, at most `most` above 1.

    Parameters
    ----------
    size
        The product.
    count
        Number of factors. [items]
    most
        How many of them may be above 1. [items]
    """
    if count == 0:
        return ((),) if size == 1 else ()
    rows = []
    for factor in range(1, size + 1):
        if size % factor or (factor > 1 and most == 0):
            continue
        for rest in factorisations(size // factor, count - 1, most - (factor > 1)):
            rows.append((factor, *rest))
    return tuple(rows)


@lru_cache(maxsize=256)
def _level_rows(size: int, num_dims: int, most: int) -> NDArray[np.int64]:
    """Splits of one level over dims, the last factor being replication, which is dropped."""
    rows = np.array(factorisations(size, num_dims + 1, most), dtype=np.int64)
    return rows.reshape(-1, num_dims + 1)[:, :num_dims]


def _along_axes(rows: NDArray[np.int64], axes: Sequence[int]) -> NDArray[np.int64]:
    """Splits of one level that give every dim whole axes of it, which follow each other.

    Parameters
    ----------
    rows
        Splits, as of `_level_rows`.
    axes
        The axes, from the outermost one. [items]
    """
    ends = np.cumprod((1, *axes))
    return rows[np.isin(np.cumprod(rows, axis=1), ends).all(axis=1)]


def within_host(level: int, host_level: int) -> bool:
    """Whether the links of a level, counted from the inside out, stay inside a host."""
    return level <= host_level


def enumerate_candidates(
    layer: Layer, shape: Sequence[int], host_level: int, *, full: bool = False
) -> Candidates:
    """Every sensible distribution of a layer; the same object for layers that have the same ones.

    Within a host a level may be split over any dims, replication included. Across hosts, where
    links are slow and shared, a level may be split over sample and at most one other dim; `full`
    lifts that restriction. Replication is free to combine with both: it sends nothing, and lets
    any plan of fewer hosts be one of more. A dim is never split into more blocks than it has
    positions (the limits of Kahira et al., Table III), nor into unequal ones where the layer is
    split evenly alone, nor across the axes of a mesh that the layer is given.

    Parameters
    ----------
    layer
        The layer.
    shape
        Members of each level, from the inside out. [items]
    host_level
        Index of the level that makes up one host.
    full
        Whether levels across hosts may be split over any number of dims.
    """
    dims, devices = split_dims(layer), math.prod(shape)
    # with more positions than there are devices a dim may be split like any other such dim
    extents = tuple(layer.dims[dim] for dim in dims)
    if layer.evenly:  # like all others with as many ways in common
        extents = tuple(math.gcd(devices, *_extents_along(layer, dim)) for dim in dims)
    else:
        extents = tuple(min(extent, devices) for extent in extents)
    levels = len(shape) if full else host_level
    # ways in all are asked for without levels
    mesh = layer.mesh if len(layer.mesh) == len(shape) else ()
    return _enumerated(dims, extents, tuple(shape), levels, layer.evenly, mesh)


def _extents_along(layer: Layer, dim: str) -> Iterator[int]:
    """The positions of a dim in a layer, and in what it reads and writes. [items]"""
    yield layer.dims[dim]
    for tensor in (*layer.inputs, layer.output):
        # heads of keys are repeated where there are more ways
        yield from (one.extent for one in tensor.axes if one.dim == dim and one.units is None)


@lru_cache(maxsize=16)
def _enumerated(
    dims: tuple[str, ...],
    extents: tuple[int, ...],
    shape: tuple[int, ...],
    host_level: int,
    evenly: bool,
    mesh: tuple[tuple[int, ...], ...],
) -> Candidates:
    """Every distribution of some dims.

    Parameters
    ----------
    dims, extents, evenly
        The dims, how many ways each may be split at most, and whether ways must divide that.
    shape
        Members of each level, from the inside out. [items]
    host_level
        The last level that may be split over any dims.
    mesh
        As of a layer.
    """
    count = len(dims)
    total, ways = np.ones((1, 0, count), dtype=np.int64), np.ones((1, count), dtype=np.int64)
    for level, size in enumerate(shape):
        rows = _level_rows(size, count, count + 1)
        if mesh:
            rows = _along_axes(rows, mesh[level])
        if not within_host(level, host_level):
            others = [i for i, dim in enumerate(dims) if dim != "sample"]
            rows = rows[(rows[:, others] > 1).sum(axis=1) <= 1]
        possible = np.ones((len(total), len(rows)), dtype=bool)
        for dim, extent in enumerate(extents):
            split = ways[:, None, dim] * rows[None, :, dim]
            possible &= extent % split == 0 if evenly else split <= extent
        old, new = np.nonzero(possible)
        total = np.concatenate([total[old], rows[new, None, :]], axis=1)
        ways = ways[old] * rows[new]
    return Candidates(dims=dims, degrees=total, shape=shape)


@lru_cache(maxsize=16)
def places_of_totals(candidates: Candidates, splits: Candidates) -> NDArray[np.int64]:
    """The places of those among some splits that split each dim in as many ways in all.

    Parameters
    ----------
    candidates
        Distributions of a layer, which many layers may share.
    splits
        One for all ways to split each dim in all.
    """
    rows = np.concatenate([some.degrees.prod(axis=1) for some in (splits, candidates)])
    first, number = unique_rows(rows)
    return first[number[len(splits) :]]


def count_candidates(layer: Layer, shape: Sequence[int]) -> int:
    """How many distributions of a layer there are at all, or more: dims count as long. [items]"""
    count = len(split_dims(layer))
    return math.prod(len(_level_rows(size, count, count + 1)) for size in shape)
