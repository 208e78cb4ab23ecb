"""What a framework fuses: which layers, what it saves, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from benchmarks.accuracy.machines import row_cluster
from costmodels.communication.topology import Topology
from costmodels.compute import ComputeModel
from costmodels.distribution import Distribution, one_candidate, split_dims
from costmodels.errors import InputError
from costmodels.graph import FUSIONS, build_graph, fused
from costmodels.layers.layer_cost import layer_costs
from costmodels.step.machine import Machine
from costmodels.step.training import Training
from planner.models import load_network


def v100(**training) -> Machine:
    """One V100, whose host launches operations in no time."""
    options = Training(**training)
    lone = row_cluster("V100 32GB", "", 1, 1)
    return Machine(
        topology=Topology.of(lone, (1,)),
        compute=ComputeModel(lone.device, options.precision),
        training=options,
    )


def costs(graph, name, **training):
    layer = graph.layers[name]
    where = v100(**training)
    alone = one_candidate(Distribution(degrees={}, shape=(1,)), split_dims(layer))
    return layer_costs(
        layer,
        alone,
        where,
        input_gradients=graph.input_gradients(name),
        largest_bucket=1e6,
    )


def test_a_fused_activation_takes_no_time_and_a_fused_addition_reads_one_operand() -> None:
    plain = build_graph(load_network("resnet50", None), 32)
    one = fused(plain, FUSIONS)
    assert costs(one, "layer1.0.relu1").compute == 0.0
    assert costs(plain, "layer1.0.relu1").compute > 0.0
    before, after = costs(plain, "layer1.0.add"), costs(one, "layer1.0.add")
    assert 0.0 < after.forward < 0.5 * before.forward
    # gradients still meet where the shortcut forks
    assert after.backward_data == pytest.approx(before.backward_data)
    assert costs(one, "layer1.0.relu").compute == 0.0


def test_fused_layers_wait_for_no_launch() -> None:
    one = fused(build_graph(load_network("resnet50", None), 1), FUSIONS)
    assert costs(one, "layer1.0.add", launch_time=1e-3).forward < 1e-3
    assert costs(one, "layer1.0.conv1", launch_time=1e-3).forward == pytest.approx(1e-3)


def test_only_what_alone_reads_its_producer_is_fused() -> None:
    one = fused(build_graph(load_network("densenet121", None), 2), ("activation",))
    for layer in one.compute_layers:
        if layer.operation == "fused_activation":
            (edge,) = one.producers[layer.name]
            assert len(one.consumers[edge.source]) == 1
    assert fused(one, ()) is one


def test_fusion_changes_neither_weights_nor_memory() -> None:
    plain = build_graph(load_network("vgg16", None), 8)
    one = fused(plain, FUSIONS)
    assert one.parameters == plain.parameters
    assert one.macs == plain.macs
    for layer in plain.compute_layers:
        before, after = costs(plain, layer.name), costs(one, layer.name)
        assert np.array_equal(before.output, after.output)
        assert after.compute <= before.compute


def test_biases_are_passes_over_the_output() -> None:
    plain = build_graph(load_network("vgg16", None), 32)
    without = fused(plain, ("bias",))
    name = next(layer.name for layer in plain.compute_layers if layer.biased)
    saved = costs(plain, name).forward - costs(without, name).forward
    bandwidth = v100().compute.device.memory_bandwidth
    moved = 2 * 4 * plain.layers[name].output.size
    assert moved / bandwidth < saved < 2 * moved / bandwidth


def test_channels_first_transposes_in_half_precision_only() -> None:
    graph = build_graph(load_network("resnet50", None), 64)
    name = "layer2.0.conv2"
    for precision, slower in (("fp32", False), ("fp16", True)):
        last = costs(graph, name, precision=precision)
        first = costs(graph, name, precision=precision, channels_last=False)
        assert bool(first.forward > last.forward) is slower
        assert bool(first.backward_data > last.backward_data) is slower
    layer = graph.layers[name]
    moved = 2 * 2 * (layer.inputs[0].size + layer.output.size)
    half = {"precision": "fp16"}
    extra = (
        costs(graph, name, **half, channels_last=False).forward - costs(graph, name, **half).forward
    )
    bandwidth = v100().compute.device.memory_bandwidth
    assert moved / bandwidth < extra < 2 * moved / bandwidth


def test_depthwise_convolutions_read_any_layout() -> None:
    graph = build_graph(load_network("mobilenet_v2", None), 64)
    name = next(layer.name for layer in graph.compute_layers if layer.groups > 1)
    last = costs(graph, name, precision="fp16")
    first = costs(graph, name, precision="fp16", channels_last=False)
    assert np.array_equal(last.forward, first.forward)


def test_what_cannot_be_fused_is_refused() -> None:
    graph = build_graph(load_network("resnet18", None), 1)
    with pytest.raises(InputError, match="be some of activation, add, bias"):
        fused(graph, ("pool",))
    assert replace(graph.layers["conv1"], biased=True).signature != graph.layers["conv1"].signature
