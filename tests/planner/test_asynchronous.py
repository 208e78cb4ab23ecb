"""Runtimes whose workers do not wait for each other."""

from __future__ import annotations

import pytest

import planner
from costmodels.errors import InputError
from costmodels.graph import LayerSpec, Network
from costmodels.simulation import load_runtime
from planner import Degrees, Simulation

LINK = 1.175e9  # what 10 Gb/s Ethernet achieves on this cluster


def run(workers: int, runtime: str = "ps-async") -> Simulation:
    return planner.simulate(
        "resnet152",
        gpus=workers,
        cluster="aws-p3.2xlarge",
        global_batch_size=32 * workers,
        runtime=load_runtime(runtime, servers=1),
    )


def test_throughput_grows_until_the_link_of_the_server_is_full() -> None:
    found = [run(workers).throughput for workers in (1, 2, 8)]
    assert found == sorted(found)
    model_bytes = 4 * run(1).subject.graph.parameters
    assert found[-1] <= 32 * LINK / model_bytes
    assert found[-1] > 0.8 * 32 * LINK / model_bytes


def test_it_is_said_that_the_timeline_is_another() -> None:
    assert any("do not wait for each other" in note for note in run(2).notes)
    assert not any("do not wait for each other" in note for note in run(2, "ps-sync").notes)


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(InputError, match="must each hold the whole network"):
        planner.simulate("gpt2", gpus=16, degrees=Degrees(pp=2), runtime="ps-async")


def test_weights_that_are_cut_are_refused() -> None:
    with pytest.raises(InputError, match="must each hold all weights"):
        planner.simulate("vgg16", gpus=8, strategy="filter", cluster="abci", runtime="ps-async")


@pytest.mark.filterwarnings("error")
def test_a_network_without_weights_is_refused_in_a_sentence() -> None:
    pooling = LayerSpec(name="pool", kind="pool", inputs=("input",), options={"kernel": 2})
    shape = {"channel": 3, "height": 8, "width": 8}
    network = Network(name="pooled", input_shape=shape, layers=(pooling,))
    with pytest.raises(InputError, match=r"must have weights to exchange but pooled has none; use"):
        planner.simulate(network, gpus=4, runtime="ps-async")
