"""The usual strategies: degrees, levels, and reasons where they cannot be used."""

from __future__ import annotations

import math
from itertools import product

import pytest
from machines import graph

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import SPATIAL_DIMS, Graph, build_graph
from planner.models import build
from planner.request.usual_strategies import (
    STRATEGIES,
    Infeasible,
    strategy_degrees,
    strategy_distributions,
)


def network(size: int = 32, batch: int = 64, depth: int = 1) -> Graph:
    extents = dict.fromkeys(SPATIAL_DIMS[3 - depth :], size)
    rows: list = [
        ("conv1", "conv", {"filters": 16, "kernel": 3, "padding": 1}),
        ("relu", "activation", {}),
        ("conv2", "conv", {"filters": 24, "kernel": 3, "padding": 1}),
        ("pool", "global_pool", {}),
        ("fc", "linear", {"filters": 10}),
        ("loss", "loss", {}),
    ]
    return graph({"channel": 3, **extents}, rows, batch)


def chosen(g: Graph, strategy: str, shape, host: int = 0, inner: int | None = None):
    result = strategy_distributions(g, strategy, shape, host, inner)
    assert not isinstance(result, Infeasible), result
    return {name: dict(distribution.degrees) for name, distribution in result.items()}


@pytest.mark.parametrize(
    ("strategy", "inner", "samples", "others"),
    [
        ("data", None, (4, 8), (1, 1)),
        ("spatial", None, (1, 1), (4, 8)),
        ("filter", None, (1, 1), (4, 8)),
        ("channel", None, (1, 1), (4, 8)),
        ("data+filter", None, (1, 8), (4, 1)),
        ("data+spatial", None, (1, 8), (4, 1)),
        ("data+spatial", 1, (4, 8), (1, 1)),
        ("data+spatial", 2, (2, 8), (2, 1)),
        ("data+spatial", 16, (1, 2), (4, 4)),
        ("data+filter", 32, (1, 1), (4, 8)),
    ],
)
def test_degrees_of_each_level(strategy, inner, samples, others):
    assert strategy_degrees(strategy, (4, 8), 0, inner) == (samples, others)


def test_a_host_of_several_levels_is_filled_first():
    assert strategy_degrees("data+filter", (2, 4, 8), 1) == ((1, 1, 8), (2, 4, 1))


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (2, 3, 4), (12,), (8, 9)])
def test_any_divisor_of_the_devices_can_be_the_degree(shape):
    devices = math.prod(shape)
    for inner in (n for n in range(1, devices + 1) if devices % n == 0):
        samples, others = strategy_degrees("data+spatial", shape, 0, inner)
        assert math.prod(others) == inner
        assert [s * o for s, o in zip(samples, others, strict=True)] == list(shape)


@pytest.mark.parametrize(
    ("strategy", "inner", "text"),
    [
        ("pipeline", None, "must be one of data, spatial"),
        ("data+filter", 3, "must divide the 32 devices but is 3"),
        ("data+filter", 0, "at least 1 but is 0"),
        ("data", 4, "leave the degree out"),
    ],
)
def test_what_is_no_strategy_is_refused_with_a_sentence(strategy, inner, text):
    with pytest.raises(InputError, match=text) as error:
        strategy_degrees(strategy, (4, 8), 0, inner)
    assert "\n" not in str(error.value)


def test_data_splits_the_samples_of_every_layer():
    rows = chosen(network(), "data", (4, 8))
    assert list(rows.values()) == [{"sample": (4, 8)}] * 6


def test_filter_and_channel_split_layers_with_matrices_only():
    rows = chosen(network(), "filter", (2, 1))
    assert {name for name, row in rows.items() if row} == {"conv1", "conv2", "fc"}
    assert rows["conv1"] == rows["fc"] == {"filter": (2, 1)}
    # images have three channels, so that the first layer is left out
    rows = chosen(network(), "channel", (4, 1))
    assert {name for name, row in rows.items() if row} == {"conv2", "fc"}
    assert rows["conv2"] == {"channel": (4, 1)}


def test_spatial_leaves_flat_layers_whole():
    rows = chosen(network(depth=2), "spatial", (4, 1))
    assert rows["conv1"] == rows["pool"] == {"height": (2, 1), "width": (2, 1)}
    assert rows["fc"] == rows["loss"] == {}


@pytest.mark.parametrize(
    ("depth", "ways", "degrees"),
    [
        (1, 8, {"width": 8}),
        (2, 2, {"height": 2}),
        (2, 8, {"height": 4, "width": 2}),
        (2, 12, {"height": 3, "width": 4}),
        (3, 8, {"depth": 2, "height": 2, "width": 2}),
        (3, 16, {"depth": 4, "height": 2, "width": 2}),
    ],
)
def test_spatial_division_is_near_square(depth, ways, degrees):
    rows = chosen(network(depth=depth), "spatial", (ways,))
    assert {dim: math.prod(levels) for dim, levels in rows["conv1"].items()} == degrees


@pytest.mark.parametrize("shape", [(4, 4), (2, 8), (8, 2), (2, 2, 4), (6, 2)])
def test_every_level_is_used_up(shape):
    for strategy in STRATEGIES:
        rows = strategy_distributions(network(size=64, depth=2), strategy, shape, 0)
        if isinstance(rows, Infeasible):
            continue
        split = Distribution(degrees=rows["conv2"].degrees, shape=shape)
        assert split.replication == 1


def test_hybrids_split_samples_across_hosts_and_the_rest_inside():
    rows = chosen(network(depth=2), "data+spatial", (4, 8))
    assert rows["conv1"] == {"sample": (1, 8), "height": (2, 1), "width": (2, 1)}
    assert rows["fc"] == {"sample": (1, 8)}
    rows = chosen(network(), "data+filter", (4, 8))
    assert rows["conv2"] == {"sample": (1, 8), "filter": (4, 1)}


def test_hybrids_take_more_hosts_where_there_are_too_few_samples():
    rows = chosen(network(depth=2, batch=4), "data+spatial", (4, 8))
    assert rows["fc"] == {"sample": (1, 4)}
    assert math.prod(rows["conv1"]["height"]) * math.prod(rows["conv1"]["width"]) == 8


@pytest.mark.parametrize(
    ("strategy", "devices", "words"),
    [
        ("data", 128, ("'conv1'", "64 sample positions", "128 ways")),
        ("spatial", 64, ("'conv1'", "32 positions", "64 blocks")),
        ("filter", 32, ("'conv1'", "16 filter positions", "32 ways")),
        ("channel", 32, ("'conv2'", "16 channel positions", "32 ways")),
    ],
)
def test_reasons_name_the_layer_and_the_numbers(strategy, devices, words):
    result = strategy_distributions(network(), strategy, (devices,), 0)
    assert isinstance(result, Infeasible)
    assert all(word in result.reason for word in words)


def test_a_network_without_the_dim_says_so():
    rows: list = [("fc", "linear", {"filters": 8}), ("loss", "loss", {})]
    g = graph({"channel": 16}, rows, 8)
    result = strategy_distributions(g, "spatial", (4,), 0)
    assert isinstance(result, Infeasible)
    assert "can be split by spatial" in result.reason


def test_spatial_gathers_before_small_layers_that_come_late():
    # all of ResNet-50 but the last stage has enough positions for 64 blocks
    g = build_graph(build("resnet50"), 32)
    rows = chosen(g, "spatial", (4, 16))
    assert math.prod(map(math.prod, rows["conv1"].values())) == 64
    small = [name for name, layer in g.layers.items() if layer.dims.get("height", 64) < 8]
    assert small
    assert all(rows[name] == {} for name in small)


def test_a_strategy_on_one_device_splits_nothing():
    for strategy in ("data", "filter", "spatial"):
        assert all(row == {} for row in chosen(network(), strategy, (1, 1)).values())


def test_built_in_networks_either_fit_or_say_why():
    for model, strategy, gpus in product(("vgg16", "unet", "gpt2"), STRATEGIES, (4, 64)):
        g = build_graph(build(model), 2 * gpus)
        rows = strategy_distributions(g, strategy, (4, gpus // 4), 0)
        if isinstance(rows, Infeasible):
            assert rows.reason
        else:
            assert set(rows) == {layer.name for layer in g.compute_layers}
