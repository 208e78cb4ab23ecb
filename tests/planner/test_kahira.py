"""Table III of Kahira et al. 2021 (ParaDL) comes out of the general rule.

The paper lets layers between convolutions run on whole tensors, sums with all-reduces and hides
nothing; under the same choices the rule gives the same seconds and bytes. Three differences are the
paper's simplifications, and are added to its formulas here: nothing wants the gradient of the data,
so that the first layer has no backward-data pass; the last output of channel parallelism is a sum
too; and the part that a rank holds of a gathered output is no second copy of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from machines import ALPHA, BANDWIDTH, FLOP_RATE, UPDATE_RATE, cluster, graph, machine

from costmodels.distribution import Distribution
from costmodels.graph import Graph, Layer
from planner.planning.space.costing import Costed, cost
from planner.planning.space.formulate import formulate
from planner.request.usual_strategies import Infeasible, strategy_distributions

BATCH, WIDTH, CHANNELS, FILTERS = 16, 32, 8, (16, 32, 8, 24)
DELTA = 4  # bytes per item
BETA = 1 / BANDWIDTH


def network(relu: bool = True) -> Graph:
    """Convolutions of one spatial dim, with layers between them that have no weight."""
    rows: list = []
    for i, filters in enumerate(FILTERS, start=1):
        rows.append((f"conv{i}", "conv", {"filters": filters, "kernel": 3, "padding": 1}))
        if relu and i < len(FILTERS):
            rows.append((f"relu{i}", "activation", {}))
    return graph({"channel": CHANNELS, "width": WIDTH}, rows, BATCH)


def convs(g: Graph) -> list[Layer]:
    return [layer for layer in g.compute_layers if layer.kind == "conv"]


def costed(g: Graph, p: int, split: Mapping[str, Mapping[str, int]], **options) -> Costed:
    """Cost the given degrees on one level of p devices; other layers are replicated."""
    where = cluster(p)
    plain = {
        "gradient_overlap": False,
        "halo_overlap": False,
        "all_reduce": "ring",
        "bucket_bytes": 1e18,
        "memory_model": "paradl",
    }
    distributions = {
        layer.name: Distribution(
            degrees={dim: (ways,) for dim, ways in split.get(layer.name, {}).items()}, shape=(p,)
        )
        for layer in g.compute_layers
    }
    formulation = formulate(
        g,
        where,
        machine(where, **{**plain, **options}),
        strategies=[distributions],
        only_strategies=True,
    )
    return cost(formulation, formulation.choices(distributions))


def every(g: Graph, **degrees: int) -> dict[str, dict[str, int]]:
    return {layer.name: degrees for layer in g.compute_layers}


def only_convs(g: Graph, **degrees: int) -> dict[str, dict[str, int]]:
    return {layer.name: degrees for layer in convs(g)}


def forward_and_backward(g: Graph) -> float:
    """Sum of FW and BW over layers and the whole batch. [s]"""
    first, *rest = (2 * layer.macs / FLOP_RATE for layer in convs(g))
    return 2 * first + 3 * sum(rest)


def weight_update(g: Graph) -> float:
    return g.parameters / UPDATE_RATE


def all_reduce(p: int, num_bytes: float) -> float:
    return 2 * (p - 1) * (ALPHA + num_bytes / p * BETA)


def output_items(layer: Layer) -> float:
    """|y_l|: items of one sample."""
    return layer.output.size / BATCH


def gathered(g: Graph, p: int, batch: float = BATCH) -> float:
    """3 (p-1) sum (alpha + B |y_l| / p delta beta) over all layers but the last (equation 15)."""
    return (
        3 * (p - 1) * sum(ALPHA + batch * output_items(y) / p * DELTA * BETA for y in convs(g)[:-1])
    )


def test_serial():
    g = network()
    result = costed(g, 1, {})
    assert result.step.total == pytest.approx(forward_and_backward(g) + weight_update(g))
    assert result.compute == pytest.approx(result.step.total)
    assert result.communication_bytes == 0.0


@pytest.mark.parametrize("p", [2, 4, 16])
def test_data(p):
    g = network()
    result = costed(g, p, every(g, sample=p))
    assert result.compute == pytest.approx(forward_and_backward(g) / p + weight_update(g))
    assert result.step.gradient == pytest.approx(all_reduce(p, g.parameters * DELTA))
    assert result.step.total == pytest.approx(result.compute + result.step.gradient)


@pytest.mark.parametrize("p", [4, 8])
def test_spatial(p):
    g = network()
    result = costed(g, p, every(g, width=p))
    assert result.compute == pytest.approx(forward_and_backward(g) / p + weight_update(g))
    assert result.step.gradient == pytest.approx(all_reduce(p, g.parameters * DELTA))
    # each halo is one position on either side, of all samples and channels (equation 10)
    halos = [2 * (ALPHA + BATCH * CHANNELS * DELTA * BETA)]
    for layer, before in zip(convs(g)[1:], FILTERS, strict=False):
        halos.append(2 * (ALPHA + BATCH * before * DELTA * BETA))
        halos.append(2 * (ALPHA + BATCH * layer.dims["filter"] * DELTA * BETA))
    assert result.total("halo") == pytest.approx(sum(halos))
    assert result.total("reduction") == result.total("shuffle") == 0.0


@pytest.mark.parametrize("p", [2, 4, 8])
def test_filter(p):
    g = network()
    result = costed(g, p, only_convs(g, filter=p))
    assert result.compute == pytest.approx((forward_and_backward(g) + weight_update(g)) / p)
    assert result.blocking == pytest.approx(gathered(g, p))
    assert result.step.gradient == 0.0
    assert result.step.total == pytest.approx(result.compute + result.blocking)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_channel(p):
    g = network()
    result = costed(g, p, only_convs(g, channel=p))
    assert result.compute == pytest.approx((forward_and_backward(g) + weight_update(g)) / p)
    last = (p - 1) * (ALPHA + BATCH * output_items(convs(g)[-1]) / p * DELTA * BETA)
    assert result.blocking == pytest.approx(gathered(g, p) + last)
    assert result.step.gradient == 0.0


@pytest.mark.parametrize(("p1", "p2"), [(2, 4), (4, 2), (8, 8)])
def test_data_and_filter(p1, p2):
    g = network()
    split = {**every(g, sample=p1), **only_convs(g, sample=p1, filter=p2)}
    result = costed(g, p1 * p2, split)
    serial = forward_and_backward(g) / (p1 * p2) + weight_update(g) / p2
    assert result.compute == pytest.approx(serial)
    # equation 22, whose p in the first sum is p1 p2 as the batch of a group is B / p1
    assert result.blocking == pytest.approx(gathered(g, p2, BATCH / p1))
    assert result.step.gradient == pytest.approx(all_reduce(p1, g.parameters / p2 * DELTA))


def test_layers_that_keep_the_split_save_a_third_of_filter_parallelism():
    # a reduce-scatter in place of the all-reduce of dL/dx (footnote 1 of the paper)
    g, p = network(), 4
    split = only_convs(g, filter=p)
    split.update({f"relu{i}": {"channel": p} for i in range(1, len(FILTERS))})
    assert costed(g, p, split).blocking == pytest.approx(gathered(g, p) * 2 / 3)


@pytest.mark.parametrize("p", [2, 4])
def test_filter_then_channel_needs_neither_gathering_nor_scattering_in_between(p):
    g = network(relu=False)
    split = {"conv1": {"filter": p}, "conv2": {"channel": p}, "conv3": {}, "conv4": {}}
    result = costed(g, p, split)
    y2 = convs(g)[1]
    # forward: the sums of conv2 in an all-reduce; backward: nothing, as nobody wants dL/dx of conv1
    assert result.blocking == pytest.approx(all_reduce(p, y2.output.size * DELTA))


@pytest.mark.parametrize("p", [1, 2, 4, 8])
def test_memory(p):
    g = network()
    x = {layer.name: layer.inputs[0].size for layer in g.compute_layers}
    y = {layer.name: layer.output.size for layer in g.compute_layers}
    w = g.parameters
    items = sum(x.values()) + sum(y.values())
    sample = costed(g, p, every(g, sample=p)).memory
    assert sample.total == pytest.approx(2 * DELTA * (items / p + w))
    width = costed(g, p, every(g, width=p)).memory
    assert width.total == pytest.approx(2 * DELTA * (items / p + w))
    # of x (channel) or y (filter) of a convolution, a rank only has its part
    part = 1 - 1 / p
    filters = costed(g, p, only_convs(g, filter=p)).memory
    less = part * sum(y[layer.name] for layer in convs(g))
    assert filters.total == pytest.approx(2 * DELTA * (items - less + w / p))
    channels = costed(g, p, only_convs(g, channel=p)).memory
    less = part * sum(x[layer.name] for layer in convs(g))
    assert channels.total == pytest.approx(2 * DELTA * (items - less + w / p))
    # twice the weights, as weights and as gradients
    assert sample.holders["weights"] == sample.holders["weight gradients"] == w * DELTA


@pytest.mark.parametrize(
    ("strategy", "most", "words"),
    [
        ("data", BATCH, ("conv1", "16 sample positions", "32 ways")),
        ("spatial", WIDTH, ("conv1", "32 positions", "64 blocks")),
        ("filter", min(FILTERS), ("conv3", "8 filter positions", "16 ways")),
        ("channel", min(FILTERS[:-1]), ("conv4", "8 channel positions", "16 ways")),
        ("data+filter", min(FILTERS) * BATCH, ("conv3", "8 filter positions", "16 ways")),
    ],
)
def test_the_limits_of_every_strategy_are_those_of_the_table(strategy, most, words):
    g = network()
    if strategy == "data+filter":
        per_host = min(FILTERS)
        shapes = [(per_host, n // per_host) for n in (most, 2 * most)]
    else:
        shapes = [(most,), (2 * most,)]
    fits, over = (strategy_distributions(g, strategy, shape, 0) for shape in shapes)
    assert not isinstance(fits, Infeasible)
    assert math.prod(fits["conv2"].shape) == most
    assert isinstance(over, Infeasible)
    assert all(word in over.reason for word in words)
