"""Products in FP8: which run in it, what casts take, what is held, and who has it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import planner
from costmodels.cluster import dump_cluster, load_cluster, load_device
from costmodels.compute.roofline import BANDWIDTH_FRACTION
from planner.cli.command import planner_command

ASKED = {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 8, "input_size": 2048, "tp": 2}


def step_tasks(simulation):
    return simulation.simulated.task_times.graph.tasks


def seconds(simulation, layer: str, kind: str) -> float:
    tasks = step_tasks(simulation)
    return sum(t.seconds for t in tasks if t.name == layer and t.kind == kind)


@pytest.fixture(scope="module")
def steps():
    return {
        precision: planner.simulate("llama3-8b", precision=precision, runtime="megatron", **ASKED)
        for precision in ("bf16", "fp8")
    }


def test_linear_layers_of_blocks_run_in_fp8_and_nothing_else(steps):
    half, eighth = steps["bf16"], steps["fp8"]
    for layer in ("layers.3.mlp.down", "layers.3.attn.qkv"):
        for kind in ("forward", "backward"):
            before, after = (seconds(step, layer, kind) for step in (half, eighth))
            # at most twice as fast, and casts take their part: of small products all that is gained
            assert before / 2 < after != before, (layer, kind)
            assert after < before or layer == "layers.3.attn.qkv"
    for layer in ("head", "layers.3.attn", "layers.3.attn_norm", "token_embedding", "loss"):
        assert seconds(eighth, layer, "forward") == seconds(half, layer, "forward"), layer


def test_weights_in_fp8_and_their_transposes_are_held_beside_all_else(steps):
    half, eighth = (steps[p].simulated.roles[0].memory.holders for p in ("bf16", "fp8"))
    graph = steps["fp8"].subject.graph
    blocks = sum(
        layer.parameters
        for layer in graph.compute_layers
        if layer.kind == "linear" and layer.name.startswith("layers.")
    )
    assert eighth["weights"] - half["weights"] == 2 * blocks / 2  # over two ranks
    for holder in ("weight gradients", "optimizer state"):
        assert eighth[holder] == half[holder]


@pytest.mark.parametrize(
    ("runtime", "more", "part", "norms"),
    [
        # a rank keeps its part of the sequence
        ("megatron", {"sequence_parallel": True}, 1, 1),
        ("nemo", {"sequence_parallel": True}, 1, 1),
        # norms are as large on both ranks
        ("megatron", {}, 1, 2),
        # nothing is kept but what blocks begin with
        ("megatron", {"recompute": "full"}, 0, 0),
        # torchao keeps inputs in 16 bits
        ("torchtitan", {"sequence_parallel": True}, 0, 0),
    ],
)
def test_products_keep_their_inputs_as_they_are_cast(runtime, more, part, norms):
    half, eighth = (
        planner.simulate("llama3-8b", runtime=runtime, precision=precision, **ASKED, **more)
        .simulated.roles[0]
        .memory.holders["activations"]
        for precision in ("bf16", "fp8")
    )
    # both norms and the MLP give a byte of two; of what attention makes there is a copy
    features = norms * 2 * 4096 - part * 4096 + part * 14336
    tokens = 2048 * 2  # of two samples on each of four replicas, over two ranks
    assert half - eighth == 32 * tokens * features / 2


def test_nemo_holds_weights_in_fp8_instead_of_16_bits_and_gradients_of_two_bytes():
    asked = {**ASKED, "cluster": "dgx-b200", "precision": "fp8"}
    roles = [
        planner.simulate("llama3-8b", runtime=name, **asked).simulated.roles[0].memory.holders
        for name in ("megatron-core", "nemo")
    ]
    blocks = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)
    assert roles[0]["weights"] - roles[1]["weights"] == 2 * blocks / 2  # over two ranks
    assert roles[0]["weight gradients"] == 2 * roles[1]["weight gradients"]


def test_faster_memory_makes_casts_faster(tmp_path):
    cluster = load_cluster("dgx-h100")
    times = []
    for factor in (1.0, 2.0):
        rate = load_device("h100").memory_bandwidth * factor
        path = tmp_path / f"{factor}.toml"
        device = replace(cluster.device, memory_bandwidth=rate)
        path.write_text(dump_cluster(replace(cluster, device=device)), encoding="utf-8")
        step = planner.simulate("llama3-8b", precision="fp8", **{**ASKED, "cluster": str(path)})
        times.append(seconds(step, "layers.3.mlp.down", "forward"))
    assert times[1] < times[0]


@pytest.mark.parametrize("command", ["simulate", "optimize"])
def test_a_device_without_fp8_is_refused_and_told_who_has_it(command):
    words = f"{command} gpt2 --gpus 8 --cluster dgx-a100 --precision fp8".split()
    result = CliRunner().invoke(planner_command, words)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    for name in ("a100-80gb", "h100", "h200", "b200", "choose bf16"):
        assert name in result.stderr


def test_weights_are_cast_once_a_step_and_not_for_every_micro_batch():
    asked = {"gpus": 2, "cluster": "dgx-h100", "input_size": 128, "tp": 2, "global_batch_size": 8}
    asked |= {"execution": "captured"}
    updates, products = [], []
    for precision in ("bf16", "fp8"):
        step = planner.simulate("llama3-8b", precision=precision, **asked, micro_batches=8)
        updates.append(sum(t.seconds for t in step_tasks(step) if t.kind == "update"))
        products.append(seconds(step, "layers.3.mlp.down", "forward"))
    linear = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336) / 2
    moved = 4 * linear / (BANDWIDTH_FRACTION * load_device("h100").memory_bandwidth)
    assert updates[1] - updates[0] == pytest.approx(moved, rel=1e-3)
    # 128 tokens leave a product bound by its weight, which FP8 halves
    assert products[1] < products[0]
