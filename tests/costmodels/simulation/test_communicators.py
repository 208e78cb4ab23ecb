"""What a device holds for NCCL: one communicator for each kind of group, of the version's size."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from costmodels.cluster import load_cluster, load_device
from costmodels.simulation import load_runtime
from costmodels.simulation.communicators import communicators_size
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


def links(devices: int) -> StageLinks:
    """Those of so many devices of a host of H100."""
    stage = Stage(layers=(), first_device=0, shape=(devices,))
    return StageLinks(
        replace(load_cluster("dgx-h100"), levels=load_cluster("dgx-h100").levels[:1]),
        (devices,),
        stage,
    )


@pytest.mark.parametrize(
    ("degrees", "groups"),
    # what has no weight has no gradient that ranks sum up: two ways of tensor parallelism exchange
    # features within two ranks, and gradients among four, and nothing among all
    [({}, 1), ({"tp": 4, "pp": 2}, 2), ({"tp": 2}, 2)],
)
def test_each_kind_of_group_holds_a_communicator(degrees: dict[str, object], groups: int) -> None:
    assert reserved("megatron-core", **degrees) == groups * 392 * MIB


def test_nccl_of_2022_holds_more_for_all_groups_the_first_one_included() -> None:
    # NVIDIA/nccl issue 964: 688 MiB for each group of A100; the device has 392 of the first
    assert reserved("megatron", tp=4, pp=2) == (2 * 688 + 688 - 392) * MIB


def test_a_device_alone_has_no_communicator() -> None:
    assert communicators_size(links(1), [], 0, load_runtime("deepspeed")) == 0.0


def test_a_smaller_communicator_takes_nothing_from_what_the_device_reserves() -> None:
    small = load_runtime("nanotron", communicator=100 * MIB, switch_buffer=0.0)
    assert communicators_size(links(8), [(2,)], 1, small) == 200 * MIB


@pytest.mark.parametrize(
    ("cluster", "degrees", "heads"),
    [
        # all ranks, and four that divide or replicate features
        ("dgx-h100", {"tp": 2}, 8 + 4),
        ("dgx-h100", {"tp": 4}, 8 + 4),
        # and all ranks again, which sum up gradients of norms
        ("dgx-h100", {"tp": 4, "sequence_parallel": True}, 8 + 8 + 4),
        # switches of A100 forward only
        ("dgx-a100", {"tp": 2}, 0),
    ],
)
def test_switches_that_add_up_have_buffers_for_each_device_of_a_host(
    cluster: str, degrees: dict[str, object], heads: int
) -> None:
    with_switches, without = (
        planner.simulate(
            "gpt2",
            cluster=cluster,
            gpus=8,
            global_batch_size=8,
            runtime=load_runtime("nanotron", switch_buffer=size),
            degrees=planner.Degrees(**degrees),  # type: ignore[arg-type]
        )
        for size in (192 * MIB, 0.0)
    )
    held = [
        s.simulated.peak.memory.holders["reserved"] for s in (with_switches, without) if s.simulated
    ]
    assert held[0] - held[1] == heads * 192 * MIB
