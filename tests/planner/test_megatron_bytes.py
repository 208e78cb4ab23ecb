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
