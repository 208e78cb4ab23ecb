"""A kind of layer as a stranger adds it: one function, and everything else follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from machines import cluster, graph, machine

from costmodels.distribution import enumerate_candidates
from costmodels.errors import InputError
from costmodels.graph import Layer, Tensor
from costmodels.graph.kinds import KINDS, NUM_INPUTS, layer_kind
from costmodels.graph.kinds.tensors import own_dims, relabel
from costmodels.layers.layer_cost import layer_costs


@pytest.fixture
def swish() -> Iterator[None]:
    """A new kind, for one test."""

    def make(name: str, inputs: Sequence[Tensor]) -> Layer:
        (x,) = inputs
        tensor = relabel(x, own_dims(x))
        dims = {axis.name: axis.extent for axis in x.axes}
        return Layer(
            name=name,
            kind="swish",
            operation="activation",
            dims=dims,
            inputs=(tensor,),
            output=tensor,
            keeps_inputs=True,
            splittable=frozenset(dims),
        )

    layer_kind("swish")(make)
    yield
    del KINDS["swish"], NUM_INPUTS["swish"]


def test_a_new_kind_is_costed_like_the_operation_it_names(swish: None) -> None:
    rows = [("relu", "activation", {"function": "gelu"}), ("new", "swish", {})]
    g = graph({"channel": 8, "height": 16, "width": 16}, rows, 8)
    on = machine(cluster(4))
    times = []
    for name in ("relu", "new"):
        layer = g.layers[name]
        candidates = enumerate_candidates(layer, (4,), 0)
        costs = layer_costs(layer, candidates, on, input_gradients=(True,), largest_bucket=1e6)
        times.append(costs.total)
    assert len(times[0]) > 4
    np.testing.assert_array_equal(times[0], times[1])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="unknown kind 'swish'; use one of"):
        graph({"channel": 8}, [("new", "swish", {})], 8)
