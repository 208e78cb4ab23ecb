"""What a layer computes, holds and reduces under every distribution, by the rules of its dims."""

from __future__ import annotations

import math

import numpy as np
import pytest
from machines import ALPHA, BANDWIDTH, cluster, graph, machine

from costmodels.communication.collectives import all_reduce_time, reduce_scatter_time
from costmodels.distribution import Candidates, enumerate_candidates
from costmodels.graph import Graph, Layer
from costmodels.layers.layer_cost import LayerCosts, layer_costs
from costmodels.layers.layer_passes import MANY, layer_computation
from costmodels.layers.local_work import local_parameters, local_size, local_work

GPUS = 8
SIZE = 4


def images() -> Graph:
    conv = {"kernel": 3, "padding": 1}
    rows: list = [
        ("conv", "conv", {"filters": 32, **conv, "bias": True}),
        ("bn", "batch_norm", {}),
        ("sync", "batch_norm", {"statistics": "synchronised"}),
        ("relu", "activation", {}),
        ("strided", "conv", {"filters": 64, **conv, "stride": 2}),
        ("depthwise", "conv", {"filters": 64, **conv, "groups": 64}),
        ("grouped", "conv", {"filters": 64, **conv, "groups": 8}),
        ("pool", "pool", {"kernel": 2}),
        ("up", "conv", {"filters": 32, "kernel": 2, "stride": 2, "transposed": True}),
        ("concat", "concat", {}, ("up", "strided")),
        ("mean", "global_pool", {}),
        ("fc", "linear", {"filters": 16}),
        ("loss", "loss", {}),
    ]
    return graph({"channel": 16, "height": 32, "width": 32}, rows, 16)


def words() -> Graph:
    rows: list = [
        ("embedding", "embedding", {"rows": 64, "filters": 32}),
        ("norm", "layer_norm", {}),
        ("qkv", "linear", {"filters": 96}),
        ("attention", "attention", {"heads": 8}),
        ("proj", "linear", {"filters": 32}),
        ("add", "add", {}, ("proj", "norm")),
        ("gelu", "activation", {"function": "gelu"}),
        ("loss", "loss", {}),
    ]
    return graph({"sequence": 16}, rows, 8)


GRAPHS = {"images": images(), "words": words()}
LAYERS = [(g, layer.name) for g, one in GRAPHS.items() for layer in one.compute_layers]


def everything(layer: Layer) -> Candidates:
    """All distributions that divide evenly."""
    found = enumerate_candidates(layer, (GPUS,), 0)
    even = np.ones(len(found), dtype=bool)
    for dim in found.dims:
        even &= layer.dims[dim] % found.degree(dim) == 0
    return found.take(np.flatnonzero(even))


def only(layer: Layer, *levels: dict[str, int], shape: tuple[int, ...] = (GPUS,)) -> Candidates:
    found = enumerate_candidates(layer, shape, 0, full=True)
    wanted = [[[level.get(dim, 1) for dim in found.dims] for level in levels]]
    (index,) = np.flatnonzero((found.degrees == np.array(wanted)).all(axis=(1, 2)))
    return found.take(np.array([index]))


def costs(layer: Layer, candidates: Candidates, **options) -> LayerCosts:
    where = cluster(*candidates.shape)
    return layer_costs(
        layer,
        candidates,
        machine(where, **options),
        input_gradients=(True,) * len(layer.inputs),
        largest_bucket=25e6,
    )


@pytest.mark.parametrize(("name", "layer"), LAYERS)
@pytest.mark.parametrize("direction", ["forward", "backward_data", "backward_weight"])
def test_the_parts_of_a_product_are_the_product(name, layer, direction):
    one = GRAPHS[name].layers[layer]
    candidates = everything(one)
    works = local_work(one, candidates, direction)
    flops = sum(np.broadcast_to(work.flops, len(candidates)) for work in works)
    workers = GPUS / candidates.replication.prod(axis=1)
    # one kernel of attention does all of the backward pass at once, the scores again
    attention = {"forward": 1.0, "backward_data": 2.5, "backward_weight": 0.0}
    times = attention[direction] if one.kind == "attention" else 1.0
    assert np.allclose(flops * workers, times * 2.0 * one.macs)
    if one.kind not in ("conv", "linear") and direction == "backward_weight":
        assert works == []


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_the_parts_of_memory_bound_layers_are_the_whole(name, layer):
    one = GRAPHS[name].layers[layer]
    candidates = everything(one)
    for work in local_work(one, candidates, "forward"):
        if work.is_dense or work.operation == "attention":
            continue
        outputs = np.broadcast_to(work.outputs, len(candidates))
        split = math.prod(candidates.degree(d) for d in one.output.dims & set(candidates.dims))
        assert np.allclose(outputs * split, one.output.size)
        inputs = np.broadcast_to(work.inputs, len(candidates))
        read = local_size(one.inputs[0], candidates)
        if one.kind == "concat":
            read = local_size(one.output, candidates)
        elif one.kind == "embedding":
            continue
        assert np.allclose(inputs, read)


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_weights_are_split_by_their_own_dims_and_reduced_over_the_others(name, layer):
    one = GRAPHS[name].layers[layer]
    candidates = everything(one)
    found = costs(one, candidates)
    own = math.prod(candidates.degree(d) for d in set(one.weight_dims) & set(candidates.dims))
    parameters = local_parameters(one, candidates)
    assert np.allclose(parameters * own, one.parameters)
    ranks = GPUS / candidates.replication.prod(axis=1)
    group = found.gradient_group.prod(axis=1)
    assert np.allclose(group * own, ranks)
    assert np.allclose(found.gradient_bytes, np.where(group > 1, parameters * SIZE, 0.0))
    assert np.allclose(found.weights, parameters * SIZE)
    assert np.allclose(found.gradients, found.weights)


def test_sums_over_split_dims_are_scattered():
    conv = GRAPHS["images"].layers["conv"]
    found = costs(conv, only(conv, {"channel": 4, "filter": 2}))
    network = machine(cluster(GPUS)).topology
    # the output of half the filters is summed over four ranks, the input gradient of a quarter of
    # the channels over two
    output, gradient = conv.output.size * SIZE / 2, conv.inputs[0].size * SIZE / 4
    assert found.reduce_forward.item() == pytest.approx(
        reduce_scatter_time(network, [4], output).item()
    )
    assert found.reduce_backward.item() == pytest.approx(
        reduce_scatter_time(network, [2], gradient).item()
    )
    received = output * 3 / 4 + gradient / 2
    assert found.communication_bytes.item() == pytest.approx(received)


def test_a_mean_over_split_space_is_a_sum_of_parts():
    mean = GRAPHS["images"].layers["mean"]
    found = costs(mean, only(mean, {"height": 2, "width": 4}))
    network = machine(cluster(GPUS)).topology
    output = mean.output.size * SIZE
    assert found.reduce_forward.item() == reduce_scatter_time(network, [8], output).item()
    assert found.reduce_backward.item() == 0.0


def test_statistics_are_summed_over_what_they_run_over():
    layers = {**GRAPHS["images"].layers, **GRAPHS["words"].layers}
    network = machine(cluster(GPUS)).topology

    def statistics(name: str, **split: int) -> float:
        return float(costs(layers[name], only(layers[name], split)).statistics.item())

    # local batch norm sums nothing; synchronised, two numbers a channel, forward and backward
    assert statistics("bn", sample=8) == 0.0
    channels = layers["sync"].dims["channel"]
    expected = 2 * all_reduce_time(network, [8], 2 * 4 * channels).item()
    assert statistics("sync", sample=8) == pytest.approx(expected)
    assert statistics("sync", sample=4, height=2) == pytest.approx(expected)
    fewer = 2 * all_reduce_time(network, [4], 2 * 4 * channels / 2).item()
    assert statistics("sync", sample=4, channel=2) == pytest.approx(fewer)
    assert statistics("sync", channel=8) == 0.0
    # layer norm runs over the features of each position
    assert statistics("norm", sample=8) == statistics("norm", sequence=8) == 0.0
    positions = 8 * 16
    expected = 2 * all_reduce_time(network, [8], 2 * 4 * positions).item()
    assert statistics("norm", channel=8) == pytest.approx(expected)
    fewer = 2 * all_reduce_time(network, [4], 2 * 4 * positions / 2).item()
    assert statistics("norm", sample=2, channel=4) == pytest.approx(fewer)


def test_keys_and_values_are_wanted_whole_by_every_part_of_a_sequence():
    attention = GRAPHS["words"].layers["attention"]
    found = costs(attention, only(attention, {"sequence": 8}))
    network = machine(cluster(GPUS)).topology
    # queries are split with the sequence; gradients of keys and values are partial sums
    keys_and_values = attention.inputs[1].size * SIZE
    expected = reduce_scatter_time(network, [8], keys_and_values).item()
    assert found.reduce_backward.item() == pytest.approx(expected)
    assert costs(attention, only(attention, {"head": 8})).reduction.item() == 0.0


def test_what_nobody_wants_is_not_computed():
    conv = GRAPHS["images"].layers["conv"]
    where = machine(cluster(GPUS))
    candidates = only(conv, {"height": 8})
    first = layer_costs(conv, candidates, where, input_gradients=(False,), largest_bucket=1e6)
    later = layer_costs(conv, candidates, where, input_gradients=(True,), largest_bucket=1e6)
    assert first.backward_data.item() == first.halo_backward.item() == 0.0
    assert later.backward_data.item() > 0.0
    assert first.backward_weight.item() == later.backward_weight.item() > 0.0
    filters = only(conv, {"filter": 8})
    first = layer_costs(conv, filters, where, input_gradients=(False,), largest_bucket=1e6)
    assert first.reduce_backward.item() == 0.0


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_what_is_simulated_is_left_out_and_all_else_is_the_same(name, layer):
    one = GRAPHS[name].layers[layer]
    candidates, where = everything(one), machine(cluster(GPUS))
    wants = (True,) * len(one.inputs)
    timed, simulated = (
        layer_costs(one, candidates, where, input_gradients=wants, largest_bucket=size)
        for size in (1e6, None)
    )
    messages = ("reduce_", "summed_", "statistics", "gradient_time", "gradient_alone")
    messages = (*messages, "least_backward", "link_backward", "gradient_link")
    for name in LayerCosts.__struct_fields__:
        expected = getattr(timed, name)
        if name.startswith(messages):
            expected = np.zeros_like(expected)
        assert np.array_equal(getattr(simulated, name), expected), name


def test_halos_wait_where_they_are_not_overlapped_and_never_longer():
    conv = GRAPHS["images"].layers["conv"]
    candidates = only(conv, {"height": 8})
    plain = costs(conv, candidates, halo_overlap=False)
    message = ALPHA + SIZE * 16 * 16 * 32 / BANDWIDTH
    assert plain.halo_forward.item() == pytest.approx(2 * message)
    hidden = costs(conv, candidates)
    assert 0.0 <= hidden.halo_forward.item() <= plain.halo_forward.item()
    # backward-data also hides its halo behind backward-weight
    assert 0.0 <= hidden.halo_backward.item() <= plain.halo_backward.item()


def test_shared_weights_are_counted_with_their_owner():
    rows: list = [
        ("embedding", "embedding", {"rows": 64, "filters": 32}),
        ("head", "linear", {"filters": 64, "bias": False, "share": "embedding"}),
    ]
    g = graph({"sequence": 16}, rows, 8)
    head, embedding = g.layers["head"], g.layers["embedding"]
    shared = costs(head, only(head, {"sample": 8}))
    own = costs(embedding, only(embedding, {"sample": 8}))
    assert shared.weights.item() == shared.gradient_bytes.item() == shared.update.item() == 0.0
    assert own.weights.item() == 64 * 32 * SIZE
    # its gradient is computed all the same
    assert shared.backward_weight.item() > 0.0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_sizes_of_precisions_and_optimizers(precision, optimizer):
    conv = GRAPHS["images"].layers["conv"]
    found = costs(conv, only(conv, {"sample": 8}), precision=precision, optimizer=optimizer)
    w, half = conv.parameters, precision == "fp16"
    assert found.weights.item() == w * (6 if half else 4)
    assert found.gradients.item() == found.gradient_bytes.item() == w * 4
    assert found.state.item() == w * (8 if optimizer == "adam" else 4)
    assert found.output.item() == conv.output.size / 8 * (2 if half else 4)


def test_indices_and_masks_are_split_with_the_output():
    pool = GRAPHS["images"].layers["pool"]
    found = costs(pool, only(pool, {"sample": 2, "height": 4}))
    assert found.saved.item() == pytest.approx(8 * pool.output.size / 8)


def test_seconds_have_a_source():
    conv = GRAPHS["images"].layers["conv"]
    found = costs(conv, everything(conv))
    assert np.allclose(found.sources.sum(axis=0), found.compute)


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_many_candidates_compute_what_a_few_of_them_do(name, layer):
    """Where levels do not matter, those that split each dim in as many ways are computed once."""
    one, shape = GRAPHS[name].layers[layer], (4, 8)
    candidates = enumerate_candidates(one, shape, 0, full=True)
    on, parameters = machine(cluster(*shape)), local_parameters(one, candidates)
    whole = layer_computation(one, candidates, on, parameters, True)
    few = np.array_split(np.arange(len(candidates)), len(candidates) // (MANY // 2) + 1)
    parts = [
        layer_computation(one, candidates.take(rows), on, parameters[rows], True) for rows in few
    ]
    for name in whole.__struct_fields__:
        expected = np.concatenate([getattr(part, name) for part in parts], axis=-1)
        assert np.array_equal(getattr(whole, name), expected), name
