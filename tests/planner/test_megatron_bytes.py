"""What the collectives of a Megatron block move, with and without sequence parallelism.

Korthikanti et al. 2022, section 4.2.2: per block two all-reduces forward and two backward; with
sequence parallelism each is a reduce-scatter and an all-gather, of the same bytes together.
"""

from __future__ import annotations

from collections import Counter

import pytest

import planner
from costmodels.graph import Network
from planner.models.configs import transformer
from planner.simulation.result import Simulation

S, B, H, HEADS = 512, 2, 256, 8
ELEMENT = 2


def network(blocks: int) -> Network:
    config = {
        "model_type": "gpt2",
        "n_embd": H,
        "n_head": HEADS,
        "n_layer": blocks,
        "n_positions": S,
        "vocab_size": 8192,
    }
    fixed = {"fused": False, "attention_dropout": True}
    described = transformer(config, "a test", name="test", source="a test", fixed=fixed)
    return described.build("test")


def simulated(blocks: int, **question: object) -> Simulation:
    return planner.simulate(network(blocks), precision="fp16", **question)


def moved(simulation: Simulation, *phases: str) -> Counter[tuple[str, str]]:
    """Bytes that a device receives for features, by whether in the backward pass and collective."""
    found: Counter[tuple[str, str]] = Counter()
    graph = simulation.simulated.task_times.graph
    # collectives of a pass carry the name of the layer, and lie before or after its loss
    loss = next(n for n, task in enumerate(graph.tasks) if task.kind == "backward")
    for number, task in enumerate(graph.tasks):
        if task.queue == 1:
            found["backward" if number > loss else "forward", task.kind] += task.num_bytes
    return found


def of_a_block(**question: object) -> dict[tuple[str, str], float]:
    """What a further block moves. [B]"""
    three, four = (moved(simulated(n, **question)) for n in (3, 4))
    return {key: four[key] - three[key] for key in four if four[key] != three[key]}


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_tensor_parallelism_reduces_twice_a_pass(ways: int) -> None:
    whole = ELEMENT * S * B * H
    part = 2 * (ways - 1) / ways * whole
    assert of_a_block(gpus=ways, global_batch_size=B, tp=ways) == pytest.approx(
        {("forward", "all_reduce"): 2 * part, ("backward", "all_reduce"): 2 * part}
    )


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_sequence_parallelism_gathers_and_scatters_instead(ways: int) -> None:
    part = (ways - 1) / ways * ELEMENT * S * B * H
    found = of_a_block(gpus=ways, global_batch_size=B, tp=ways, sequence_parallel=True)
    assert found["forward", "all_gather"] == pytest.approx(2 * part)
    assert found["forward", "reduce_scatter"] == pytest.approx(2 * part)
    assert found["backward", "reduce_scatter"] == pytest.approx(2 * part)
    # besides the gradients of both row-parallel layers, their inputs are gathered again
    assert found["backward", "all_gather"] == pytest.approx(4 * part)


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_sequence_parallelism_divides_all_activations(ways: int) -> None:
    question = {"gpus": ways, "global_batch_size": B, "tp": ways, "sequence_parallel": True}
    three, four = (
        simulated(n, **question).simulated.peak.memory.holders["activations"] for n in (3, 4)
    )
    # Korthikanti et al. 2022, equation 4
    expected = S * B * H / ways * (34 + 5 * HEADS * S / H)
    assert four - three == pytest.approx(expected, rel=1e-12)
    selective = [
        simulated(n, recompute="selective", **question).simulated.peak.memory.holders["activations"]
        for n in (3, 4)
    ]
    # equation 6
    assert selective[1] - selective[0] == pytest.approx(S * B * H / ways * 34, rel=1e-12)


def llama(blocks: int, **fixed: object) -> Network:
    config = {
        "model_type": "llama",
        "hidden_size": H,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 2,
        "num_hidden_layers": blocks,
        "intermediate_size": 512,
        "max_position_embeddings": S,
        "vocab_size": 8192,
        **fixed,
    }
    return transformer(config, "a test", name="test", source="a test").build("test")


def of_attention(model: Network, **question: object) -> Counter[tuple[str, str]]:
    """Bytes that a device receives around the first attention layer, forward and backward."""
    found = planner.simulate(model, gpus=4, global_batch_size=B, precision="fp16", **question)
    sums: Counter[tuple[str, str]] = Counter()
    for task in found.simulated.task_times.graph.tasks:
        if task.queue == 1 and task.name in ("layers.0.attn", "layers.0.attn.rotary"):
            sums[task.kind, task.name] += task.num_bytes
    return sums


def test_a_ring_brings_keys_and_values_once_a_head_of_them() -> None:
    ranks, kv = 4, ELEMENT * S * B * 2 * 2 * (H // HEADS)
    part = (ranks - 1) / ranks * kv
    sums = of_attention(llama(1), cp=ranks)
    # forward and again backward; their gradients go back to the layer that made them
    assert sums["send_recv", "layers.0.attn"] == pytest.approx(2 * part)
    assert sums["send_recv", "layers.0.attn.rotary"] == pytest.approx(part)


def test_all_to_all_exchanges_positions_for_heads() -> None:
    ranks = 4
    model = llama(1, num_key_value_heads=4)
    features = (HEADS + 2 * 4) * (H // HEADS)
    sums = of_attention(model, cp=ranks, cp_kind="all-to-all")
    # queries, keys and values forward and their gradients backward; a rank receives of its own
    # block what it has not
    block = ELEMENT * S * B * features / ranks
    moved = (ranks - 1) / ranks * block
    assert sums["all_to_all", "layers.0.attn.rotary"] == pytest.approx(2 * moved)
    out = ELEMENT * S * B * H / ranks * (ranks - 1) / ranks
    assert sums["all_to_all", "layers.0.attn"] == pytest.approx(2 * out)


def test_a_ring_hides_what_it_brings_behind_attention() -> None:
    question = {"gpus": 8, "cluster": "dgx-h100", "global_batch_size": 1, "input_size": 16384}
    found = planner.simulate("llama3-8b", cp=8, **question)
    (role,) = found.simulated.roles
    assert role.exposed < 0.5 * role.busy["feature"]


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_experts_exchange_tokens_all_to_all(ways: int) -> None:
    samples, length = 8, 512
    found = planner.simulate(
        "mixtral-8x7b",
        gpus=8,
        cluster="dgx-h100",
        global_batch_size=samples,
        input_size=length,
        ep=ways,
    )
    tokens, top_k, hidden = samples // 8 * length, 2, 4096
    expected = 2.0 * tokens * top_k * hidden * (ways - 1) / ways
    moved = Counter[str]()
    for task in found.simulated.task_times.graph.tasks:
        if task.queue == 1 and task.name.startswith("layers.3.moe"):
            assert task.kind == "all_to_all"
            moved[task.name] += task.num_bytes
    # there and back, forward and backward
    assert moved == pytest.approx(
        {"layers.3.moe.dispatch": 2 * expected, "layers.3.moe.down": 2 * expected}
    )
