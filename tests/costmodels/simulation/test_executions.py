"""Ways to execute, and what a process that launches for several devices takes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

import planner
from costmodels.cluster import load_cluster
from costmodels.errors import InputError
from costmodels.graph import FUSIONS
from costmodels.simulation import load_runtime
from costmodels.simulation.executions import executed
from costmodels.simulation.runtimes import COPY


def test_executions_change_launches_and_fusions() -> None:
    runtime = load_runtime("ddp")
    assert executed(runtime, "eager") == runtime
    assert executed(runtime, "captured").launch_time == 0.0
    assert set(executed(runtime, "compiled").fusions("bf16")) == set(FUSIONS)
    assert executed(runtime, "compiled").launch_time == runtime.launch_time > 0.0
    with pytest.raises(InputError, match="be one of eager, compiled, captured but is 'lazy'"):
        executed(runtime, "lazy")


def test_fusions_hold_in_the_precisions_that_have_a_kernel() -> None:
    runtime = load_runtime("ddp", fuses=("add",), fuses_in=("fp16",))
    assert runtime.fusions("fp16") == ("add",)
    assert runtime.fusions("tf32") == ()


def test_runtimes_refuse_what_they_cannot_be() -> None:
    for change, rule in (
        ({"fuses": ("pool",)}, "be some of activation, add, bias"),
        ({"aggregation": "gossip"}, "be one of peers, rooted, one_device"),
        ({"launch_time": 2.0}, "be from 0 to 1 s"),
    ):
        with pytest.raises(InputError, match=rule):
            load_runtime("ddp", **change)


def test_all_reduces_through_one_device_move_more() -> None:
    peers, rooted, lone = (
        load_runtime("ddp", aggregation=name) for name in ("peers", "rooted", "one_device")
    )
    for members in (2, 4, 8):
        assert peers.passes(members) == 1.0
        # two passes of the whole buffer, against 2 (n - 1) / n of it
        assert rooted.passes(members) * 2 * (members - 1) / members == pytest.approx(2.0)
        assert lone.passes(members) * 2 * (members - 1) / members == pytest.approx(
            2 * (members - 1)
        )
    assert rooted.passes(1) == lone.passes(1) == 1.0
    # one way, a card without peer access sends as much faster as it was measured
    assert rooted.passes(4, 2.0) == rooted.passes(4) / 2.0
    assert peers.passes(4, 2.0) == 1.0


def test_broadcasts_through_the_memory_of_a_host_are_faster_than_all_reduces() -> None:
    def exposed(**changes: float) -> float:
        cluster = load_cluster("hkbu-10gbe")
        host = replace(cluster.levels[0], **changes)
        both = replace(cluster, levels=(host, *cluster.levels[1:]))
        found = planner.simulate(
            "vgg16",
            gpus=4,
            cluster=both,
            global_batch_size=48,
            runtime=load_runtime("data-parallel"),
        )
        return found.step_time

    host = load_cluster("hkbu-10gbe").levels[0]
    assert host.one_way_bandwidth is not None
    assert host.one_way_bandwidth > 2 * host.bandwidth
    slower = exposed(one_way_bandwidth=host.bandwidth)
    # weights there and gradients back
    moved = 2 * 4 * 138_357_544
    saved = moved / host.bandwidth - moved / host.one_way_bandwidth
    assert slower - exposed() == pytest.approx(saved, rel=0.05)


def test_one_process_launches_the_forward_pass_of_every_device() -> None:
    runtime = load_runtime("data-parallel")
    assert runtime.forward_launches(1) == 1.0
    assert runtime.forward_launches(4) == pytest.approx(4 * (1 + COPY))
    assert load_runtime("ddp").forward_launches(4) == 1.0


def step(**question: object) -> float:
    return planner.simulate(
        "resnet50", gpus=4, cluster="dgx-a100", global_batch_size=16, **question
    ).step_time


def test_steps_of_small_batches_wait_for_the_host() -> None:
    eager, compiled, captured = (step(execution=e) for e in ("eager", "compiled", "captured"))
    assert captured < 0.5 * eager
    assert captured < compiled < eager
    assert step() == eager
    assert step(launch_time=0.0) == pytest.approx(captured)
    assert step(runtime="data-parallel") > eager


@pytest.mark.slow
def test_a_plan_is_simulated_as_it_was_made_unless_asked_otherwise(tmp_path) -> None:
    plan = planner.optimize("resnet18", gpus=4, global_batch_size=16, execution="captured")
    assert plan.training.execution == "captured"
    assert plan.training.launch_time == 0.0
    path = tmp_path / "plan.json"
    plan.save(path)
    as_made = planner.simulate(str(path))
    assert as_made.step_time == pytest.approx(plan.step_time, rel=1e-6)
    assert planner.simulate(str(path), execution="eager").step_time > 2 * as_made.step_time


@pytest.mark.parametrize("runtime", ["ddp", "horovod"])
def test_the_size_of_buckets_is_heeded(runtime: str) -> None:
    def exposed(size: str) -> float:
        return planner.simulate(
            "resnet50", gpus=8, cluster="hkbu-10gbe", runtime=runtime, bucket_bytes=size
        ).step_time

    assert exposed("64 KiB") > 1.01 * exposed("8 MiB")


def test_runtimes_without_buckets_refuse_their_size() -> None:
    with pytest.raises(InputError, match="leave --bucket-size out"):
        planner.simulate("resnet18", gpus=4, runtime="fsdp", bucket_bytes="8 MiB")
