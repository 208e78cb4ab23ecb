"""PyTorch's caching allocator: what it takes from the device for the tensors of a step.

Its rules (pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp; DeVito 2022, "A guide to PyTorch's
CUDA Caching Allocator"): a tensor takes a multiple of 512 bytes, from the smallest free block that
holds it, the rest of which stays free where it is more than 1 MiB. Where there is none, a segment
comes from the device: 2 MiB for tensors of up to 1 MiB, 20 MiB for those below 10 MiB, and else the
tensor in multiples of 2 MiB. Free neighbours of a segment join; segments go back only where the
device has no more. Assumes one stream, and no limits on splits.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable

MIB = 2**20
_BLOCK = 512
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_LARGE, _LARGE_SEGMENT, _ROUND = 10 * MIB, 20 * MIB, 2 * MIB


class _Pool:
    """Segments of small or of large tensors, as blocks by the address at which they begin."""

    def __init__(self, least_rest: int) -> None:
        self.least_rest = least_rest
        self.free: list[tuple[int, int]] = []  # size, address
        self.sizes: dict[int, int] = {}  # of every block, by address
        self.before: dict[int, int] = {}  # the block before, in the same segment
        self.is_free: set[int] = set()
        self.segments: dict[int, int] = {}

    def take(self, size: int) -> int | None:
        """The address of a free block, cut to size."""
        place = bisect_left(self.free, (size, -1))
        if place == len(self.free):
            return None
        whole, address = self.free.pop(place)
        self.is_free.discard(address)
        rest = whole - size
        if rest >= self.least_rest:
            self.sizes[address] = size
            self._insert(address + size, rest, address, address + whole)
        return address

    def _insert(self, address: int, size: int, before: int, after: int) -> None:
        """A new free block between two of a segment."""
        self.sizes[address] = size
        self.before[address] = before
        if after in self.sizes and self.before.get(after) is not None:
            self.before[after] = address
        self._set_free(address, size)

    def _set_free(self, address: int, size: int) -> None:
        self.is_free.add(address)
        insort(self.free, (size, address))

    def _unset_free(self, address: int) -> None:
        self.is_free.discard(address)
        self.free.pop(bisect_left(self.free, (self.sizes[address], address)))

    def grow(self, address: int, size: int) -> None:
        """A new segment, free as a whole."""
        self.segments[address] = size
        self.sizes[address] = size
        self._set_free(address, size)

    def give(self, address: int) -> None:
        """A block is free again, and joins its neighbours."""
        after = address + self.sizes[address]
        if self.before.get(after) == address and after in self.is_free:
            self._unset_free(after)
            self._join(address, after)
        ahead = self.before.get(address)
        if ahead is not None and ahead in self.is_free:
            self._unset_free(ahead)
            self._join(ahead, address)
            address = ahead
        self._set_free(address, self.sizes[address])

    def _join(self, first: int, second: int) -> None:
        self.sizes[first] += self.sizes.pop(second)
        del self.before[second]
        after = first + self.sizes[first]
        if after in self.before:
            self.before[after] = first

    def release(self) -> int:
        """Give free segments back to the device. [B]"""
        free = [a for a, size in self.segments.items() if a in self.is_free]
        whole = [a for a in free if self.sizes[a] == self.segments[a]]
        for address in whole:
            self._unset_free(address)
            del self.sizes[address]
        return sum(self.segments.pop(address) for address in whole)


class CachingAllocator:
    """What is taken from a device, and the most that ever was.

    Parameters
    ----------
    limit
        What the device has for tensors. [B]
    """

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self.reserved = self.peak = 0
        # the most that it would have had, had nothing gone back when it was asked for more
        self.wanted = 0
        self.failed = False
        self._small, self._large = _Pool(_BLOCK), _Pool(_SMALL + 1)
        self._held: dict[Hashable, tuple[_Pool, int]] = {}
        self._next = 0

    def allocate(self, key: Hashable, size: float) -> None:
        """Memory for a tensor. [B]"""
        rounded = max(math.ceil(size / _BLOCK), 1) * _BLOCK
        pool = self._small if rounded <= _SMALL else self._large
        address = pool.take(rounded)
        if address is None:
            self._grow(pool, self._segment(pool, rounded))
            address = pool.take(rounded)
            assert address is not None, "a new segment holds what it is for"
        self._held[key] = (pool, address)

    def _segment(self, pool: _Pool, size: int) -> int:
        """What comes from the device for a tensor. [B]"""
        if pool is self._small:
            return _SMALL_SEGMENT
        return _LARGE_SEGMENT if size < _LARGE else math.ceil(size / _ROUND) * _ROUND

    def _fits(self, segment: int) -> bool:
        return self.reserved + segment <= self.limit

    def _grow(self, pool: _Pool, segment: int) -> None:
        self.wanted = max(self.wanted, self.reserved + segment)
        if not self._fits(segment):
            self.catch_up()
            self.reserved -= self._small.release() + self._large.release()
        self.failed |= not self._fits(segment)
        # segments do not touch, so that their blocks never join
        pool.grow(self._next, segment)
        self._next += segment + _BLOCK
        self.reserved += segment
        self.peak = max(self.peak, self.reserved)

    def catch_up(self) -> None:
        """What is done where memory is short, before free segments go back: here nothing.

        Tensors may become free then that another stream was still to read.
        """

    def holds(self, key: Hashable) -> bool:
        """Whether there is a tensor of that name."""
        return key in self._held

    def free(self, key: Hashable) -> None:
        """A tensor is gone."""
        pool, address = self._held.pop(key)
        pool.give(address)
