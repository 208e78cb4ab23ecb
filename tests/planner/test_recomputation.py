"""Recomputation by operation, by blocks and by layers: what stays, and what runs again."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from click.testing import CliRunner

import planner
from costmodels.errors import InputError
from costmodels.graph import Network
from costmodels.simulation.recomputation import computed_again, stored_shares
from planner import Degrees
from planner.cli.command import planner_command
from planner.models.configs import transformer
from planner.simulation.result import Simulation

S, B, H, K, F = 512, 2, 256, 64, 1024


def llama(blocks: int, **more: object) -> Network:
    config = {
        "model_type": "llama",
        "hidden_size": H,
        "num_hidden_layers": blocks,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "intermediate_size": F,
        "vocab_size": 8192,
        "max_position_embeddings": S,
        **more,
    }
    return transformer(config, "a test", name="test", source="a test").build("test")


def trained(blocks: int, recompute: object, runtime: str = "torchtitan", **more: object):
    question = {"gpus": 1, "global_batch_size": B, "precision": "bf16", **more}
    return planner.simulate(llama(blocks), recompute=recompute, runtime=runtime, **question)


def held(simulation: Simulation, what: str = "activations") -> float:
    assert simulation.simulated is not None
    return simulation.simulated.peak.memory.holders[what]


def computing(simulation: Simulation) -> float:
    assert simulation.simulated is not None
    return simulation.simulated.slowest.busy["compute"]


def test_what_stays_of_a_block_is_every_second_product_and_attention() -> None:
    graph = trained(2, "operations").subject.graph
    names = [name for name in graph.layers if name.startswith("layers.1.")]
    stored = stored_shares(graph, names, ())
    assert {name.removeprefix("layers.1."): share for name, share in stored.items()} == {
        "attn.qkv": pytest.approx((H + K) / (H + 2 * K)),  # not the keys
        "attn": 1.0,
        "mlp.up": 0.5,  # the gate
        "mlp.down": 1.0,
    }
    again = computed_again(graph, names, stored, stops_early=True)
    assert again == set(names) - {"layers.1.attn", "layers.1.mlp.down", "layers.1.mlp.add"}


def test_a_block_keeps_what_the_policy_says_term_by_term() -> None:
    three, four = (held(trained(n, "operations")) for n in (3, 4))
    block, queries, values, attention, gate, out = H, H, K, H, F, H
    assert four - three == 2 * S * B * (block + queries + values + attention + gate + out)


def test_more_is_computed_again_the_less_is_kept() -> None:
    kinds = [trained(3, what) for what in ("none", "operations", "full")]
    assert all(one < two for one, two in pairwise(map(computing, kinds)))
    assert all(one > two for one, two in pairwise(map(held, kinds)))


def test_it_stops_with_the_last_tensor_that_is_missing() -> None:
    kept = [trained(3, "full", runtime).subject.strategy for runtime in ("torchtitan", "fsdp")]
    assert kept[0] == kept[1]
    graph = trained(3, "full").subject.graph
    names = [name for name in graph.layers if name.startswith("layers.1.")]
    assert computed_again(graph, names, {}, stops_early=False) == set(names)
    left = set(names) - computed_again(graph, names, {}, stops_early=True)
    assert left == {"layers.1.mlp.down", "layers.1.mlp.add"}


def test_what_a_reduce_scatter_made_stays() -> None:
    split = {"gpus": 2, "tp": 2, "sequence_parallel": True, "global_batch_size": B}

    def received(blocks: int, what: str) -> float:
        found = trained(blocks, what, **split)
        assert found.simulated is not None
        return found.simulated.slowest.received

    three, four = (received(n, "full") - received(n, "operations") for n in (3, 4))
    # behind attention, where the sum is kept instead of made again: (t - 1) / t of it
    assert four - three == pytest.approx(0.5 * 2 * S * B * H, rel=1e-6)


@pytest.mark.parametrize("recompute", ["full", "operations"])
@pytest.mark.parametrize(
    ("network", "degrees"),
    [
        # what experts made goes back to its tokens and is weighed, which nobody reads again
        ("experts", {"ep": 4}),
        ("experts", {"ep": 4, "etp": 1}),
        ("experts", {"pp": 2, "ep": 2, "micro_batches": 2}),
        ("resnet50", {}),  # the head reads what is gathered
    ],
)
def test_what_comes_to_the_last_of_a_block_comes_again(network, degrees, recompute) -> None:
    if network == "experts":
        more = {"num_local_experts": 4, "num_experts_per_tok": 2}
        network = llama(2, model_type="mixtral", **more)
    question = {"gpus": 8, "tp": 2, "global_batch_size": 16, "runtime": "torchtitan", **degrees}
    received = []
    for what in ("none", recompute):
        found = planner.simulate(network, recompute=what, **question).simulated
        assert found is not None
        received.append(found.slowest.received)
    assert received[0] < received[1]


def test_a_strategy_file_says_it_again(tmp_path) -> None:
    path = tmp_path / "operations.toml"
    asked = ["simulate", "gpt2", "--gpus", "4", "--runtime", "fsdp", "--tp", "2", "--json"]
    asked += ["--global-batch-size", "8", "--seq-len", "128", "--micro-batches", "1"]
    first = CliRunner().invoke(
        planner_command, [*asked, "--recompute", "operations", "--dump-strategy", str(path)]
    )
    assert first.exit_code == 0, first.output
    assert "keep_products = true" in path.read_text()
    second = CliRunner().invoke(
        planner_command,
        f"simulate gpt2 --strategy {path} --runtime fsdp --json --seq-len 128".split(),
    )
    times = [json.loads(run.output)["step_time_s"] for run in (first, second)]
    assert times[0] == times[1]


@pytest.mark.parametrize(
    ("said", "blocks"),
    [("0-1", (0, 1)), ("2-2", (2,)), ("0, 3", (0, 3)), ((1, 2), (1, 2)), ("layers.1-2", (1, 2))],
)
def test_blocks_by_number_and_name(said, blocks) -> None:
    stages = trained(4, said, "ddp", pp=2, gpus=2, micro_batches=2).subject.strategy.stages
    again = [segment for stage in stages for segment in stage.recompute]
    assert [int(segment[0].split(".")[1]) for segment in again] == list(blocks)
    assert all(len(segment) == 11 for segment in again)


def test_layers_by_name_are_those_of_selective_recomputation() -> None:
    by_name, selective = (trained(2, what, "ddp") for what in ("layers.*.attn", "selective"))
    assert by_name.subject.strategy == selective.subject.strategy
    degrees = Degrees(recompute="0-0,layers.0.mlp.act,layers.1.mlp.act")
    stage = trained(2, degrees.recompute, "ddp").subject.strategy.stages[0]
    assert [len(segment) for segment in stage.recompute] == [11, 1]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("0-9", "blocks 0 to 3"),
        ("layers.9", "'layers.9' fits none"),
        ("4-2", "choose one, or write blocks like 0-3,8-11"),
        ("some", "how many blocks of a stage, or which blocks or layers"),
        ([], "which blocks or layers"),
    ],
)
def test_blocks_that_there_are_not(said, sentence) -> None:
    with pytest.raises(InputError, match=sentence):
        trained(4, said, "ddp")
