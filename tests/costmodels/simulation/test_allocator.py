"""PyTorch's caching allocator by its rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.simulation.allocator import MIB, CachingAllocator

SIZES = st.sampled_from([1, 700, MIB, MIB + 1, 3 * MIB, 10 * MIB, 16 * MIB, 64 * MIB + 1])


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2),
        (MIB, 2),
        (MIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (10 * MIB + 1, 12),
        (101 * MIB, 102),
    ],
)
def test_segments_have_the_sizes_that_pytorch_gives_them(size, segment):
    allocator = CachingAllocator()
    allocator.allocate("a", size)
    assert allocator.reserved == segment * MIB


def test_small_tensors_share_a_segment_and_large_ones_another():
    allocator = CachingAllocator()
    for number in range(4096):
        allocator.allocate(number, 512)
    assert allocator.reserved == 2 * MIB
    allocator.allocate("more", 1)
    assert allocator.reserved == 4 * MIB
    for number in range(10):
        allocator.allocate(("large", number), 2 * MIB)
    assert allocator.reserved == 24 * MIB


def test_a_free_block_is_cut_where_more_than_a_mebibyte_is_left():
    allocator = CachingAllocator()
    allocator.allocate("a", 64 * MIB)
    allocator.free("a")
    allocator.allocate("b", 48 * MIB)
    allocator.allocate("c", 16 * MIB)
    assert allocator.reserved == 64 * MIB
    allocator.free("b")
    allocator.allocate("d", 47 * MIB)
    # a mebibyte is left of the block, and lost with it
    allocator.free("d")
    allocator.allocate("e", 48 * MIB)
    assert allocator.reserved == 64 * MIB
    # what is left free between tensors is no room for a larger one
    allocator.free("c")
    allocator.allocate("f", 32 * MIB)
    assert allocator.reserved == 96 * MIB


def test_neighbours_join_and_segments_do_not():
    allocator = CachingAllocator()
    for name in "ab":
        allocator.allocate(name, 32 * MIB)
    for name in "ab":
        allocator.free(name)
    allocator.allocate("c", 64 * MIB)
    assert allocator.reserved == 128 * MIB
    allocator.free("c")
    for name in "def":
        allocator.allocate(name, 32 * MIB)
    for name in "def":
        allocator.free(name)
    allocator.allocate("g", 64 * MIB)
    assert allocator.reserved == 128 * MIB


def test_free_segments_go_back_where_there_is_no_more():
    allocator = CachingAllocator(100 * MIB)
    allocator.allocate("a", 40 * MIB)
    allocator.allocate("b", 40 * MIB)
    allocator.free("a")
    allocator.allocate("c", 60 * MIB)
    assert allocator.reserved == 100 * MIB
    assert allocator.wanted == 140 * MIB
    assert not allocator.failed
    allocator.allocate("d", 2 * MIB)
    assert allocator.failed
    assert allocator.peak > 100 * MIB


@given(st.lists(st.tuples(SIZES, st.integers(0, 30))))
def test_what_is_held_is_never_more_than_what_is_reserved(steps):
    allocator = CachingAllocator()
    live: dict[int, int] = {}
    for number, (size, other) in enumerate(steps):
        allocator.allocate(number, size)
        live[number] = size
        if other in live:
            allocator.free(other)
            del live[other]
        assert sum(live.values()) <= allocator.reserved <= allocator.peak
    # all freed, every segment is whole again: the largest tensor fits without more
    for number in live:
        allocator.free(number)
    reserved = allocator.reserved
    for number, (size, _) in enumerate(steps[-1:]):
        allocator.allocate(("again", number), size)
    assert allocator.reserved == reserved


def test_where_memory_is_short_what_another_stream_was_to_read_is_waited_for():
    waited = []

    class Behind(CachingAllocator):
        def catch_up(self) -> None:
            waited.append(self.reserved)
            for key in ("whole", "part"):
                if self.holds(key):
                    self.free(key)

    allocator = Behind(200 * MIB)
    allocator.allocate("whole", 64 * MIB)
    allocator.allocate("rest", 96 * MIB)
    allocator.free("rest")
    allocator.allocate("part", 48 * MIB)
    allocator.allocate("other", 48 * MIB)
    # a free block would do, and nobody waits
    assert not waited
    # a segment that is free as a whole goes back, the free part of another one does not
    allocator.allocate("new", 50 * MIB)
    assert waited == [160 * MIB]
    assert not allocator.failed
    assert allocator.reserved == (96 + 50) * MIB
    # what is free now serves later tensors
    allocator.allocate("again", 48 * MIB)
    assert len(waited) == 1
