"""What an update does where a framework copies and reduces in ways of its own."""

from __future__ import annotations

import pytest

from costmodels.cluster import load_device
from costmodels.compute.roofline import BANDWIDTH_FRACTION
from costmodels.simulation import load_runtime
from planner.api import simulate

ASKED = {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 8, "precision": "bf16"}


def step_time(**changes: object) -> float:
    asked = {**ASKED, "zero": 1, "optimizer": "adam", "input_size": 512}
    return simulate("llama3.2-1b", runtime=load_runtime("nanotron", **changes), **asked).step_time


def test_parts_of_updated_weights_are_copied_into_place_one_by_one():
    device, copied = load_device("h100"), step_time() - step_time(copies_updated=False)
    # 16 blocks of six tensors, the embedding and the last norm, of eight ranks each
    kernels = (16 * 6 + 2) * 8 * device.kernel_latency
    weights = 1.236e9 * 2
    assert copied == pytest.approx(kernels + 6 * weights / device.memory_bandwidth, rel=0.03)


def test_gradients_are_all_reduced_after_the_backward_pass_where_state_is_cut():
    # a reduce-scatter moves half as much, and one that does not wait hides
    late, scattered, hidden = (
        step_time(),
        step_time(gradient="reduce_scatter"),
        step_time(waits_to_reduce=False),
    )
    assert hidden < late
    assert scattered < late


def test_moments_of_a_first_update_lie_where_activations_were():
    found = {}
    for late in (True, False):
        runtime = load_runtime("nanotron", makes_state_late=late)
        simulated = simulate("llama3.2-1b", runtime=runtime, optimizer="adam", **ASKED).simulated
        found[late] = simulated.peak.memory
    for holder in ("weights", "optimizer state", "activations"):
        assert found[True].holders[holder] == found[False].holders[holder]
    assert found[True].total >= 0.99 * found[False].total
    assert found[True].holders["fragmentation"] != found[False].holders["fragmentation"]


@pytest.mark.parametrize(("zero", "each"), [(0, 28 + 6 + 16), (1, (28 + 6) / 8 + 16)])
def test_norms_clipping_and_zeros_go_over_all_gradients_even_where_state_is_cut(zero, each):
    found = simulate("llama3.2-1b", runtime="nanotron", zero=zero, optimizer="adam", **ASKED)
    tasks = found.simulated.task_times.graph.tasks
    # what is gathered is copied into place afterwards
    update = next(task for task in tasks if task.kind == "update")
    rate = BANDWIDTH_FRACTION * load_device("h100").memory_bandwidth
    assert update.seconds == pytest.approx(1.236e9 * each / rate, rel=0.01)


def test_the_buffer_that_weights_are_gathered_into_comes_after_the_parts_of_all_ranks():
    found = simulate("llama3.2-1b", runtime="nanotron", zero=1, optimizer="adam", **ASKED)
    tasks = found.simulated.task_times.graph.tasks
    gather = next(task for task in tasks if task.name == "weights" and task.kind == "all_gather")
    *parts, whole = [size for _, _, size in gather.makes]
    assert len(parts) == 9
    assert max(parts) * 8 == pytest.approx(whole)
