"""Megatron and ZeRO: what they communicate, cut and gather, as their papers count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from machines import cluster
from msgspec.structs import replace
from pipelines import chain, compile_job, simulated
from simulated_jobs import LAYERS, WEIGHT, dp, gpt, zero

from costmodels.simulation import (
    Queue,
    Task,
    load_runtime,
)
from costmodels.strategy import MemoryConfig
from costmodels.strategy.usual import hybrid


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


def collectives(tasks: Sequence[Task]) -> dict[str, tuple[int, float]]:
    """How many of each kind of communication, and bytes received."""
    result: dict[str, tuple[int, float]] = {}
    for task in tasks:
        if task.queue != Queue.COMPUTE:
            count, size = result.get(task.kind, (0, 0.0))
            result[task.kind] = (count + 1, size + task.num_bytes)
    return result


SMALL_BUCKET = {"bucket": 2 * WEIGHT}


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
