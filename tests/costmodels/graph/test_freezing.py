"""What is not trained is held, and costs no gradient, no state and no product for its weight."""

from __future__ import annotations

import pytest

from costmodels.cluster import load_cluster
from costmodels.communication.topology import Topology
from costmodels.compute import ComputeModel
from costmodels.distribution import Distribution, one_candidate
from costmodels.errors import InputError
from costmodels.graph import Graph, LayerSpec, Network, build_graph
from costmodels.layers.layer_cost import LayerCosts, layer_costs
from costmodels.step.machine import Machine
from costmodels.step.training import Training

WIDTH = 64
WEIGHT = WIDTH * WIDTH


def graph(**frozen: bool | int) -> Graph:
    """Linear layers a, b and c, one after the other, with an activation between."""
    rows, last = [], "input"
    for name in "abc":
        options = {"filters": WIDTH, "frozen": frozen.get(name, 0)}
        rows.append(LayerSpec(name=name, kind="linear", inputs=(last,), options=options))
        last = f"{name}.gelu"
        gelu = {"function": "gelu"}
        rows.append(LayerSpec(name=last, kind="activation", inputs=(name,), options=gelu))
    return build_graph(
        Network(name="small", input_shape={"channel": WIDTH}, layers=tuple(rows)), 1024
    )


def costs(network: Graph, name: str) -> LayerCosts:
    cluster = load_cluster("dgx-a100")
    machine = Machine(
        topology=Topology.of(cluster, (2, 1)),
        compute=ComputeModel(cluster.device, "fp32"),
        training=Training(optimizer="adam"),
    )
    split = one_candidate(Distribution(degrees={"sample": (2, 1)}, shape=(2, 1)))
    wanted = network.input_gradients(name)
    layer = network.layers[name]
    return layer_costs(layer, split, machine, input_gradients=wanted, largest_bucket=1e6)


def test_a_frozen_weight_is_held_and_nothing_else() -> None:
    trained, frozen = costs(graph(), "b"), costs(graph(b=True), "b")
    assert frozen.weights == trained.weights == 4 * (WEIGHT + WIDTH)
    assert frozen.forward == trained.forward
    assert frozen.backward_data == trained.backward_data > 0
    assert trained.gradient_bytes == trained.gradients == 4 * (WEIGHT + WIDTH)
    for name in ("gradients", "gradient_bytes", "state", "update", "backward_weight"):
        assert getattr(frozen, name) == 0 < getattr(trained, name), name


def test_a_bias_beside_a_frozen_weight_takes_a_sum_and_no_product() -> None:
    whole, bias = costs(graph(), "b"), costs(graph(b=WEIGHT), "b")
    assert bias.gradients == 4 * WIDTH
    assert bias.weights == whole.weights
    assert 0 < bias.backward_weight < whole.backward_weight
    # the other way round all of the product is left
    assert costs(graph(b=WIDTH), "b").backward_weight == whole.backward_weight


def test_layers_before_all_that_is_trained_keep_nothing() -> None:
    network = graph(a=True)
    assert network.untrained == {"a", "a.gelu"}
    assert network.parameters == 2 * (WEIGHT + WIDTH)
    assert not network.layers["a.gelu"].keeps_inputs
    assert graph().layers["a.gelu"].keeps_inputs
    assert costs(network, "b").backward_data == 0
    # the input of a frozen layer in the middle is not read again, its gradient goes on
    middle = graph(b=True)
    assert not middle.untrained
    assert not middle.layers["b"].keeps_inputs
    assert middle.layers["b"].signature != graph().layers["b"].signature


@pytest.mark.parametrize("frozen", [-1, WEIGHT + WIDTH + 1, "all"])
def test_no_more_is_frozen_than_there_is(frozen: object) -> None:
    with pytest.raises(InputError, match=r"layer 'b': frozen must be true, or"):
        graph(b=frozen)  # type: ignore[arg-type]


def test_what_has_no_weight_cannot_be_frozen() -> None:
    row = LayerSpec(name="r", kind="activation", inputs=("input",), options={"frozen": True})
    with pytest.raises(InputError, match="from 0 to the 0 numbers"):
        build_graph(Network(name="small", input_shape={"channel": 4}, layers=(row,)), 2)
