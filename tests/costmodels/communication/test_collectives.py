"""Collectives: published formulas as special cases, contention, and laws every algorithm obeys."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.cluster import Cluster, Level, list_clusters, load_cluster
from costmodels.communication.collectives import (
    ALL_REDUCE_ALGORITHMS,
    AUTO_ALGORITHMS,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
    send_recv_time,
)
from costmodels.communication.topology import Topology

ALPHA = 9e-6
BANDWIDTH = 50e9
SIZES = np.array([1.0, 4e3, 1e6, 25e6, 1e9])


def level(name: str, size: int, **changes: float | None) -> Level:
    plain = Level(name=name, size=size, latency=ALPHA, bandwidth=BANDWIDTH)
    return replace(plain, **changes)  # type: ignore[arg-type]


def levels_topology(*levels: Level, host: int = 0) -> Topology:
    machine = Cluster(
        name="test",
        device=load_cluster("lassen").device,
        levels=levels,
        host_level=levels[host].name,
        default_precision="fp32",
    )
    return Topology.of(machine, tuple(x.size for x in levels))


TWO_LEVELS = levels_topology(
    level("host", 4), level("network", 16, latency=30e-6, bandwidth=12.5e9, links=2)
)


def groups(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All groups whose members divide the shape."""
    divisors = [[d for d in range(1, used + 1) if used % d == 0] for used in shape]
    return list(itertools.product(*divisors))


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8, 64, 1000])
def test_ring_on_one_level_is_kahira_et_al(p: int) -> None:
    """T_ar = 2 (p-1) (alpha + m/p beta) and T_ag = (p-1) (alpha + m beta), section IV."""
    ring = levels_topology(level("host", p))
    reduced = all_reduce_time(ring, [p], SIZES, "ring")
    assert reduced == pytest.approx(2 * (p - 1) * (ALPHA + SIZES / p / BANDWIDTH), rel=1e-12)
    gathered = all_gather_time(ring, [p], SIZES, "ring")
    assert gathered == pytest.approx((p - 1) * (ALPHA + SIZES / BANDWIDTH), rel=1e-12)


@pytest.mark.parametrize(("p", "log"), [(2, 1), (8, 3), (64, 6)])
def test_halving_doubling_is_thakur_et_al_for_powers_of_two(p: int, log: int) -> None:
    expected = 2 * log * ALPHA + 2 * (p - 1) / p * SIZES / BANDWIDTH
    ring = levels_topology(level("host", p))
    assert all_reduce_time(ring, [p], SIZES, "halving_doubling") == pytest.approx(expected)


def test_halving_doubling_pays_for_the_ranks_beyond_a_power_of_two() -> None:
    ring = levels_topology(level("host", 6))
    extra = 2 * (ALPHA + SIZES / BANDWIDTH)
    expected = 2 * 2 * ALPHA + 2 * 3 / 4 * SIZES / BANDWIDTH + extra
    assert all_reduce_time(ring, [6], SIZES, "halving_doubling") == pytest.approx(expected)


def test_hierarchical_is_the_ring_where_there_is_one_level() -> None:
    one = levels_topology(level("host", 8))
    assert all_reduce_time(one, [8], SIZES, "hierarchical") == pytest.approx(
        all_reduce_time(one, [8], SIZES, "ring")
    )


def test_hierarchical_is_scatter_inside_reduce_across_gather_inside() -> None:
    shard = SIZES / 4
    # Four shards of a host share its two 12.5 GB/s links.
    across = 2 * 15 * (30e-6 + shard / 16 / (25e9 / 4))
    inside = 2 * 3 * (ALPHA + SIZES / 4 / BANDWIDTH)
    assert all_reduce_time(TWO_LEVELS, [4, 16], SIZES, "hierarchical") == pytest.approx(
        inside + across
    )


def test_ring_over_hosts_is_bound_by_the_links_that_leave_a_host() -> None:
    p, hosts = 64, 16
    # Of the 64 hops of the ring, 16 leave a host; a rank waits for 63 of them twice.
    latency = 2 * 63 / 64 * (48 * ALPHA + hosts * 30e-6)
    expected = latency + 2 * (p - 1) / p * SIZES / 25e9
    assert all_reduce_time(TWO_LEVELS, [4, 16], SIZES, "ring") == pytest.approx(expected)


def test_tree_over_hosts_is_logarithmic_and_sends_the_buffer_twice() -> None:
    expected = 2 * (3 * ALPHA + 4 * 30e-6) + 2 * SIZES / 25e9
    assert all_reduce_time(TWO_LEVELS, [4, 16], SIZES, "tree") == pytest.approx(expected)


def test_two_hosts_reduce_at_twice_the_speed_of_a_ring() -> None:
    """41.6 GB/s bus bandwidth over two EDR ports: S/t = 23.8 GB/s (nccl-tests issue 251)."""
    machine = load_cluster("abci")
    dual = replace(machine.levels[1], links=2)
    wide = replace(machine, levels=(machine.levels[0], dual))
    size = 4e9
    time = all_reduce_time(Topology.of(wide, (4, 2)), [4, 2], size)
    assert float(2 * 7 / 8 * size / time) == pytest.approx(41.55e9, rel=0.04)


def test_groups_that_share_a_host_share_its_links() -> None:
    alone = levels_topology(level("host", 1), level("network", 16, latency=30e-6, bandwidth=12.5e9))
    shared = levels_topology(
        level("host", 4), level("network", 16, latency=30e-6, bandwidth=12.5e9)
    )
    size = 1e9
    assert all_reduce_time(shared, [1, 16], size, "ring") - 2 * 15 * 30e-6 == pytest.approx(
        4 * (all_reduce_time(alone, [1, 16], size, "ring") - 2 * 15 * 30e-6)
    )
    # Together the four groups move what one group of all devices with a quarter each would move.
    transfer = all_reduce_time(shared, [2, 16], size, "ring") - all_reduce_time(
        shared, [2, 16], 0.0, "ring"
    )
    assert transfer == pytest.approx(2 * 31 / 32 * size / (12.5e9 / 2))


def test_wired_children_only_use_the_links_to_each_other() -> None:
    mesh = levels_topology(level("host", 4, links=6, peer_links=2.0))
    for members, links in [(2, 2), (3, 4), (4, 6)]:
        time = all_reduce_time(mesh, [members], 1e9, "ring") - 2 * (members - 1) * ALPHA
        assert time == pytest.approx(2 * (members - 1) / members * 1e9 / (links * BANDWIDTH))


def test_oversubscription_is_felt_by_all_to_all_and_not_by_rings() -> None:
    plain = levels_topology(level("host", 1), level("network", 16))
    thin = levels_topology(level("host", 1), level("network", 16, oversubscription=3.0))
    assert all_reduce_time(thin, [1, 16], 1e9) == all_reduce_time(plain, [1, 16], 1e9)
    latency = 15 * ALPHA
    assert all_to_all_time(thin, [1, 16], 1e9) - latency == pytest.approx(
        3 * (all_to_all_time(plain, [1, 16], 1e9) - latency)
    )


def test_all_to_all_keeps_one_part_and_sends_the_rest() -> None:
    one = levels_topology(level("host", 8))
    expected = 7 * ALPHA + 7 / 8 * SIZES / BANDWIDTH
    assert all_to_all_time(one, [8], SIZES) == pytest.approx(expected)
    # 60 of 64 parts leave the host, over links that four devices share.
    slow = all_to_all_time(TWO_LEVELS, [4, 16], 1e9) - (3 * ALPHA + 60 * 30e-6)
    assert slow == pytest.approx(60 / 64 * 1e9 * 4 / 25e9)


def test_reducing_switches_move_the_buffer_once() -> None:
    """361 GB/s for rings and 480 GB/s with NVLink SHARP on 8 H200 (ml-engineering, 16 GiB)."""
    machine = Topology.of(load_cluster("dgx-h200"), (8, 1))
    size = float(2**34)
    time = all_reduce_time(machine, [8, 1], size)
    assert time == all_reduce_time(machine, [8, 1], size, "in_network")
    assert float(2 * 7 / 8 * size / time) == pytest.approx(480e9, rel=0.05)
    assert float(7 / 8 * size / reduce_scatter_time(machine, [8, 1], size)) == pytest.approx(
        361e9, rel=0.05
    )


def test_an_algorithm_that_cannot_run_takes_forever_and_is_never_chosen() -> None:
    one = levels_topology(level("host", 8))
    assert np.isinf(all_reduce_time(one, [8], SIZES, "in_network")).all()
    assert np.isinf(all_reduce_time(one, [8], SIZES, "tree")).all()
    ring = all_reduce_time(one, [8], SIZES, "ring")
    assert (all_reduce_time(one, [8], SIZES) == ring).all()


@pytest.mark.parametrize("name", list_clusters())
@pytest.mark.parametrize("algorithm", ["auto", *ALL_REDUCE_ALGORITHMS])
def test_time_per_byte_never_grows(name: str, algorithm: str) -> None:
    """Lower bounds rely on it."""
    machine = load_cluster(name)
    num_gpus = min(machine.num_devices, 4 * machine.devices_per_host)
    used = Topology.of(machine, machine.shape(num_gpus))
    sizes = np.logspace(0, 11, 60)
    group = np.array(groups(used.shape))[:, None, :]
    per_byte = all_reduce_time(used, group, sizes, algorithm) / sizes
    assert not np.isnan(per_byte).any()
    runs = np.isfinite(per_byte).all(axis=1)
    assert (per_byte[runs, 1:] <= per_byte[runs, :-1] * (1 + 1e-12)).all()
    assert np.isinf(per_byte[~runs]).all()


def test_auto_is_the_cheapest_element_by_element() -> None:
    used = Topology.of(load_cluster("dgx-h100"), (8, 16))
    group = np.array(groups(used.shape))[:, None, :]
    times = {name: all_reduce_time(used, group, SIZES, name) for name in AUTO_ALGORITHMS}
    best = all_reduce_time(used, group, SIZES)
    assert best.shape == (len(group), len(SIZES))
    assert (best == np.minimum.reduce(list(times.values()))).all()
    for name in ("ring", "tree", "in_network"):
        others = np.minimum.reduce([times[other] for other in times if other != name])
        assert (times[name] < others).any(), f"{name} alone is the cheapest somewhere"


def test_a_batch_gives_what_single_calls_give() -> None:
    group = np.array(groups(TWO_LEVELS.shape))
    sizes = np.geomspace(1, 1e9, len(group))
    for time in (all_reduce_time, all_gather_time, reduce_scatter_time, all_to_all_time):
        batch = time(TWO_LEVELS, group, sizes)
        assert batch == pytest.approx(
            [float(time(TWO_LEVELS, g, s)) for g, s in zip(group, sizes, strict=True)]
        )


def test_a_group_of_one_does_nothing() -> None:
    for time in (all_reduce_time, all_gather_time, reduce_scatter_time, all_to_all_time):
        assert time(TWO_LEVELS, [1, 1], 1e9) == 0


def test_scatter_and_gather_are_halves_of_a_ring() -> None:
    whole = all_reduce_time(TWO_LEVELS, [4, 16], SIZES, "ring")
    scatter = reduce_scatter_time(TWO_LEVELS, [4, 16], SIZES, "ring")
    gather = all_gather_time(TWO_LEVELS, [4, 16], SIZES / 64, "ring")
    assert scatter == pytest.approx(whole / 2)
    assert gather == pytest.approx(whole / 2)


def test_rings_with_a_pace_take_it_at_every_hop() -> None:
    pace = 33e-6
    network = level("network", 16, latency=30e-6, bandwidth=12.5e9, links=2, ring_pace=pace)
    paced = levels_topology(level("host", 4), network)
    for group, steps in (((4, 1), 0), ((1, 16), 15), ((4, 16), 63)):
        free, found = (reduce_scatter_time(t, group, SIZES) for t in (TWO_LEVELS, paced))
        size = group[0] * group[1]
        least = steps * pace + (size - 1) / size * SIZES / (12.5e9 * 2 / (4 / group[0]))
        assert (found >= free).all()
        assert (found >= least * 0.999).all() if steps else (found == free).all()
        assert all_gather_time(paced, group, SIZES / size) == pytest.approx(found)
    # sums go up a tree, which has no such steps
    assert (
        all_reduce_time(paced, (4, 16), SIZES) == all_reduce_time(TWO_LEVELS, (4, 16), SIZES)
    ).all()


def test_messages_share_the_links_of_a_host() -> None:
    # Two links and four devices: alone a message has a whole link, with all others half of one.
    assert send_recv_time(TWO_LEVELS, 1, 1e9, 1) == pytest.approx(30e-6 + 1e9 / 12.5e9)
    assert send_recv_time(TWO_LEVELS, 1, 1e9) == pytest.approx(30e-6 + 1e9 / 6.25e9)
    both = send_recv_time(TWO_LEVELS, np.array([0, 1]), np.array([[1e9], [0.0]]))
    assert both.shape == (2, 2)
    assert both[0, 0] == pytest.approx(ALPHA + 1e9 / BANDWIDTH)
    assert (both[1] == 0).all()


def test_messages_may_take_another_path_than_collectives() -> None:
    """3 ms a halo message without GPUDirect, PCIe at 16 GB/s (tool of Kahira et al. 2021)."""
    machine = Topology.of(load_cluster("abci"), (4, 2))
    assert send_recv_time(machine, 0, 16e6) == pytest.approx(3e-3 + 1e-3)
    assert all_reduce_time(machine, [4, 1], 1e3) < 1e-4


def test_a_published_measurement_is_met() -> None:
    """8 A100, 512 MiB, NCCL 2.27: 4.226 ms (aiconfigurator, Apache-2.0)."""
    machine = Topology.of(load_cluster("dgx-a100"), (8, 1))
    assert float(all_reduce_time(machine, [8, 1], 2.0**29)) == pytest.approx(4.226e-3, rel=0.1)
