"""What a device holds for NCCL: one communicator for each kind of group, of the version's size."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import planner
from costmodels.cluster import load_cluster, load_device
from costmodels.errors import InputError
from costmodels.simulation import Runtime, load_runtime
from costmodels.simulation.communicators import Neighbours, communicators_size
from costmodels.simulation.messages import StageLinks
from costmodels.strategy import Stage

MIB = 2.0**20


def reserved(runtime: str, **degrees: object) -> float:
    """What lies outside of tensors on a device of one host of A100, beyond the device's own. [B]"""
    simulation = planner.simulate(
        "gpt2",
        cluster="dgx-a100",
        gpus=8,
        global_batch_size=8,
        runtime=runtime,
        degrees=planner.Degrees(**degrees),  # type: ignore[arg-type]
    )
    assert simulation.simulated is not None
    holders = simulation.simulated.peak.memory.holders
    return holders["reserved"] - load_device("a100-80gb").reserved_memory


def links(*members: int) -> StageLinks:
    """Those of so many devices of a host of H100, and of so many hosts. [items]"""
    cluster = load_cluster("dgx-h100")
    stage = Stage(layers=(), first_device=0, shape=members)
    return StageLinks(replace(cluster, levels=cluster.levels[: len(members)]), members, stage)


@pytest.mark.parametrize(
    ("degrees", "groups"),
    # what has no weight has no gradient that ranks sum up: two ways of tensor parallelism exchange
    # features within two ranks, and gradients among four, and nothing among all
    [({}, 1), ({"tp": 4, "pp": 2}, 2), ({"tp": 2}, 2)],
)
def test_each_kind_of_group_holds_a_communicator(degrees: dict[str, object], groups: int) -> None:
    assert reserved("megatron-core", **degrees) == groups * 392 * MIB


def test_nccl_of_2022_holds_more_for_all_groups_the_first_one_included() -> None:
    # NVIDIA/nccl issue 964: 688 MiB for a group of A100, 544 for one of two; devices have 392
    assert reserved("megatron", tp=4, pp=2) == (688 + 544 + 688 - 392) * MIB


def test_a_device_alone_has_no_communicator() -> None:
    assert communicators_size(links(1), [], [], [], Neighbours(), load_runtime("deepspeed")) == 0.0


@pytest.mark.parametrize(
    ("shard_size", "groups"),
    # all ranks hold the weights, pairs share them, or quartets do; others hold the same shard
    [(None, 688), (2, 544 + 688), (4, 688 + 544)],
)
def test_shards_over_some_ranks_have_two_communicators(shard_size, groups) -> None:
    found = reserved("deepspeed", zero=3, shard_size=shard_size)
    assert found == (688 - 392 + groups) * MIB


def test_two_groups_of_two_that_share_and_that_copy_are_two() -> None:
    small = load_runtime("deepspeed", communicator_of_two=544 * MIB)
    pair = [(2,)]
    assert communicators_size(links(4), [], pair, pair, Neighbours(), small) == (
        (688 - 392 + 2 * 544) * MIB
    )


def test_a_smaller_communicator_takes_nothing_from_what_the_device_reserves() -> None:
    small = load_runtime("megatron", communicator=100 * MIB, communicator_of_two=50 * MIB)
    assert communicators_size(links(8), [(2,)], [(4,)], [], Neighbours(), small) == 150 * MIB


def held(runtime: Runtime, cluster: str = "dgx-h100", **degrees: object) -> list[float]:
    """What lies outside of tensors on a device of each role of eight devices. [B]"""
    simulation = planner.simulate(
        "gpt2",
        cluster=cluster,
        gpus=8,
        global_batch_size=8,
        runtime=runtime,
        degrees=planner.Degrees(**degrees),  # type: ignore[arg-type]
    )
    assert simulation.simulated is not None
    return [role.memory.holders["reserved"] for role in simulation.simulated.roles]


@pytest.mark.parametrize(
    ("degrees", "larger", "of_two"),
    [
        # all ranks, once more, and four that hold the same weights; norms are summed up over the
        # two that exchange features and over these four, one after the other
        ({"tp": 2}, (2,), (1,)),
        ({"tp": 2, "sequence_parallel": True}, (2,), (1,)),
        # two stages share the embedding and are all stages; those that send have one of their own
        ({"pp": 2}, (2, 2), (2, 2)),
        # the stages, the replica; the first and the last one share, each sends to those beside it
        ({"tp": 2, "pp": 4, "sequence_parallel": True}, (3, 3, 3, 3), (3, 3, 3, 3)),
        # two ranks that exchange features are others than two that hold the same weights
        ({"tp": 2, "pp": 2}, (2, 2), (4, 4)),
    ],
)
def test_nanotron_has_a_communicator_for_each_of_its_groups(
    degrees: dict[str, object], larger: tuple[int, ...], of_two: tuple[int, ...]
) -> None:
    found = held(load_runtime("nanotron", switch_buffer=0.0), **degrees)
    first = load_device("h100").reserved_memory + (688 - 392) * MIB
    sizes = [688 * MIB * many + 544 * MIB * two for many, two in zip(larger, of_two, strict=True)]
    assert found == [first + size for size in sizes]


@pytest.mark.parametrize(
    ("cluster", "degrees", "heads"),
    [
        # all ranks, twice, and four that divide or replicate features
        ("dgx-h100", {"tp": 2}, 8 + 8 + 4),
        ("dgx-h100", {"tp": 4}, 8 + 8 + 4),
        # no group of all ranks for norms, but a replica, its stages and what exchanges features
        ("dgx-h100", {"tp": 2, "pp": 4, "sequence_parallel": True}, 8 + 8 + 8 + 4),
        # switches of A100 forward only
        ("dgx-a100", {"tp": 2}, 0),
    ],
)
def test_switches_that_add_up_have_buffers_for_each_device_of_a_host(
    cluster: str, degrees: dict[str, object], heads: int
) -> None:
    with_switches, without = (
        held(load_runtime("nanotron", switch_buffer=size), cluster, **degrees)[0]
        for size in (192 * MIB, 0.0)
    )
    assert with_switches - without == heads * 192 * MIB


@pytest.mark.parametrize(
    ("features", "weights", "larger"),
    [
        # two ranks that exchange features: those of a host are one more group, with eight heads
        ((2, 1), (4, 2), 688 + 8 * 192),
        # all ranks of a host exchange features, and nanotron makes no group of the same ranks twice
        ((8, 1), (1, 2), 0),
    ],
)
def test_ranks_of_a_host_are_a_group_unless_another_one_is_theirs(
    features: tuple[int, ...], weights: tuple[int, ...], larger: float
) -> None:
    without = load_runtime("nanotron")
    with_host = replace(without, groups=("host", *without.groups))
    most, least = (
        communicators_size(links(8, 2), [features], [weights], [], Neighbours(), runtime)
        for runtime in (with_host, without)
    )
    assert most - least == larger * MIB


@pytest.mark.parametrize(
    ("hosts", "neighbours"),
    # two hosts have each other; of two trees over three a host has one and two neighbours, and of
    # those over four and more hosts one has three in one tree and one in the other
    [(1, 0.0), (2, 1.0), (3, 1.5), (4, 2.0), (64, 2.0)],
)
def test_switches_that_add_up_are_joined_by_trees_over_hosts(hosts: int, neighbours: float) -> None:
    sizes = []
    for size in (320 * MIB, 0.0):
        runtime = load_runtime("nanotron", switch_tree=size)
        # all ranks, twice; four devices of each host hold the same weights; one of each does
        found = [(4, hosts), (1, hosts)]
        sizes.append(communicators_size(links(8, hosts), [], found, [], Neighbours(), runtime))
    assert sizes[0] - sizes[1] == 3 * neighbours * 320 * MIB


def test_a_kind_of_group_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="must be some of all, host, norms, stages"):
        load_runtime("nanotron", groups=("everyone",))
