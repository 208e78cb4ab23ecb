"""Hosts that launch ahead, and what frameworks run as several kernels."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.cluster import load_cluster, load_device
from costmodels.compute import ATTENTION_KERNELS, ComputeModel, Work
from costmodels.errors import InputError
from costmodels.graph import apart, build_graph
from costmodels.simulation import Runtime, load_runtime
from costmodels.simulation.execution import Queue
from costmodels.simulation.host import kernels, launched, one_by_one
from costmodels.simulation.operations import Operation
from costmodels.step.training import Training
from planner.api import simulate
from planner.models import load_network

LAUNCH = 70e-6


@pytest.fixture(scope="module")
def graph():
    return build_graph(load_network("llama3.2-1b", 128), 1)


def operation(name, kind="forward", seconds=1e-3, queue=Queue.COMPUTE):
    return Operation(key=(kind, name, 0), kind=kind, queue=queue, after=(), seconds=seconds)


def of_kind(graph, kind):
    return next(layer.name for layer in graph.compute_layers if layer.kind == kind)


def test_a_pass_takes_as_long_as_the_slower_of_host_and_device(graph):
    name = of_kind(graph, "linear")
    slow_host = [operation(name, seconds=10e-6) for _ in range(4)]
    waited = launched(slow_host, graph, LAUNCH, Runtime(name="any"))
    assert sum(op.seconds for op in waited) == pytest.approx(4 * LAUNCH)
    # one long kernel hides the launches of short ones behind it
    mixed = [operation(name, seconds=1e-3), *slow_host]
    assert launched(mixed, graph, LAUNCH, Runtime(name="any")) == mixed


def test_collectives_cost_the_host_as_many_launches_as_the_runtime_says(graph):
    name = of_kind(graph, "linear")
    step = [operation(name, seconds=0.0), operation(name, "change", 0.0, Queue.FEATURE)]
    step.append(operation(name, seconds=0.0))
    for each in (0.0, 3.0):
        runtime = Runtime(name="any", collective_launches=each)
        found = sum(op.seconds for op in launched(step, graph, LAUNCH, runtime))
        assert found == pytest.approx((2 + each) * LAUNCH)


def test_processes_check_what_they_launch_before_a_collective(graph):
    name = of_kind(graph, "linear")
    change = operation(name, "change", 0.0, Queue.FEATURE)._replace(ranks=(8, 24))
    step = [operation(name, seconds=0.0), change, operation(name, seconds=0.0)]
    runtime = Runtime(name="any", check_near=2e-4, check_far=3e-4)
    found = sum(op.seconds for op in launched(step, graph, LAUNCH, runtime))
    assert found == pytest.approx(3 * LAUNCH + 8 * 2e-4 + 24 * 3e-4)


def test_a_host_that_waits_for_every_kernel_adds_its_launches_up(graph):
    name = of_kind(graph, "linear")
    change = operation(name, "change", 2e-3, Queue.FEATURE)
    step = [operation(name), change, operation(name, "backward", 3e-3)]
    runtime = Runtime(name="any", collective_launches=3.0)
    found = one_by_one(step, graph, LAUNCH, runtime, adds=True)
    kernels_each = (1, 3, 2 + 1)
    for before, after, count in zip(step, found, kernels_each, strict=True):
        assert after.seconds == pytest.approx(before.seconds + count * LAUNCH)


def test_blocking_launches_cost_most_where_kernels_are_short():
    asked = {"gpus": 16, "cluster": "dgx-a100", "tp": 4, "pp": 2, "global_batch_size": 64}
    slower = []
    for micro in (1, 8):
        free, blocked = (
            simulate(
                "gpt3-6.7b",
                runtime=load_runtime("megatron", launch_blocking=blocking),
                micro_batch_size=micro,
                precision="bf16",
                **asked,
            ).step_time
            for blocking in (False, True)
        )
        slower.append(blocked - free)
    # as many launches a micro-batch, and an eighth of the micro-batches
    assert slower[0] > 4.0 * slower[1] > 0.0


def test_gradients_that_are_added_up_are_launched_one_by_one(graph):
    name = of_kind(graph, "linear")
    step = [operation(name, "backward", 0.0)]
    found = [
        launched(step, graph, LAUNCH, Runtime(name="any"), adds=adds)[0].seconds
        for adds in (False, True)
    ]
    assert found == pytest.approx([2 * LAUNCH, 3 * LAUNCH])


def test_communication_hides_launches_as_long_as_it_takes(graph):
    name = of_kind(graph, "linear")
    gather = Operation(
        key=("change", name, 0), kind="all_gather", queue=Queue.FEATURE, after=(), transfer=5e-3
    )
    wait = operation(name)._replace(key=("forward", name, 1), after=((0, "forward", gather.key),))
    step = [gather, *(operation(name, seconds=0.0) for _ in range(20)), wait]
    assert launched(step, graph, LAUNCH, Runtime(name="any")) == step


@pytest.mark.parametrize("pp", [1, 2])
def test_checks_make_tensor_parallel_steps_slower(pp):
    asked = {"gpus": 16, "cluster": "dgx-h100", "tp": 4, "pp": pp, "global_batch_size": 8}
    asked |= {"sequence_parallel": True, "micro_batch_size": 1, "precision": "bf16"}
    steps = [
        simulate("llama3.2-1b", runtime=load_runtime("nanotron", **checks), **asked).step_time
        for checks in ({}, {"check_near": 2e-4}, {"check_near": 2e-4, "check_far": 3e-4})
    ]
    # two sums a block each way at least, over four ranks each
    blocks, micro = 16 // pp, 8 * 4 * pp // 16
    assert steps[1] - steps[0] > 0.5 * blocks * 8 * micro * 4 * 2e-4
    # each stage of two lies in a host of its own
    assert steps[2] == steps[1] if pp > 1 else steps[2] > steps[1]


def test_backward_of_a_product_is_two_kernels(graph):
    linear = graph.layers[of_kind(graph, "linear")]
    assert kernels(linear, "forward") == 1
    assert kernels(linear, "backward") == 2
    gate = graph.layers[of_kind(graph, "glu")]
    assert kernels(replace(gate, operation="glu_apart"), "forward") == 2


def test_gates_and_losses_apart_move_more(graph):
    training = Training(precision="bf16", keeps_gates=True, logit_kept=4.0)
    assert training.apart == {"glu": "glu_apart", "loss": "loss_apart"}
    split = apart(graph, training.apart)
    assert apart(graph, {}) is graph
    kinds = {layer.kind: layer.operation for layer in split.compute_layers}
    assert kinds["glu"] == "glu_apart"
    assert kinds["loss"] == "loss_apart"
    for name in ("glu", "loss"):
        for way in ("forward", "backward"):
            whole, several = (
                Work(operation=n, direction=way, samples=8.0, channels=64.0, filters=32.0)
                for n in (name, f"{name}_apart")
            )
            assert several.bytes_moved("bf16") > whole.bytes_moved("bf16")


def test_gradients_added_in_single_precision_take_time():
    nanotron = Training(precision="bf16", recipe="nanotron")
    assert nanotron.accumulated == 2 + 2 * 4
    assert Training(precision="bf16", recipe="fsdp").accumulated == 0.0


def attention(way):
    tokens = (np.array([4096.0]),)
    return Work(
        operation="attention",
        direction=way,
        samples=32.0,
        channels=128.0,
        filters=128.0,
        in_extents=tokens,
        out_extents=tokens,
        visible=0.5,
    )


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_older_attention_is_slower(way):
    for name in ("h100", "a100-80gb"):
        device = load_device(name)
        times = [
            float(ComputeModel(device, "bf16", attention_kernel=kernel).time(attention(way))[0][0])
            for kernel in (*ATTENTION_KERNELS, None)
        ]
        assert times[0] > times[1] >= times[2]
    # on A100 the second generation is what was measured
    assert times[1] == times[2]


def test_an_unknown_attention_kernel_is_refused():
    with pytest.raises(InputError, match="the attention kernel must be one of flash-1, flash-2"):
        Training(attention_kernel="flash-9")


def test_a_limit_on_power_slows_products_and_nothing_else():
    device = load_device("h100")
    assert 0.5 < device.sustained < 1.0
    free, bound = (ComputeModel(device, "bf16", sustained=s) for s in (1.0, device.sustained))
    product = Work(
        operation="linear", direction="forward", samples=8192.0, channels=8192.0, filters=8192.0
    )
    ratio = bound.time(product)[0][0] / free.time(product)[0][0]
    assert ratio == pytest.approx(1 / device.sustained, rel=0.05)
    add = Work(
        operation="add", direction="forward", samples=4096.0, channels=8192.0, filters=8192.0
    )
    assert bound.time(add)[0][0] == free.time(add)[0][0]


def test_transformers_are_slower_under_a_limit_on_power_and_others_are_not():
    cluster = load_cluster("dgx-h100")
    free = replace(cluster, device=replace(cluster.device, sustained=1.0))
    asked = {"gpus": 8, "global_batch_size": 64, "precision": "bf16"}
    steps = {
        name: [simulate(name, cluster=c, **asked).step_time for c in (free, cluster)]
        for name in ("gpt2", "resnet50")
    }
    assert steps["gpt2"][1] > steps["gpt2"][0]
    assert steps["resnet50"][1] == steps["resnet50"][0]


def test_a_host_that_runs_ahead_is_never_slower_than_one_that_waits():
    ahead = load_runtime("megatron")
    waits = replace(ahead, runs_ahead=False)
    asked = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 8, "precision": "bf16"}
    times = [simulate("gpt2", runtime=r, input_size=512, **asked).step_time for r in (ahead, waits)]
    assert times[0] <= times[1] * 1.001


@pytest.mark.parametrize("pp", [2, 4])
def test_stages_of_one_micro_batch_launch_one_after_the_other(pp):
    """A gradient is sent when the pass that makes it is launched, not in the middle of that."""
    asked = {"cluster": "dgx-a100", "global_batch_size": 1, "input_size": 128, "precision": "bf16"}
    asked |= {"runtime": "megatron"}
    alone = simulate("bert-large", gpus=1, **asked).step_time
    staged = simulate("bert-large", gpus=pp, pp=pp, micro_batches=1, **asked).step_time
    # only the update is shared out
    assert 0.9 * alone < staged < alone


def test_inputs_of_scatters_stay_reserved_while_the_host_is_ahead():
    asked = {"gpus": 4, "cluster": "dgx-h100", "tp": 4, "global_batch_size": 16}
    asked |= {"sequence_parallel": True, "micro_batch_size": 8, "precision": "bf16"}
    found = []
    for changes in ({"launches_ahead": 0}, {}, {"check_near": 1.0}):
        runtime = load_runtime("nanotron", **changes)
        simulated = simulate("llama3.2-1b", runtime=runtime, **asked).simulated
        found.append(simulated.peak.memory.total)
    one = 8 * 8192 * 2048 * 2  # the hidden features of a micro-batch
    without, ahead, waiting = found
    assert 16 * one < ahead - without < 80 * one
    # a host that takes longer than the device is hardly ahead of it
    assert 0 <= waiting - without < 2 * one


def test_a_host_that_waits_for_other_stages_is_ahead_by_less_than_a_pass():
    asked = {"gpus": 8, "cluster": "dgx-h100", "tp": 4, "pp": 2, "global_batch_size": 32}
    asked |= {"sequence_parallel": True, "micro_batch_size": 4, "precision": "bf16"}
    found = []
    for waits in (True, False):
        runtime = load_runtime("nanotron", waits_for_stages=waits)
        simulated = simulate("llama3.2-1b", runtime=runtime, **asked).simulated
        found.append(simulated.roles[0].memory.total)
    one = 4 * 8192 * 2048 * 2
    # two reduce-scatters a block, and that of the embedding, in half of 16 blocks
    assert found[0] < found[1] < found[0] + 40 * one


def test_queries_that_came_in_with_keys_and_values_hold_the_memory_of_all():
    asked = {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 1, "precision": "bf16"}
    found = {}
    for name in ("llama2-7b", "llama3.2-1b"):
        runtimes = [load_runtime("nanotron", holds_packed=held) for held in (True, False)]
        held, apart = (
            simulate(name, runtime=r, tp=8, **asked).simulated.peak.memory.holders["activations"]
            for r in runtimes
        )
        found[name] = held - apart
    # 32 blocks, keys and values of 4,096 tokens and features in two bytes, on 8 devices
    assert found["llama2-7b"] == 32 * 2 * 4096 * 4096 * 2 / 8
    # queries of grouped heads are copied apart
    assert found["llama3.2-1b"] == 0


def test_what_waits_for_the_device_never_makes_memory_run_out():
    asked = {"gpus": 2, "cluster": "dgx-h100", "tp": 2, "global_batch_size": 16}
    asked |= {"sequence_parallel": True, "micro_batch_size": 4, "precision": "bf16"}
    for micro in (2, 4, 8):
        asked["micro_batch_size"] = micro
        none, ahead = (
            simulate(
                "llama3.2-1b", runtime=load_runtime("nanotron", launches_ahead=n), **asked
            ).simulated.peak.memory.total
            for n in (0, 2**20)
        )
        capacity = load_device("h100").memory
        assert ahead <= capacity or none > 0.95 * capacity


def test_an_allocator_that_was_short_leaves_nothing_for_later_communicators():
    asked = {"gpus": 2, "cluster": "dgx-h100", "tp": 2, "global_batch_size": 15}
    asked |= {"sequence_parallel": True, "micro_batch_size": 5, "precision": "bf16"}
    capacity = load_device("h100").memory
    for ahead, fits in ((2**20, False), (830, True)):
        made_first, made_late = (
            simulate(
                "llama3.2-1b",
                runtime=load_runtime("nanotron", launches_ahead=ahead, communicates_late=late),
                **asked,
            ).simulated.peak.memory.total
            for late in (False, True)
        )
        assert made_first <= capacity
        assert (made_late <= capacity) is fits
        assert made_late == made_first or not fits


def test_what_a_host_launches_while_stages_behind_it_are_joined_stays_reserved():
    asked = {"gpus": 16, "cluster": "dgx-h100", "tp": 2, "global_batch_size": 32}
    asked |= {"sequence_parallel": True, "micro_batch_size": 4, "precision": "bf16"}
    held = {}
    for pp in (2, 8):
        # hosts so slow that they are ahead of no device but one that waits for others
        found = [
            simulate(
                "llama3.2-1b",
                pp=pp,
                runtime=load_runtime("nanotron", launches_ahead=ahead, check_near=1e-2),
                **asked,
            ).simulated.roles[0]
            for ahead in (0, 1024)
        ]
        held[pp] = found[1].memory.total - found[0].memory.total
    one = 4 * 8192 * 2048 * 2
    # two stages have one communicator, and their hosts make it before they go on; the first of
    # eight has five scatters a pass, six passes ahead of one that nobody receives
    assert held[2] < 4 * one
    assert 20 * one < held[8] < 50 * one


def test_a_loss_that_keeps_nothing_is_one_kernel():
    assert "loss" not in Training(precision="bf16", logit_kept=0.0).apart
