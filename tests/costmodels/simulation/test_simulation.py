"""The compiler: against the additive model, the memory model, and what the papers count."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import ALPHA, BANDWIDTH, cluster, graph, machine
from pipelines import BLOCK, CHANNELS, PLAIN, SAMPLES, chain, compile_job, simulated

from costmodels.communication.layout import AXES, Layouts
from costmodels.communication.patterns import match
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph, build_graph
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Queue,
    SimulatedStep,
    Task,
    built_in_runtimes,
    load_runtime,
    run_graph,
)
from costmodels.strategy import MemoryConfig, Schedule, Stage, Strategy
from costmodels.strategy.usual import hybrid, single_stage
from planner.models.gpt import gpt2
from planner.planning.costing import Costed, cost
from planner.planning.formulate import formulate

IMAGE = {"channel": 3, "height": 16, "width": 16}
WEIGHT = 4.0 * CHANNELS**2  # the weight of a layer of the chain. [B]


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
Split = Callable[[Any], Mapping[str, int]]


def by_sample(layer: Any) -> Mapping[str, int]:
    return {"sample": 4}


def by_height(layer: Any) -> Mapping[str, int]:
    return {"height": 4} if layer.dims.get("height", 1) >= 4 else {}


def by_both(layer: Any) -> Mapping[str, int]:
    return {"sample": 2, **({"height": 2} if layer.dims.get("height", 1) >= 2 else {})}


def by_filter(layer: Any) -> Mapping[str, int]:
    return {"filter": 4} if layer.kind in ("conv", "linear") else {}


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


# against the additive model


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


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("synchronised", ["local", "synchronised"])
def test_statistics_are_waited_for(overlap, synchronised):
    rows = [conv("a"), ("bn", "batch_norm", {"statistics": synchronised}), conv("b")]
    g = graph(IMAGE, rows, 16)
    costed, result = both_models(g, by_sample, 1e9, gradient_overlap=overlap)
    assert result.step_time == pytest.approx(costed.step.total)
    sums = [t for t in result.task_times.graph.tasks if t.queue == Queue.FEATURE]
    assert len(sums) == (2 if synchronised == "synchronised" else 0)


# against the memory model


@pytest.mark.parametrize("rows", [CHAIN, RESIDUAL])
@pytest.mark.parametrize("split", [by_sample, by_height, by_both])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_memory_of_a_single_stage_is_that_of_the_liveness_model(rows, split, optimizer):
    costed, result = both_models(graph(IMAGE, rows, 16), split, 3000.0, optimizer=optimizer)
    memory = result.peak.memory
    assert memory.total == pytest.approx(costed.memory.total)
    assert memory.moment == costed.memory.moment
    assert dict(memory.holders) == pytest.approx(dict(costed.memory.holders))


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


# collectives by pattern


def layout(
    *, partial: Sequence[int] = (1,), strides: Mapping[str, Sequence[int]] | None = None, **degrees
) -> Layouts:
    """A layout by the ways of each axis at each level."""
    levels = len(partial)
    ways = np.ones((1, levels, len(AXES)), dtype=np.int64)
    steps = np.zeros_like(ways)
    for axis, row in degrees.items():
        ways[0, :, AXES.index(axis)] = row
        steps[0, :, AXES.index(axis)] = (strides or {}).get(axis, [1] * levels)
    steps[ways == 1] = 0
    return Layouts(degrees=ways, strides=steps, partial=np.array([partial], dtype=np.int64))


@pytest.mark.parametrize(
    ("source", "target", "kind", "group"),
    [
        (layout(), layout(), "nothing", (1,)),
        (layout(sample=[4]), layout(sample=[4]), "nothing", (1,)),
        (layout(), layout(sample=[4]), "slice", (1,)),
        (layout(sample=[2]), layout(sample=[2], hidden=[2]), "slice", (1,)),
        (layout(sample=[4]), layout(), "all_gather", (4,)),
        (layout(sample=[4]), layout(sample=[2]), "all_gather", (2,)),
        (layout(partial=[4]), layout(), "all_reduce", (4,)),
        (layout(partial=[4], sample=[2]), layout(sample=[2]), "all_reduce", (4,)),
        (layout(partial=[4]), layout(hidden=[4]), "reduce_scatter", (4,)),
        (layout(partial=[4]), layout(hidden=[2]), "all_reduce", (4,)),
        (layout(sample=[4]), layout(hidden=[4]), "all_to_all", (4,)),
        (layout(sample=[2], hidden=[2]), layout(sample=[4]), "all_to_all", (2,)),
        # no collective does these
        (layout(sample=[3]), layout(sample=[2]), "send_recv", (1,)),
        (layout(sample=[4]), layout(hidden=[2]), "send_recv", (1,)),
        (layout(partial=[2], sample=[2]), layout(), "send_recv", (2,)),
        (
            layout(sample=[2], strides={"sample": [1]}),
            layout(sample=[2], strides={"sample": [2]}),
            "send_recv",
            (1,),
        ),
        # level by level
        (layout(partial=[2, 4]), layout(partial=[1, 1]), "all_reduce", (2, 4)),
        (
            layout(partial=[2, 1], sample=[1, 4]),
            layout(partial=[1, 1], sample=[1, 4], hidden=[2, 1]),
            "reduce_scatter",
            (2, 1),
        ),
        (
            layout(partial=[1, 1], sample=[2, 1]),
            layout(partial=[1, 1], sample=[1, 2]),
            "send_recv",
            (1, 1),
        ),
    ],
)
def test_patterns(source, target, kind, group):
    pattern = match(source, target)
    assert pattern.kind == kind
    assert pattern.group == group


TWO = graph(
    {"channel": 64},
    [("a", "linear", {"filters": 64}), ("b", "linear", {"filters": 64})],
    64,
)
WHOLE = 64 * 64 * 4.0


def moved(
    g: Graph, shape: tuple[int, ...], **splits: Mapping[str, Sequence[int]]
) -> list[tuple[str, float]]:
    """Feature communication of a single stage in order: what it is, and bytes received."""
    distributions = {
        layer.name: Distribution(
            degrees={d: tuple(w) for d, w in splits.get(layer.name, {}).items()}, shape=shape
        )
        for layer in g.compute_layers
    }
    result = simulated(g, single_stage(distributions, shape), cluster(*shape))
    tasks = [t for t in result.task_times.graph.tasks if t.queue == Queue.FEATURE]
    assert all(t.seconds + t.transfer > 0 for t in tasks)
    return [(t.kind, t.num_bytes) for t in tasks]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_each_collective_has_its_strategy(p):
    """Forward, then backward: of a buffer that is whole on every device, or a block of it."""
    part = 1 - 1 / p
    # a sums over its channels; b reads all, or a part, of what is summed
    assert moved(TWO, (p,), a={"channel": [p]}) == [("all_reduce", 2 * WHOLE * part)]
    assert moved(TWO, (p,), a={"channel": [p]}, b={"channel": [p]}) == [
        ("reduce_scatter", WHOLE * part),
        ("all_gather", WHOLE * part),
    ]
    # b reads all of what a makes in parts; its gradient is there already
    assert moved(TWO, (p,), a={"filter": [p]}) == [("all_gather", WHOLE * part)]
    # a part is there already; its gradients are to be joined
    assert moved(TWO, (p,), b={"sample": [p]}) == [("all_gather", WHOLE * part)]
    # column, then row: nothing in between
    assert moved(TWO, (p,), a={"filter": [p]}, b={"channel": [p]}) == []
    # gradients of what is replicated over filters are partial
    assert moved(TWO, (p,), b={"filter": [p]}) == [("all_reduce", 2 * WHOLE * part)]
    # blocks of features become blocks of samples and back
    assert (
        moved(TWO, (p,), a={"filter": [p]}, b={"sample": [p]})
        == [("all_to_all", WHOLE / p * part)] * 2
    )


def test_what_no_collective_does_is_sent_point_to_point():
    # halves by the device within a host become halves by the host: half the devices lack theirs
    assert (
        moved(TWO, (2, 2), a={"sample": [2, 1]}, b={"sample": [1, 2]})
        == [("send_recv", WHOLE / 2)] * 2
    )


def test_readers_in_one_layout_share_what_is_moved():
    rows: list[Any] = [("a", "linear", {"filters": 64})]
    rows += [(name, "linear", {"filters": 64}, ("a",)) for name in ("b", "c")]
    rows += [("add", "add", {}, ("b", "c"))]
    g = graph({"channel": 64}, rows, 64)
    gather = ("all_gather", WHOLE * 3 / 4)
    assert moved(g, (4,), a={"filter": [4]}) == [gather]
    # both readers' gradients are summed and scattered on their own
    split = {"filter": [4]}
    scatter = ("reduce_scatter", WHOLE * 3 / 4)
    changes = moved(g, (4,), a=split, b=split, c=split, add={"channel": [4]})
    assert changes == [gather, scatter, scatter]


# Megatron


def gpt(blocks: int = 2, batch: int = 8, sequence: int = 16) -> Graph:
    return build_graph(gpt2(sequence, blocks=blocks, hidden=32, heads=4), batch)


def kinds(tasks: Sequence[Task], *prefixes: str) -> Counter[str]:
    return Counter(t.kind for t in tasks if t.name.startswith(prefixes))


@pytest.mark.parametrize("tp", [2, 4])
def test_megatron_has_two_all_reduces_each_way_in_a_block(tp):
    """Shoeybi et al. 2019, section 3, figure 4."""
    blocks = 3
    g = gpt(blocks)
    result = simulated(g, hybrid(g, (tp,), tp=tp), cluster(tp))
    tasks = [t for t in result.task_times.graph.tasks if t.queue == Queue.FEATURE]
    order = {layer.name: n for n, layer in enumerate(g.compute_layers)}
    turn = max(n for n, t in enumerate(tasks) if t.name in ("head", "loss"))
    forward, backward = tasks[:turn], tasks[turn + 1 :]
    size = 2 * (8 * 16 * 32 * 4) * (1 - 1 / tp)
    for block in range(blocks):
        mine = [t for t in forward if t.name.startswith(f"h.{block}.")]
        assert [(t.name, t.kind, t.num_bytes) for t in mine] == [
            (f"h.{block}.attn.c_proj", "all_reduce", size),
            (f"h.{block}.mlp.c_proj", "all_reduce", size),
        ]
        back = [t for t in backward if t.name.startswith(f"h.{block}.")]
        # gradients of what the first, column-parallel layers read
        assert [(t.name, t.kind, t.num_bytes) for t in back] == [
            (f"h.{block}.ln_2", "all_reduce", size),
            (f"h.{block}.ln_1", "all_reduce", size),
        ]
    assert order["h.0.ln_1"] < order["h.0.ln_2"]
    # all replicas see the same samples: no gradient is reduced
    assert not any(t.queue == Queue.GRADIENT for t in result.task_times.graph.tasks)


def test_hybrid_gradients_are_reduced_over_the_replicas_only():
    g = gpt()
    result = simulated(g, hybrid(g, (2, 2), dp=2, tp=2), cluster(2, 2))
    compiler = compile_job(g, hybrid(g, (2, 2), dp=2, tp=2), cluster(2, 2))
    pieces = compiler.view.pieces
    assert pieces["h.0.mlp.c_fc"].gradient_group == (1, 2)
    # half of the weight each
    assert pieces["h.0.mlp.c_fc"].gradient_bytes == 4 * (32 * 128 + 128) / 2
    # layer norms are computed alike on all devices of a tensor-parallel group
    assert pieces["h.0.ln_1"].gradient_bytes == 4 * 64
    assert result.roles[0].num_devices == 4


# ZeRO


def dp(g: Graph, p: int, micro: int = 1, shape: tuple[int, ...] | None = None) -> Strategy:
    return hybrid(g, shape or (p,), dp=p, micro_batches=micro)


def collectives(tasks: Sequence[Task]) -> dict[str, tuple[int, float]]:
    """How many of each kind of communication, and bytes received."""
    result: dict[str, tuple[int, float]] = {}
    for task in tasks:
        if task.queue != Queue.COMPUTE:
            count, size = result.get(task.kind, (0, 0.0))
            result[task.kind] = (count + 1, size + task.num_bytes)
    return result


LAYERS = 6
SMALL_BUCKET = {"bucket": 2 * WEIGHT}


def zero(name: str, p: int = 4, micro: int = 1, **changes: Any) -> SimulatedStep:
    runtime = load_runtime(name, **changes)
    return simulated(chain(LAYERS), dp(chain(LAYERS), p, micro), cluster(p), runtime=runtime)


@pytest.mark.parametrize(
    ("name", "times", "kinds"),
    [
        ("ddp", 2, {"all_reduce": 2}),
        ("zero1", 2, {"reduce_scatter": 1, "all_gather": 1}),
        ("zero2", 2, {"reduce_scatter": 1, "all_gather": 1}),
        ("zero3", 3, {"reduce_scatter": 1, "all_gather": 2}),
        ("fsdp", 3, {"reduce_scatter": 1, "all_gather": 2}),
    ],
)
@pytest.mark.parametrize("p", [2, 4])
def test_zero_moves_as_much_as_its_paper_says(name, times, kinds, p):
    """Rajbhandari et al. 2020, section 7: twice the parameters; three times with cut weights."""
    size = LAYERS * WEIGHT * (1 - 1 / p)
    changes = {} if name == "fsdp" else SMALL_BUCKET
    result = zero(name, p, **changes)
    found = collectives(result.task_times.graph.tasks)
    assert {kind: total / size for kind, (_, total) in found.items()} == pytest.approx(kinds)
    assert result.roles[0].received == pytest.approx(times * size)
    counts = {kind: count for kind, (count, _) in found.items()}
    reduction = "all_reduce" if name == "ddp" else "reduce_scatter"
    # a unit of layers at a time, or two weights in a bucket
    assert counts[reduction] == (LAYERS if name == "fsdp" else LAYERS / 2 + (name == "ddp"))
    if name in ("zero3", "fsdp"):
        assert counts["all_gather"] == 2 * LAYERS
    elif name != "ddp":
        assert counts["all_gather"] == 1


@pytest.mark.parametrize("p", [2, 4])
def test_zero_cuts_memory(p):
    """Rajbhandari et al. 2020, figure 1: first the state, then gradients, then weights."""
    whole = LAYERS * WEIGHT
    for name, cut in (
        ("ddp", ()),
        ("zero1", ("optimizer state",)),
        ("zero2", ("optimizer state", "weight gradients")),
        ("zero3", ("optimizer state", "weight gradients", "weights")),
        ("fsdp", ("optimizer state", "weight gradients", "weights")),
    ):
        changes = {} if name == "fsdp" else SMALL_BUCKET
        compiler = compile_job(
            chain(LAYERS),
            dp(chain(LAYERS), p),
            cluster(p),
            runtime=load_runtime(name, **changes),
            optimizer="adam",
        )
        fixed = compiler.compile(1).roles[0].fixed_memory
        for holder, size in (
            ("optimizer state", 2 * whole),
            ("weight gradients", whole),
            ("weights", whole),
        ):
            assert fixed[holder] == pytest.approx(size / p if holder in cut else size)


def test_zero_cuts_updates():
    plain = compile_job(chain(2), dp(chain(2), 4), cluster(4), updates=True)
    cut = compile_job(chain(2), dp(chain(2), 4), cluster(4), updates=True, runtime="zero1")
    assert plain.weights[0].update_seconds > 0
    assert cut.weights[0].update_seconds == pytest.approx(plain.weights[0].update_seconds / 4)


@pytest.mark.parametrize(("name", "ahead"), [("fsdp", 1), ("zero3", 2)])
@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("layers", [2, 3, 8])
def test_weights_are_gathered_a_few_units_ahead_and_dropped(name, ahead, micro, layers):
    """At most the unit in use, those fetched ahead, and one more whose use has just ended."""
    changes = {} if name == "fsdp" else SMALL_BUCKET
    g = chain(layers)
    result = simulated(
        g, dp(g, 4, micro), cluster(4, bandwidth=1e15, latency=0.0),
        runtime=load_runtime(name, **changes),
    )  # fmt: skip
    live: dict[Any, float] = {}
    most = 0.0
    for _, key, holder, size in result.task_times.ledger.log[0]:
        if holder == "weights":
            live[key] = size
            most = max(most, sum(live.values()))
    assert most == pytest.approx(min(1 + ahead, 2 * layers * micro) * WEIGHT)


def test_segments_of_several_units_gather_their_weights_again():
    """Three units computed again, then their backward passes: the last is still there."""
    g = chain(4)
    plain = dp(g, 4)
    again = ("fc.0", "fc.1", "fc.2")
    strategy = replace(plain, stages=(replace(plain.stages[0], recompute=(again,)),))
    result = simulated(g, strategy, cluster(4), runtime="fsdp")
    gathers = [t.name for t in result.task_times.graph.tasks if t.kind == "all_gather"]
    forward = ["fc.0", "fc.1", "fc.2", "fc.3"]
    assert gathers == [*forward, "fc.3", *again, "fc.1", "fc.0"]


def test_strategy_files_may_cut_single_layers():
    g = chain(2)
    strategy = replace(
        dp(g, 4), memory={"fc.1": MemoryConfig(weights=True, gradients=True, state=True)}
    )
    result = simulated(g, strategy, cluster(4))
    size = WEIGHT * 3 / 4
    assert collectives(result.task_times.graph.tasks) == {
        "all_reduce": (1, 2 * size),
        "reduce_scatter": (1, size),
        "all_gather": (2, 2 * size),
    }
    fixed = result.task_times.graph.roles[0].fixed_memory
    assert fixed["weights"] == pytest.approx(WEIGHT * (1 + 1 / 4))


# gradient accumulation


@pytest.mark.parametrize("name", list(built_in_runtimes()))
def test_gradients_are_accumulated_or_reduced_after_each_micro_batch(name):
    micro = 3
    result = simulated(chain(2), dp(chain(2), 4, micro), cluster(4), runtime=name)
    reductions = [
        t
        for t in result.task_times.graph.tasks
        if t.kind in ("all_reduce", "reduce_scatter", "fused", "push")
    ]
    each = name in ("zero2", "zero3", "fsdp")
    assert load_runtime(name).each_micro_batch is each
    assert {t.micro for t in reductions} == (set(range(micro)) if each else {micro - 1})
    update = next(n for n, t in enumerate(result.task_times.graph.tasks) if t.kind == "update")
    starts, ends = result.task_times.starts, result.task_times.ends
    for number, task in enumerate(result.task_times.graph.tasks):
        if task.queue == Queue.GRADIENT:
            assert ends[number] <= starts[update] + 1e-12


def test_accumulation_reduces_as_much_as_one_batch():
    one, four = zero("ddp", micro=1), zero("ddp", micro=4)
    assert one.roles[0].received == four.roles[0].received
    twice, thrice = zero("fsdp", micro=2), zero("fsdp", micro=3)
    assert thrice.roles[0].received == pytest.approx(1.5 * twice.roles[0].received)


# buckets


def test_ddp_buckets_run_against_the_forward_pass_and_begin_small():
    # weights of 4 MB: 1 MiB is full with the first; 25 MiB (26.2 MB) with seven more
    g = chain(16)
    compiler = compile_job(g, dp(g, 2), cluster(2))
    found = [bucket.layers for bucket in compiler.weights[0].buckets]
    names = [f"fc.{n}" for n in reversed(range(16))]
    assert found == [tuple(names[:1]), tuple(names[1:8]), tuple(names[8:15]), tuple(names[15:])]
    sizes = [bucket.num_bytes for bucket in compiler.weights[0].buckets]
    assert sizes == [WEIGHT, 7 * WEIGHT, 7 * WEIGHT, WEIGHT]
    assert all(size >= 25 * 2**20 for size in sizes[1:-1])
    assert all(size - WEIGHT < 25 * 2**20 for size in sizes)
    graph_ = compiler.compile(1)
    reductions = [t for t in graph_.tasks if t.queue == Queue.GRADIENT]
    # a bucket waits for the last of its gradients, and it alone
    for task, layers in zip(reductions, found, strict=True):
        waited = {graph_.tasks[n].name for n in task.after}
        assert waited == set(layers)


def test_gradients_travel_in_low_precision_where_the_framework_does():
    g = chain(2)
    for name, size in (("ddp", 4), ("fsdp", 2), ("zero2", 2), ("horovod", 4)):
        compiler = compile_job(g, dp(g, 2), cluster(2), runtime=name, precision="fp16")
        buckets = compiler.weights[0].buckets
        assert sum(b.num_bytes for b in buckets) == pytest.approx(2 * CHANNELS**2 * size)


def test_horovod_fuses_what_is_ready_and_moves_as_much_as_ddp():
    g = chain(8)
    where = cluster(4)
    ddp = simulated(g, dp(g, 4), where)
    horovod = simulated(g, dp(g, 4), where, runtime=load_runtime("horovod", cycle=1e-3))
    line = horovod.task_times
    fused = [t for t in line.graph.tasks if t.kind == "fused"]
    assert len(fused) == 8
    assert 0 < len(line.fused) < 8
    assert sum(t.num_bytes for t in fused) == 8 * WEIGHT
    assert horovod.roles[0].received == pytest.approx(ddp.roles[0].received)
    slow = simulated(g, dp(g, 4), where, runtime=load_runtime("horovod", cycle=0.5))
    # one reduction of all, half a second after the start
    assert len(slow.task_times.fused) == 7
    runtime = load_runtime("horovod")
    everything = 2 * 3 * (ALPHA + 8 * WEIGHT / 4 / BANDWIDTH)
    assert slow.step_time == pytest.approx(0.5 + runtime.negotiation(4) + everything)


# parameter servers


def servers(hosts: int, local: int, **changes: Any) -> SimulatedStep:
    plain = {"server_rate": math.inf, "bucket": WEIGHT, "local_reduce": False}
    runtime = load_runtime("ps-sync", **{**plain, **changes})
    g = chain(1)
    p = hosts * local
    where = cluster(local, hosts, latency=0.0)
    return simulated(g, dp(g, p, shape=(local, hosts)), where, runtime=runtime)


def push_and_pull(result: SimulatedStep) -> tuple[Task, Task]:
    tasks = result.task_times.graph.tasks
    pushes = [t for t in tasks if t.kind == "push"]
    pulls = [t for t in tasks if t.kind == "pull"]
    assert len(pushes) == len(pulls) == 1
    return pushes[0], pulls[0]


def test_parameter_servers_on_the_workers_hosts():
    """Each of 4 hosts keeps its quarter: 3/4 of the gradients go out and come in."""
    push, pull = push_and_pull(servers(4, 1))
    assert push.transfer == pytest.approx(WEIGHT * 3 / 4 / BANDWIDTH)
    assert pull.transfer == pytest.approx(WEIGHT * 3 / 4 / BANDWIDTH)
    assert push.loads == (((1, 0, 0), 1.0),)
    assert pull.loads == (((1, 0, 1), 1.0),)
    # without local reduction the two devices of a host send one each
    push, _ = push_and_pull(servers(4, 2))
    assert push.transfer == pytest.approx(2 * WEIGHT * 3 / 4 / BANDWIDTH)
    # with it they add up first: each reduces and scatters half over the links of the host
    push, _ = push_and_pull(servers(4, 2, local_reduce=True))
    assert push.transfer == pytest.approx(WEIGHT * 3 / 4 / BANDWIDTH + WEIGHT / 2 / BANDWIDTH)


def test_parameter_servers_on_hosts_of_their_own():
    # one server receives from all four hosts; four receive as much as a host sends
    push, pull = push_and_pull(servers(4, 1, servers=1))
    assert push.transfer == pytest.approx(4 * WEIGHT / BANDWIDTH)
    assert pull.num_bytes == WEIGHT
    push, _ = push_and_pull(servers(4, 1, servers=4))
    assert push.transfer == pytest.approx(WEIGHT / BANDWIDTH)
    # a server adds up four gradients of its quarter
    push, pull = push_and_pull(servers(4, 1, servers=4, server_rate=1e9))
    assert push.seconds == pytest.approx(WEIGHT / 1e9)
    assert pull.seconds == 0.0


def test_pieces_are_pulled_as_soon_as_they_are_pushed():
    result = servers(4, 1, bucket=WEIGHT / 4)
    tasks, line = result.task_times.graph.tasks, result.task_times
    pushes = [n for n, t in enumerate(tasks) if t.kind == "push"]
    pulls = [n for n, t in enumerate(tasks) if t.kind == "pull"]
    assert len(pushes) == len(pulls) == 4
    assert sum(tasks[n].num_bytes for n in pulls) == pytest.approx(WEIGHT)
    # one after the other, a push beside the pull before: 4 + 1 pieces of 3/4 of a quarter
    piece = WEIGHT / 4 * 3 / 4 / BANDWIDTH
    first = line.starts[pushes[0]]
    for n in range(4):
        assert line.ends[pushes[n]] - first == pytest.approx((n + 1) * piece)
        assert line.ends[pulls[n]] - first == pytest.approx((n + 2) * piece)


def test_the_next_step_begins_before_all_weights_are_pulled_if_the_runtime_allows_it():
    g = chain(4)
    where = cluster(1, 4)
    strategy = dp(g, 4, shape=(1, 4))
    runtime = load_runtime("ps-sync", crosses_steps=True)
    graph_ = compile_job(g, strategy, where, runtime=runtime).compile(2)
    line = run_graph(graph_, PLAIN).task_times
    pulls = [n for n, t in enumerate(graph_.tasks) if t.kind == "pull" and t.step == 0]
    forward = {t.name: n for n, t in enumerate(graph_.tasks) if (t.kind, t.step) == ("forward", 1)}
    by_layer = {graph_.tasks[n].name: n for n in pulls}
    for name in ("fc.0", "fc.3"):
        assert by_layer[name] in graph_.tasks[forward[name]].after
    assert line.starts[forward["relu"]] < max(line.ends[n] for n in pulls)
    # else the update, and all after it, waits for the last
    waiting = compile_job(g, strategy, where, runtime="ps-sync").compile(2)
    line = run_graph(waiting, PLAIN).task_times
    forward = next(n for n, t in enumerate(waiting.tasks) if (t.kind, t.step) == ("forward", 1))
    last = max(line.ends[n] for n, t in enumerate(waiting.tasks) if (t.kind, t.step) == ("pull", 0))
    assert line.starts[forward] >= last


# stages


def test_tied_weights_of_two_stages_are_exchanged():
    g = gpt()
    strategy = hybrid(g, (2,), pp=2)
    compiler = compile_job(g, strategy, cluster(2))
    tasks = compiler.compile(1).tasks
    size = 50257 * 32 * 4.0
    tied = [t for t in tasks if t.kind == "send_recv" and t.queue == Queue.GRADIENT]
    assert [(t.role, t.name, t.num_bytes) for t in tied] == [
        (0, "token_embedding", size),
        (1, "head", size),
    ]
    for task in tied:
        # both gradients must be there; the update waits for the exchange
        assert {tasks[n].name for n in task.after} == {"token_embedding", "head"}
        update = next(t for t in tasks if t.kind == "update" and t.role == task.role)
        assert tasks.index(task) in update.after
    # each stage has a copy of its own; in one stage they share it
    first, last = (w.fixed_memory()["weights"] for w in compiler.weights)
    assert first >= size
    assert last >= size
    one = compile_job(g, hybrid(g, (1,)), cluster(1))
    assert one.weights[0].fixed_memory()["weights"] == pytest.approx(first + last - size)
    assert not any(t.kind == "send_recv" for t in one.compile(1).tasks)


def test_stages_lie_on_devices_one_after_the_other():
    g = chain(8)
    compiler = compile_job(g, hybrid(g, (2, 4), dp=2, pp=4, micro_batches=4), cluster(2, 4))
    roles = compiler.compile(1).roles
    assert [(r.name, r.first_device, r.num_devices) for r in roles] == [
        ("stage 0", 0, 2),
        ("stage 1", 2, 2),
        ("stage 2", 4, 2),
        ("stage 3", 6, 2),
    ]
    sends = [op for *_, op in compiler.rows if op.key[0] == "send"]
    # between hosts both devices share what the host sends: out of one, into the next
    assert {op.loads for op in sends} == {
        (((1, n, 0), 1.0), ((1, n + 1, 1), 1.0)) for n in range(3)
    }
    for op in sends:
        assert op.transfer == pytest.approx(2 * (BLOCK / 2) / BANDWIDTH)
    folded = hybrid(g, (2,), pp=2, micro_batches=2, schedule_kind="interleaved", chunks=2)
    roles = compile_job(g, folded, cluster(2)).compile(1).roles
    assert [(r.name, r.first_device) for r in roles] == [("stage 0, 2", 0), ("stage 1, 3", 1)]


def test_stages_of_different_sizes_send_the_whole_tensor_once():
    """Two devices with half the samples each, then one with all of them, and back."""
    g = chain(2)
    halves, whole = Distribution(degrees={"sample": (2,)}, shape=(2,)), Distribution(
        degrees={}, shape=(1,)
    )  # fmt: skip
    strategy = Strategy(
        stages=(
            Stage(layers=("relu", "fc.0"), first_device=0, shape=(2,)),
            Stage(layers=("fc.1",), first_device=2, shape=(1,)),
        ),
        distributions={"relu": halves, "fc.0": halves, "fc.1": whole},
    )
    where = cluster(4, latency=0.0)
    compiler = compile_job(g, strategy, where)
    compiler.compile(1)
    sent = {op.key[0]: op for *_, op in compiler.rows if op.kind == "send_recv"}
    # the one device receives all of it, and sends all of it back
    for key in ("send", "send gradient"):
        assert sent[key].num_bytes == BLOCK
        assert sent[key].transfer == pytest.approx(BLOCK / BANDWIDTH)


def test_a_tensor_that_skips_a_stage_is_sent_to_each_reader():
    rows = [
        ("relu", "activation", {}),
        ("a", "linear", {"filters": 64}),
        ("b", "linear", {"filters": 64}),
        ("c", "linear", {"filters": 64}),
        ("add", "add", {}, ("c", "a")),
        ("d", "linear", {"filters": 64}),
    ]
    g = graph({"channel": 64}, rows, 16)
    one = Distribution(degrees={}, shape=(1,))
    names = [layer.name for layer in g.compute_layers]
    stages = tuple(
        Stage(layers=layers, first_device=n, shape=(1,))
        for n, layers in enumerate((("relu", "a"), ("b", "c"), ("add", "d")))
    )
    strategy = Strategy(
        stages=stages,
        distributions=dict.fromkeys(names, one),
        schedule=Schedule(kind="1f1b", micro_batches=4),
    )
    compiler = compile_job(g, strategy, cluster(3))
    result = run_graph(compiler.compile(1), PLAIN)
    sends = Counter((op.key, stage) for _, _, stage, _, op in compiler.rows if "send" in op.key[0])
    assert sends == {
        (("send", "a", 1), 0): 4,
        (("send", "a", 2), 0): 4,
        (("send", "c", 2), 1): 4,
        (("send gradient", "a", 0), 1): 4,
        (("send gradient", "a", 0), 2): 4,
        (("send gradient", "c", 1), 2): 4,
    }
    assert all(live == {} for live in result.task_times.ledger.live)


def test_an_unknown_figure_of_a_runtime_is_named():
    with pytest.raises(InputError, match="but not 'buckets'; correct it"):
        load_runtime("ddp", buckets=1)
    with pytest.raises(InputError, match=r"one of ddp, horovod.*but is 'mpi'"):
        load_runtime("mpi")


# laws of random plans


@st.composite
def networks(draw) -> tuple[Any, ...]:
    rows: list[Any] = [("in", "linear", {"filters": 64})]
    last, before = "in", "in"
    for i in range(draw(st.integers(3, 6))):
        kind = draw(st.sampled_from(["linear", "relu", "gelu", "norm", "dropout", "add"]))
        name = f"h.{i}"
        rows.append(
            {
                "linear": (name, "linear", {"filters": 64}, (last,)),
                "relu": (name, "activation", {}, (last,)),
                "gelu": (name, "activation", {"function": "gelu"}, (last,)),
                "norm": (name, "layer_norm", {}, (last,)),
                "dropout": (name, "dropout", {}, (last,)),
                "add": (name, "add", {}, (last, before)),
            }[kind]
        )
        before, last = last, name
    return (*rows, ("out", "linear", {"filters": 64}))


@st.composite
def jobs(draw) -> tuple[Graph, Strategy, tuple[int, ...], str]:
    """A network, a hybrid strategy of it, devices and a runtime."""
    g = graph({"hidden": 64}, draw(networks()), 16)
    dp_, tp, pp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    shape = (tp, dp_ * pp)
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]))
    strategy = hybrid(
        g,
        shape,
        dp=dp_,
        tp=tp,
        pp=pp,
        micro_batches=draw(st.sampled_from([1, 2, 4])) * (2 if kind == "interleaved" else 1),
        schedule_kind=kind,
        chunks=draw(st.sampled_from([1, 2])) if kind == "interleaved" else 1,
        max_in_flight=draw(st.sampled_from([None, 1, 2])) if kind != "interleaved" else None,
    )
    if draw(st.booleans()):
        stages = []
        for stage in strategy.stages:
            size = draw(st.integers(1, len(stage.layers)))
            stages.append(replace(stage, recompute=(stage.layers[:size],)))
        strategy = replace(strategy, stages=tuple(stages))
    return g, strategy, shape, draw(st.sampled_from(list(built_in_runtimes())))


def compiled(job: tuple[Graph, Strategy, tuple[int, ...], str], **options: Any) -> Compiler:
    g, strategy, shape, runtime = job
    where = cluster(*shape, **options.pop("links_of", {}))
    return compile_job(g, strategy, where, runtime=runtime, updates=True, **options)


behaviours = st.builds(
    Behaviour, overlap_factor=st.sampled_from([0.0, 0.1, 0.5]), sharing=st.booleans()
)


@given(job=jobs(), behaviour=behaviours, steps=st.sampled_from([1, 2]))
@settings(max_examples=60)
def test_laws_of_every_plan(job, behaviour, steps):
    compiler = compiled(job)
    tasks = compiler.compile(steps)
    # no operation is laid out twice
    assert len(compiler.ids) == len(compiler.rows) == len(tasks.tasks)
    result = run_graph(tasks, behaviour)
    line = result.task_times
    assert all(b >= a for a, b in zip(line.starts, line.ends, strict=True))
    assert line.end * (1 + 1e-9) >= result.critical_path
    for role, use in enumerate(result.roles):
        for queue in Queue:
            mine = [n for n, t in enumerate(tasks.tasks) if (t.role, t.queue) == (role, queue)]
            mine = [n for n in mine if n not in line.fused]
            work = math.fsum(tasks.tasks[n].seconds + tasks.tasks[n].transfer for n in mine)
            assert line.end * (1 + 1e-9) >= work
            # in order, one at a time
            for one, other in itertools.pairwise(mine):
                assert line.starts[other] >= line.ends[one] - 1e-12
        # nothing but what is always there is left, and there is never less
        fixed = math.fsum(tasks.roles[role].fixed_memory.values())
        assert line.ledger.live[role] == {}
        assert line.ledger.total[role] == pytest.approx(fixed)
        assert use.memory.total >= fixed * (1 - 1e-12)
        assert use.memory.total == pytest.approx(sum(use.memory.holders.values()))
    again = run_graph(compiled(job).compile(steps), behaviour)
    assert again.step_time == result.step_time
    assert again.task_times.starts == line.starts


@given(job=jobs())
@settings(max_examples=30)
def test_bytes_do_not_depend_on_how_they_are_timed(job):
    counts = []
    for links, behaviour in (
        ("shared", Behaviour(overlap_factor=0.2)),
        ("alone", PLAIN),
        ("nominal", PLAIN),
    ):
        result = run_graph(compiled(job, links=links).compile(1), behaviour)
        counts.append([role.received for role in result.roles])
    assert counts[0] == counts[1] == counts[2]


@given(job=jobs())
@settings(max_examples=30)
def test_stages_send_back_what_they_receive(job):
    compiler = compiled(job)
    compiler.compile(1)
    sent: Counter[Any] = Counter()
    for _, _, stage, micro, op in compiler.rows:
        if op.key[0] == "send":
            sent[op.name, stage, op.key[2], micro] += op.num_bytes
        elif op.key[0] == "send gradient":
            sent[op.name, op.key[2], stage, micro] -= op.num_bytes
    assert set(sent.values()) <= {0.0}
    _, strategy, _, _ = job
    assert len(sent) % strategy.schedule.micro_batches == 0


@given(job=jobs(), factor=st.sampled_from([1.1, 2.0, 10.0]))
@settings(max_examples=40)
def test_faster_links_never_slow_a_step_down(job, factor):
    """Strict where tasks take what they take; fusing while the step runs may go either way."""
    if job[3] == "horovod":
        job = (*job[:3], "ddp")
    slow = run_graph(compiled(job).compile(1), PLAIN)
    fast = run_graph(compiled(job, links_of={"bandwidth": factor * BANDWIDTH}).compile(1), PLAIN)
    assert fast.step_time <= slow.step_time * (1 + 1e-9)


@given(job=jobs())
@settings(max_examples=20)
def test_overlap_and_sharing_never_pay(job):
    if job[3] == "horovod":
        job = (*job[:3], "ddp")
    tasks = compiled(job).compile(1)
    plain = run_graph(tasks, PLAIN)
    for behaviour in (Behaviour(overlap_factor=0.5, sharing=False), Behaviour(sharing=True)):
        assert run_graph(tasks, behaviour).step_time >= plain.step_time * (1 - 1e-9)


@given(rows=networks(), pp=st.sampled_from([1, 2]))
@settings(max_examples=20)
def test_memory_of_gpipe_never_falls_with_more_micro_batches(rows, pp):
    g = graph({"hidden": 64}, rows, 8)
    peaks = []
    for micro in (1, 2, 3, 5):
        strategy = hybrid(g, (pp,), pp=pp, micro_batches=micro, schedule_kind="gpipe")
        peaks.append([r.memory.total for r in simulated(g, strategy).roles])
    for one, more in itertools.pairwise(peaks):
        assert all(b >= a for a, b in zip(one, more, strict=True))


def test_samples_of_the_chain_are_as_assumed():
    assert chain(1).layers["fc.0"].output.size * 4 == BLOCK
    assert chain(1).layers["fc.0"].parameters * 4 == WEIGHT
    assert SAMPLES % 4 == 0
