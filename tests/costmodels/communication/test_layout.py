"""Movement between layouts: against index sets on every rank, and against the collectives."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import ALPHA, BANDWIDTH, topology_of

from costmodels.cluster import load_cluster
from costmodels.communication.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
)
from costmodels.communication.layout import Layouts, concatenate
from costmodels.communication.layout_changes import LayoutChanges, layout_changes
from costmodels.communication.movement import Movement, movement
from costmodels.communication.topology import Topology
from costmodels.distribution import Candidates
from costmodels.graph import DIMS, Axis, Tensor

# The output of a convolution: filters are its channels, and a split of channel leaves partial sums.
SPLIT = ("sample", "filter", "channel", "width")
AXES = {"sample": "sample", "filter": "channel", "width": "width"}
OUTPUT = Tensor(axes=tuple(Axis(name=a, extent=64, dim=d) for d, a in AXES.items()))

Levels = tuple[dict[str, int], ...]  # ways of each dim at each level, from the inside out


def layouts(shape: tuple[int, ...], *rows: Levels) -> Layouts:
    degrees = [[[level.get(dim, 1) for dim in SPLIT] for level in row] for row in rows]
    candidates = Candidates(dims=SPLIT, degrees=np.array(degrees, dtype=np.int64), shape=shape)
    return Layouts.of(candidates, OUTPUT, {"channel"})


def moved(topology: Topology, source: Levels, target: Levels) -> Movement:
    return movement(
        layouts(topology.shape, source), layouts(topology.shape, target), topology, steps="ring"
    )


def time(topology: Topology, source: Levels, target: Levels, num_bytes: float) -> float:
    first = np.array([0])
    return moved(topology, source, target).time(first, first, num_bytes).item()


def block_numbers(shape: tuple[int, ...], levels: Levels) -> list[dict[str, int]]:
    """The number of the block of each dim on every rank, ranks numbered from the inside out."""
    result = []
    for position in itertools.product(*(range(n) for n in reversed(shape))):
        number = dict.fromkeys(SPLIT, 0)
        for size, ways, here in zip(reversed(shape), reversed(levels), position, strict=True):
            rest, left = size, here
            for dim in (d for d in DIMS if d in SPLIT):
                rest //= ways.get(dim, 1)
                digit, left = divmod(left, rest)
                number[dim] = number[dim] * ways.get(dim, 1) + digit
        result.append(number)
    return result


def held_by_ranks(
    shape: tuple[int, ...], levels: Levels, extent: int, partial: int
) -> list[np.ndarray]:
    """Which elements every rank holds; the last axis holds the parts of scattered sums."""
    ways = {dim: math.prod(level.get(dim, 1) for level in levels) for dim in SPLIT}
    held = []
    for number in block_numbers(shape, levels):
        mask = np.ones((1,), dtype=bool)
        for dim, size in (*((d, extent) for d in AXES), ("channel", partial)):
            index = np.arange(size) // (size // ways[dim]) == number[dim]
            mask = np.logical_and.outer(mask, index)
        held.append(mask)
    return held


def brute_force(shape: tuple[int, ...], source: Levels, target: Levels) -> list[float]:
    """Part of the tensor that each child receives over the links of each level."""
    extent = math.prod(shape)
    partial = math.prod(level.get("channel", 1) for level in source)
    have = held_by_ranks(shape, source, extent, partial)
    merged = tuple({**level, "channel": 1} for level in target)
    want = held_by_ranks(shape, merged, extent, 1)
    lacks = []
    for level in range(len(shape)):
        below = math.prod(shape[:level])
        worst = 0.0
        for start in range(0, len(have), below):
            child = slice(start, start + below)
            missing = np.logical_or.reduce(want[child]) & ~np.logical_or.reduce(have[child])
            worst = max(worst, missing.mean())
        lacks.append(worst)
    # what enters a parent reaches its children in equal parts, over the links it came by
    outside = [*(lack / size for lack, size in zip(lacks[1:], shape[:-1], strict=True)), 0.0]
    return [max(lack - entered, 0.0) for lack, entered in zip(lacks, outside, strict=True)]


SHAPES = st.sampled_from([(2,), (4,), (6,), (2, 2), (4, 2), (2, 3), (3, 2), (2, 2, 2), (2, 1, 3)])


@st.composite
def split(draw, size: int, dims: tuple[str, ...]) -> dict[str, int]:
    """A random split of one level."""
    ways, rest = {}, size
    for dim in draw(st.permutations(dims)):
        ways[dim] = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        rest //= ways[dim]
    return ways


@st.composite
def layout_pair(draw) -> tuple[tuple[int, ...], Levels, Levels]:
    shape = draw(SHAPES)
    source = tuple(draw(split(size, tuple(AXES))) for size in shape)
    target = tuple(draw(split(size, tuple(AXES))) for size in shape)
    return shape, source, target


@st.composite
def gathered_sums(draw) -> tuple[tuple[int, ...], Levels, Levels]:
    """Partial sums at some levels, where the target splits nothing further."""
    shape = draw(SHAPES)
    source, target = [], []
    for size in shape:
        source.append(draw(split(size, SPLIT)))
        if source[-1]["channel"] == 1:
            target.append(draw(split(size, tuple(AXES))))
        else:
            coarser = {
                d: [n for n in range(1, source[-1][d] + 1) if source[-1][d] % n == 0] for d in AXES
            }
            target.append({d: draw(st.sampled_from(n)) for d, n in coarser.items()})
    return shape, tuple(source), tuple(target)


@given(layout_pair())
def test_what_every_child_receives_is_what_its_index_sets_lack(pair):
    shape, source, target = pair
    volume = moved(topology_of(*shape), source, target).volume[0, 0]
    assert volume.tolist() == pytest.approx(brute_force(shape, source, target), abs=1e-9)


@given(gathered_sums())
def test_scattered_partial_sums_are_gathered_where_the_target_does_not_split_them(pair):
    shape, source, target = pair
    volume = moved(topology_of(*shape), source, target).volume[0, 0]
    assert volume.tolist() == pytest.approx(brute_force(shape, source, target), abs=1e-9)


@given(shape=SHAPES, data=st.data())
def test_volumes_obey_the_triangle_inequality(shape, data):
    rows = [tuple(data.draw(split(n, tuple(AXES))) for n in shape) for _ in range(3)]
    table = layouts(shape, *rows)
    # within a level, part of what is lacking comes from outside: only the outermost one is a sum
    volume = movement(table, table, topology_of(*shape)).volume[:, :, -1]
    for a, b, c in itertools.product(range(3), repeat=3):
        assert volume[a, c] <= volume[a, b] + volume[b, c] + 1e-9
    assert np.diag(volume).tolist() == [0.0] * 3


@given(layout_pair())
def test_nothing_moves_exactly_where_nothing_is_lacking(pair):
    shape, source, target = pair
    result = moved(topology_of(*shape), source, target)
    anything = max(brute_force(shape, source, target)) > 0
    assert (result.latency.item() > 0) == (result.seconds_per_byte.item() > 0) == anything


@pytest.mark.parametrize("name", ["lassen", "dgx-a100", "abci-paradl"])
@pytest.mark.parametrize("num_bytes", [1e3, 1e6, 1e9])
def test_symmetric_changes_within_a_host_are_the_collectives(name, num_bytes):
    machine = load_cluster(name)
    inside = [1] * len(machine.levels)
    inside[0] = k = machine.levels[0].size
    topology = Topology.of(machine, tuple(inside))
    rest = tuple({} for _ in inside[1:])
    whole, samples = ({}, *rest), ({"sample": k}, *rest)
    width, sums = ({"width": k}, *rest), ({"channel": k}, *rest)

    gather = all_gather_time(topology, inside, num_bytes / k, algorithm="hierarchical").item()
    assert time(topology, samples, whole, num_bytes) == pytest.approx(gather)
    exchange = all_to_all_time(topology, inside, num_bytes / k).item()
    assert time(topology, samples, width, num_bytes) == pytest.approx(exchange)
    # slicing is free; a reduce-scatter leaves nothing to move, an all-reduce one gathering
    assert time(topology, whole, samples, num_bytes) == 0.0
    assert time(topology, sums, samples, num_bytes) == 0.0
    assert time(topology, sums, whole, num_bytes) == pytest.approx(gather)


def test_a_reduction_and_the_gathering_after_it_are_a_ring_all_reduce():
    p, num_bytes = 8, 3e6
    topology = topology_of(p)
    reduction = reduce_scatter_time(topology, [p], num_bytes).item()
    total = reduction + time(topology, ({"channel": p},), ({},), num_bytes)
    assert total == pytest.approx(all_reduce_time(topology, [p], num_bytes, "ring").item())
    assert total == pytest.approx(2 * (p - 1) * (ALPHA + num_bytes / p / BANDWIDTH))


@pytest.mark.parametrize("sizes", [(4, 2), (2, 8), (2, 2, 2)])
def test_gathering_over_several_levels_is_a_hierarchical_all_gather(sizes):
    topology, num_bytes = topology_of(*sizes), 1e6
    p = math.prod(sizes)
    sums = tuple({"channel": n} for n in sizes)
    samples = tuple({"sample": n} for n in sizes)
    whole = tuple({} for _ in sizes)
    gather = all_gather_time(topology, sizes, num_bytes / p, algorithm="hierarchical").item()
    for source in (sums, samples):
        assert time(topology, source, whole, num_bytes) == pytest.approx(gather)


def test_a_coarser_layout_of_partial_sums_gathers_what_the_scattering_took_away():
    # of four ranks, each pair sums one half of the samples: everyone has a quarter afterwards
    volume = moved(topology_of(4), ({"sample": 2, "channel": 2},), ({},)).volume
    assert volume.item() == pytest.approx(3 / 4)
    # whoever wants one half of the samples, its own, lacks the other quarter
    volume = moved(topology_of(4), ({"sample": 2, "channel": 2},), ({"sample": 2},)).volume
    assert volume.item() == pytest.approx(1 / 4)


def test_sums_over_hosts_come_back_over_hosts_and_are_shared_inside():
    # two devices a host hold the same sums: each host fetches half of them once, and shares it
    volume = moved(topology_of(2, 2), ({}, {"channel": 2}), ({}, {})).volume[0, 0]
    assert volume.tolist() == pytest.approx([1 / 4, 1 / 2])


def test_what_enters_a_host_is_counted_once():
    # four devices of each of two hosts need the half that the other host holds
    volume = moved(topology_of(4, 2), ({}, {"sample": 2}), ({}, {})).volume[0, 0]
    assert volume.tolist() == pytest.approx([1 / 2 * 3 / 4, 1 / 2])


def test_moving_a_split_to_another_level_exchanges_what_does_not_stay():
    volume = moved(topology_of(2, 2), ({"sample": 2}, {}), ({}, {"sample": 2})).volume[0, 0]
    # every host has all samples already; each device lacks its other quarter or none
    assert volume.tolist() == pytest.approx([1 / 2, 0.0])


def test_steps_of_recursive_doubling_are_an_option():
    topology, whole, samples = topology_of(8), layouts((8,), ({},)), layouts((8,), ({"sample": 8},))
    ring = movement(samples, whole, topology, steps="ring")
    doubling = movement(samples, whole, topology, steps="doubling")
    assert ring.latency.item() == pytest.approx(7 * ALPHA)
    assert doubling.latency.item() == pytest.approx(3 * ALPHA)
    assert ring.seconds_per_byte.item() == doubling.seconds_per_byte.item()


def test_exchanges_feel_an_oversubscribed_core_and_gatherings_do_not():
    plain, narrow = topology_of(8), topology_of(8, oversubscription=4.0)
    samples, width = ({"sample": 8},), ({"width": 8},)
    slower = moved(narrow, samples, width).seconds_per_byte.item()
    assert slower == pytest.approx(4 * moved(plain, samples, width).seconds_per_byte.item())
    gather = [moved(n, samples, ({},)).seconds_per_byte.item() for n in (plain, narrow)]
    assert gather[0] == gather[1]


def test_direct_wires_limit_small_groups():
    # one of four links leads to each peer: two ranks that talk to each other have one of them
    topology = topology_of(4, links=4, peer_links=1)
    pair = moved(topology, ({"sample": 2},), ({},))
    assert pair.seconds_per_byte.item() == pytest.approx(0.5 / BANDWIDTH)
    four = moved(topology, ({"sample": 4},), ({},))
    assert four.seconds_per_byte.item() == pytest.approx(0.75 / (3 * BANDWIDTH))


def test_equal_layouts_have_equal_codes_whatever_else_is_split():
    one = layouts((4,), ({"sample": 2},))
    # the axis of a dim that the tensor lacks takes ranks, but no digits that matter here
    other = layouts((4,), ({"sample": 2, "channel": 2},))
    assert (one.degrees == other.degrees).all()
    assert (one.strides == other.strides).all()
    assert (one.partial != other.partial).any()
    table = concatenate([one, other, one])
    assert len(np.unique(table.codes(), axis=0)) == 2
    assert (table.take(np.array([1])).codes() == other.codes()).all()


def test_order_of_digits_matters():
    # both split samples and width in two, but neighbouring ranks differ in another axis
    sample_first = ({"sample": 2, "width": 2},)
    width_inside = ({"width": 2}, {"sample": 2})
    sample_inside = ({"sample": 2}, {"width": 2})
    assert moved(topology_of(4), sample_first, sample_first).volume.item() == 0.0
    volume = moved(topology_of(2, 2), width_inside, sample_inside).volume[0, 0]
    assert volume.tolist() == pytest.approx(
        brute_force((2, 2), width_inside, sample_inside), abs=1e-9
    )
    assert volume[1] > 0


def test_changes_are_the_same_whatever_was_compared_before():
    """A search compares some layouts, then the same with others between and behind them."""
    ways = [dict(zip(SPLIT, row, strict=True)) for row in itertools.product((1, 2), repeat=4)]
    rows = [(a, b) for a in ways[:9] for b in ways]
    table = layouts((16, 16), *rows)
    order = np.random.default_rng(0).permutation(len(table))
    known = topology_of(16, 16)
    for count in (60, 80, 144, 100, 20):
        some = table.take(order[:count])
        again, fresh = layout_changes(some, known), layout_changes(some, topology_of(16, 16))
        for name in LayoutChanges.__struct_fields__:
            assert np.array_equal(getattr(again, name), getattr(fresh, name))
