"""The simulation against the additive model and the memory model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import cluster, graph, machine
from pipelines import simulated

from costmodels.distribution import Distribution
from costmodels.graph import Graph
from costmodels.simulation import (
    Queue,
    SimulatedStep,
    load_runtime,
)
from costmodels.strategy.usual import single_stage
from planner.planning.space.costing import Costed, cost
from planner.planning.space.formulate import formulate

IMAGE = {"channel": 3, "height": 16, "width": 16}


def conv(name: str, *inputs: str, filters: int = 8) -> Any:
    options = {"filters": filters, "kernel": 3, "padding": 1}
    return (name, "conv", options, inputs) if inputs else (name, "conv", options)


CHAIN = [
    conv("stem"),
    ("stem.relu", "activation", {}),
    conv("conv", filters=16),
    ("bn", "batch_norm", {}),
    ("pool", "pool", {"kernel": 2, "stride": 2}),
    conv("last", filters=4),
    ("mean", "global_pool", {}),
    ("dropout", "dropout", {}),
    ("fc", "linear", {"filters": 10}),
    ("loss", "loss", {}),
]


RESIDUAL = [
    conv("stem"),
    ("stem.bn", "batch_norm", {}),
    ("stem.relu", "activation", {}),
    conv("conv"),
    ("bn", "batch_norm", {}),
    ("add", "add", {}, ("bn", "stem.relu")),
    ("relu", "activation", {}),
    conv("left", "relu", filters=8),
    conv("right", "relu", filters=24),
    ("concat", "concat", {}, ("left", "right")),
    ("gelu", "activation", {"function": "gelu"}),
    ("mean", "global_pool", {}),
    ("fc", "linear", {"filters": 10}),
    ("loss", "loss", {}),
]


SHARED = [
    conv("stem"),
    conv("first"),
    ("relu", "activation", {}),
    ("second", "conv", {"filters": 8, "kernel": 3, "padding": 1, "share": "first"}),
    ("mean", "global_pool", {}),
    ("fc", "linear", {"filters": 8}),
    ("again", "linear", {"filters": 8, "share": "fc"}),
    ("third", "linear", {"filters": 8, "share": "again"}),
    ("loss", "loss", {}),
]


Split = Callable[[Any], Mapping[str, int]]


def by_sample(layer: Any) -> Mapping[str, int]:
    return {"sample": 4}


def by_height(layer: Any) -> Mapping[str, int]:
    return {"height": 4} if layer.dims.get("height", 1) >= 4 else {}


def by_both(layer: Any) -> Mapping[str, int]:
    return {"sample": 2, **({"height": 2} if layer.dims.get("height", 1) >= 2 else {})}


def by_filter(layer: Any) -> Mapping[str, int]:
    return {"filter": 4} if layer.kind in ("conv", "linear") else {}


def unlike(layer: Any) -> Mapping[str, int]:
    """Users of one weight split it, or not, each in its way."""
    split: dict[str, Mapping[str, int]] = {
        "second": {"filter": 4},
        "fc": {"sample": 4},
        "again": {"filter": 4},
        "third": {"channel": 4},
    }
    return split.get(layer.name, {"sample": 4})


def turned(layer: Any) -> Mapping[str, int]:
    """The owners split their weight, the others do not."""
    return {"filter": 4} if layer.name in ("first", "fc") else {"sample": 4}


def both_models(
    g: Graph, split: Split, bucket: float, **options: Any
) -> tuple[Costed, SimulatedStep]:
    """The additive model and the simulation of one stage on 4 devices, with equal buckets."""
    where = cluster(4)
    options = {"bucket_bytes": bucket, **options}
    distributions = {
        layer.name: Distribution(
            degrees={dim: (ways,) for dim, ways in split(layer).items()}, shape=(4,)
        )
        for layer in g.compute_layers
    }
    formulation = formulate(
        g, where, machine(where, **options), strategies=[distributions], only_strategies=True
    )
    costed = cost(formulation, formulation.choices(distributions))
    runtime = load_runtime("ddp", bucket=bucket, first_bucket=None)
    strategy = single_stage(distributions, (4,))
    return costed, simulated(g, strategy, where, runtime=runtime, updates=True, **options)


@pytest.mark.parametrize("rows", [CHAIN, RESIDUAL])
@pytest.mark.parametrize("bucket", [100.0, 3000.0, 1e9])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("split", [by_sample, by_height, by_both, by_filter])
def test_a_single_stage_takes_what_the_additive_model_says(rows, bucket, overlap, split):
    costed, result = both_models(graph(IMAGE, rows, 16), split, bucket, gradient_overlap=overlap)
    assert costed.step.exposed > 0 or split is by_filter
    halo = split in (by_height, by_both)
    if (overlap and halo) or (rows is RESIDUAL and (halo or split is by_filter)):
        # with a halo, gradients of weights are made beside the exchange: reduced earlier, too; and
        # what one branch waits for travels while the other one computes
        assert result.step_time <= costed.step.total * (1 + 1e-9)
        assert result.step_time >= 0.99 * (costed.step.total - costed.step.exposed)
    else:
        assert result.step_time == pytest.approx(costed.step.total, rel=1e-9)
    reductions = [t for t in result.task_times.graph.tasks if t.queue == Queue.GRADIENT]
    assert len(reductions) == costed.step.num_buckets
    assert result.roles[0].busy["gradient"] == pytest.approx(costed.step.gradient)
    assert result.roles[0].busy["compute"] == pytest.approx(costed.compute, rel=0.02)


@pytest.mark.parametrize("bucket", [100.0, 3000.0, 1e9])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("split", [by_sample, by_filter, unlike, turned])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_shared_weights_take_and_hold_what_the_additive_model_says(
    bucket, overlap, split, optimizer
):
    g = graph(IMAGE, SHARED, 16)
    options = {"gradient_overlap": overlap, "optimizer": optimizer}
    costed, result = both_models(g, split, bucket, **options)
    assert (costed.step.exchange > 0.0) == (split in (unlike, turned))
    assert result.step_time == pytest.approx(costed.step.total, rel=1e-9)
    assert result.roles[0].busy["gradient"] == pytest.approx(costed.step.gradient)
    assert result.peak.memory.total == pytest.approx(costed.memory.total)
    assert dict(result.peak.memory.holders) == pytest.approx(dict(costed.memory.holders))
    tasks = [t for t in result.task_times.graph.tasks if t.queue == Queue.GRADIENT]
    exchanges = [t for t in tasks if t.kind == "exchange"]
    assert len(tasks) - len(exchanges) == costed.step.num_buckets
    assert sum(t.seconds + t.transfer for t in exchanges) == pytest.approx(costed.step.exchange)


def test_weights_that_are_shared_alike_cost_nothing_more():
    alone = [row for row in SHARED if row[0] not in ("second", "again", "third")]
    for split in (by_sample, by_both):
        shared, one = (both_models(graph(IMAGE, rows, 16), split, 1e9) for rows in (SHARED, alone))
        for holder in ("weights", "weight gradients", "optimizer state"):
            assert shared[0].memory.holders[holder] == one[0].memory.holders[holder]
        assert shared[0].step.gradient == pytest.approx(one[0].step.gradient)
        assert shared[0].step.update == pytest.approx(one[0].step.update)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize(
    ("statistics", "split", "count"),
    [
        ("local", by_sample, 0),
        ("spatial", by_sample, 0),
        ("spatial", by_height, 2),
        ("synchronised", by_sample, 2),
    ],
)
def test_statistics_are_waited_for(overlap, statistics, split, count):
    rows: list[Any] = [
        ("a", "conv", {"filters": 8, "kernel": 1}),  # needs no halo
        ("bn", "batch_norm", {"statistics": statistics}),
        ("b", "conv", {"filters": 8, "kernel": 1}),
    ]
    g = graph(IMAGE, rows, 16)
    costed, result = both_models(g, split, 1e9, gradient_overlap=overlap)
    assert result.step_time == pytest.approx(costed.step.total)
    sums = [t for t in result.task_times.graph.tasks if t.queue == Queue.FEATURE]
    assert len(sums) == count


@pytest.mark.parametrize("rows", [CHAIN, RESIDUAL])
@pytest.mark.parametrize("split", [by_sample, by_height, by_both])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_memory_of_a_single_stage_is_that_of_the_liveness_model(rows, split, optimizer):
    costed, result = both_models(graph(IMAGE, rows, 16), split, 3000.0, optimizer=optimizer)
    memory = result.peak.memory
    assert memory.total == pytest.approx(costed.memory.total)
    assert memory.moment == costed.memory.moment
    assert dict(memory.holders) == pytest.approx(dict(costed.memory.holders))


def by_channel(others: str) -> Split:
    """Convolutions sum over channels, and all other layers split what is summed."""

    def split(layer: Any) -> Mapping[str, int]:
        if layer.kind == "conv" and layer.name != "stem":
            return {"channel": 4}
        return {others: 4} if layer.dims[others] % 4 == 0 else {}

    return split


SUMMED = [
    conv("stem"),
    ("stem.relu", "activation", {}),
    conv("conv"),
    ("bn", "batch_norm", {}),
    ("relu", "activation", {}),
    conv("next", filters=16),
    ("next.bn", "batch_norm", {}),
    ("next.relu", "activation", {}),
    conv("last", filters=16),
]


@pytest.mark.parametrize("others", ["channel", "sample", "height"])
def test_of_partial_sums_only_a_part_is_kept(others):
    g = graph(IMAGE, SUMMED, 16)
    costed, result = both_models(g, by_channel(others), 3000.0)
    sizes = costed.sizes["next"]
    assert sizes.output == 16 * 16 * 16 * 16 * 4.0
    assert sizes.kept == sizes.output / 4
    assert result.peak.memory.total == pytest.approx(costed.memory.total)
    assert dict(result.peak.memory.holders) == pytest.approx(dict(costed.memory.holders))
    whole, _ = both_models(g, lambda layer: {}, 3000.0)
    held = costed.memory.holders["activations"]
    assert held < 0.7 * whole.memory.holders["activations"]


@st.composite
def images(draw) -> Graph:
    """Random chains of layers on images, with branches that join again."""
    rows: list[Any] = [conv("first")]
    last, before = "first", "first"
    for i in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["conv", "bn", "relu", "gelu", "dropout", "add", "branch"]))
        name = f"layer{i}"
        row = {
            "conv": conv(name, last),
            "bn": (name, "batch_norm", {}, (last,)),
            "relu": (name, "activation", {}, (last,)),
            "gelu": (name, "activation", {"function": "gelu"}, (last,)),
            "dropout": (name, "dropout", {}, (last,)),
            "add": (name, "add", {}, (last, before)),
            "branch": conv(name, before),
        }[kind]
        rows.append(row)
        before, last = (last, name) if kind != "branch" else (name, last)
    rows.append(("join", "add", {}, (last, before)))
    return graph(IMAGE, rows, 8)


@given(g=images(), bucket=st.sampled_from([10.0, 2000.0, 1e8]))
@settings(max_examples=25)
def test_random_networks_agree_in_time_and_memory(g, bucket):
    costed, result = both_models(g, by_sample, bucket)
    assert result.step_time == pytest.approx(costed.step.total, rel=1e-9)
    assert result.peak.memory.total == pytest.approx(costed.memory.total)
