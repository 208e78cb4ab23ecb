"""Cutting networks into stages, and placing stages on devices."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import graph as make_graph
from written_strategies import IMAGE

from costmodels.errors import InputError
from costmodels.strategy import (
    cut_graph,
    stage_shape,
)
from costmodels.strategy.cut import crossing_tensors, cut_evenly
from costmodels.strategy.place import block_shape


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 5),
    st.data(),
)
@settings(max_examples=200)
def test_cuts_are_as_even_as_can_be(weights, parts, data):
    allowed = data.draw(st.lists(st.booleans(), min_size=len(weights), max_size=len(weights)))
    places = [i for i in range(1, len(weights)) if allowed[i]]
    starts = cut_evenly(weights, parts, [1.0 if a else None for a in allowed])

    def sums(cuts: tuple[int, ...]) -> list[int]:
        return [sum(weights[a:b]) for a, b in itertools.pairwise([0, *cuts, len(weights)])]

    every = [sums(cuts) for cuts in itertools.combinations(places, parts - 1)]
    if not every:
        assert starts is None
        return
    assert starts is not None
    assert starts[0] == 0
    assert set(starts[1:]) <= set(places)
    mine = sums(starts[1:])
    assert (max(mine), sum(s * s for s in mine)) == min(
        (max(row), sum(s * s for s in row)) for row in every
    )


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=9),
    st.integers(1, 5),
    st.data(),
)
@settings(max_examples=200)
def test_of_cuts_as_even_the_cheapest_is_taken_then_the_last(weights, parts, data):
    each = st.one_of(st.none(), st.integers(0, 2))
    costs = [data.draw(each) for _ in weights]
    found = cut_evenly(weights, parts, costs)
    places = [i for i in range(1, len(weights)) if costs[i] is not None]

    def key(starts: tuple[int, ...]) -> tuple[object, ...]:
        sums = [sum(weights[a:b]) for a, b in itertools.pairwise([0, *starts, len(weights)])]
        paid = sum(costs[i] or 0 for i in starts)
        return max(sums), sum(s * s for s in sums), paid, [-i for i in reversed(starts)]

    every = list(itertools.combinations(places, parts - 1))
    assert found == ((0, *min(every, key=key)) if every else None)


def test_cuts_prefer_little_data_and_single_tensors(gpt, resnet):
    # equal parts everywhere: the cheaper cut is taken
    assert cut_evenly([1, 0, 0, 1], 2, [0, 3, 1, 2]) == (0, 2)
    crossing = dict(
        zip((layer.name for layer in resnet.compute_layers), crossing_tensors(resnet), strict=True)
    )
    assert crossing["conv1"] == (0, 0)
    assert crossing["layer1.0.conv2"][0] == 2
    assert crossing["layer1.1.conv1"] == (1, resnet.layers["layer1.0.relu"].output.size)
    for graph, parts in ((gpt, 8), (resnet, 4)):
        found = cut_graph(graph, parts)
        assert [n for part in found for n in part] == [la.name for la in graph.compute_layers]
        where = dict(
            zip((la.name for la in graph.compute_layers), crossing_tensors(graph), strict=True)
        )
        assert all(where[part[0]][0] == 1 for part in found[1:])


def test_cuts_go_by_the_weights_given(gpt):
    seconds = {layer.name: 1.0 for layer in gpt.compute_layers if layer.name.startswith("h.0.")}
    first, second = cut_graph(gpt, 2, seconds)
    assert first[-1] == "h.0.add_1"
    assert second[0] == "h.0.ln_2"
    with pytest.raises(InputError, match="finite and not negative"):
        cut_graph(gpt, 2, {"head": math.nan})
    with pytest.raises(InputError, match="cut into 1 to 151 stages"):
        cut_graph(gpt, 152)


def test_unbalanced_clean_cuts_are_not_taken():
    conv = {"filters": 8, "kernel": 3, "padding": 1}
    rows = [("first", "conv", conv), ("a", "conv", conv), ("b", "conv", conv), ("c", "conv", conv)]
    rows += [("join", "add", {}, ["c", "first"]), ("end", "activation", {})]
    graph = make_graph(IMAGE, rows, 8)
    weights = {"first": 1.0, "a": 10.0, "b": 10.0, "c": 1.0}
    assert cut_graph(graph, 2, weights)[1][0] == "b"
    # with less to gain the shortcut is left in one piece
    assert cut_graph(graph, 2, {"first": 8.0, "a": 2.0, "b": 9.0})[1][0] == "a"


@pytest.mark.parametrize(
    ("shape", "groups", "expected"),
    [
        ((8, 4), 1, (8, 4)),
        ((8, 4), 2, (8, 2)),
        ((8, 4), 4, (8, 1)),
        ((8, 4), 8, (4, 1)),
        ((8, 4), 32, (1, 1)),
        ((8, 4), 3, None),
        ((8, 6), 4, None),
    ],
)
def test_stages_take_outer_levels_first(shape, groups, expected):
    if expected is None:
        with pytest.raises(InputError, match="must divide into pipeline groups"):
            stage_shape(shape, groups)
    else:
        assert stage_shape(shape, groups) == expected


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((0, 16), (8, 2)),
        ((8, 24), (8, 2)),
        ((16, 24), (8, 1)),
        ((0, 6), (6, 1)),
        ((6, 8), (2, 1)),
        ((4, 12), None),
        ((6, 10), None),
        ((0, 12), None),
    ],
)
def test_blocks_of_devices(devices, expected):
    if expected is None:
        with pytest.raises(InputError, match="whole blocks"):
            block_shape(devices, (8, 3))
    else:
        assert block_shape(devices, (8, 3)) == expected
