"""Which collective changes a layout, and what the simulation makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from machines import cluster, graph
from pipelines import simulated

from costmodels.communication.layout import AXES, Layouts
from costmodels.communication.patterns import KINDS, match, match_all
from costmodels.distribution import Distribution
from costmodels.graph import Graph
from costmodels.simulation import (
    Queue,
)
from costmodels.strategy.usual import single_stage


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
        (layout(sample=[4]), layout(sample=[2], strides={"sample": [2]}), "all_gather", (2,)),
        (layout(partial=[4]), layout(), "all_reduce", (4,)),
        (layout(partial=[4], sample=[2]), layout(sample=[2]), "all_reduce", (4,)),
        (layout(partial=[4]), layout(hidden=[4]), "reduce_scatter", (4,)),
        (layout(partial=[4]), layout(hidden=[2]), "all_reduce", (4,)),
        (layout(sample=[4]), layout(hidden=[4]), "all_to_all", (4,)),
        (
            layout(sample=[2], hidden=[2], strides={"sample": [2], "hidden": [1]}),
            layout(sample=[4]),
            "all_to_all",
            (2,),
        ),
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
        # halves that lie side by side are not those that a split in four makes of them
        (layout(sample=[4]), layout(sample=[2]), "send_recv", (1,)),
        (layout(sample=[2]), layout(sample=[4]), "send_recv", (1,)),
        # sums are reduced, however blocks move
        (layout(partial=[2], sample=[3]), layout(sample=[2]), "send_recv", (2,)),
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
        # where outer blocks change, blocks inside them become others
        (
            layout(partial=[1, 1], sample=[4, 2]),
            layout(partial=[1, 1], sample=[4, 1]),
            "send_recv",
            (1, 1),
        ),
        (
            layout(partial=[1, 1], sample=[4, 1]),
            layout(partial=[1, 1], sample=[4, 2]),
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


def test_all_pairs_are_matched_like_each_one():
    rng = np.random.default_rng(0)
    shape = (60, 2, len(AXES))
    ways = np.where(rng.random(shape) < 0.8, 1, rng.choice([2, 2, 3, 4], size=shape))
    steps = np.where(ways > 1, rng.integers(1, 3, size=shape), 0)
    table = Layouts(degrees=ways, strides=steps, partial=rng.choice([1, 1, 1, 2], size=shape[:2]))
    found = match_all(table, table)
    rows = [table.take(np.array([n])) for n in range(len(table))]
    kinds = set()
    for i, source in enumerate(rows):
        for j, target in enumerate(rows):
            pattern = match(source, target)
            kinds.add(pattern.kind)
            assert KINDS[found.kinds[i, j]] == pattern.kind
            if pattern.kind in ("all_gather", "all_to_all"):
                assert tuple(found.gathered[i, j]) == pattern.group
    assert {"nothing", "slice", "all_gather", "all_reduce", "send_recv"} <= kinds
