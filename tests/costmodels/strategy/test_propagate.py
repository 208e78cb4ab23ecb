"""Splits of all layers from those of a few."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from machines import graph as make_graph
from written_strategies import IMAGE, entry, residual, splits

from costmodels.distribution import Distribution
from costmodels.graph import Graph
from costmodels.strategy import (
    Description,
    StageEntry,
    Strategy,
    build_strategy,
    data_parallel,
    degrees_on_levels,
    hybrid,
)
from planner.notes import words


def built(
    description: Description, graph: Graph, shape: Sequence[int]
) -> tuple[Strategy, tuple[str, ...]]:
    """A strategy, and its notes in words."""
    strategy, notes = build_strategy(description, graph, shape)
    return strategy, tuple(words(note) for note in notes)


def test_gpt2_from_four_layers_is_megatron(gpt):
    description = Description(
        layers=(
            entry("token_embedding", sample=4, channel=2),
            entry("h.*.attn.c_attn", sample=4, filter=2),
            entry("h.*.mlp.c_fc", sample=4, filter=2),
            entry("head", sample=4, filter=2),
        )
    )
    strategy, notes = built(description, gpt, (8, 1))
    assert strategy == hybrid(gpt, (8, 1), dp=4, tp=2)
    assert notes == ()
    shown = {name: str(d) for name, d in strategy.distributions.items()}
    assert shown["position_embedding"] == "sample 4 x replicated 2"
    assert shown["h.5.attn"] == "sample 4 x head 2"
    assert shown["h.5.attn.c_proj"] == "sample 4 x channel 2"
    assert shown["h.5.add_1"] == "sample 4 x replicated 2"
    assert shown["h.5.mlp.gelu"] == "sample 4 x channel 2"
    assert shown["loss"] == "sample 4 x channel 2"


def test_resnet_from_its_convolutions_is_the_hybrid(resnet):
    # entries leave out what has no filters
    description = Description(
        layers=(
            entry("conv1", sample=4, filter=2),
            entry("layer*", sample=4, filter=2),
            entry("fc", sample=4, filter=2),
        )
    )
    strategy, notes = built(description, resnet, (4, 2))
    assert strategy == hybrid(resnet, (4, 2), dp=4, tp=2)
    assert len(notes) == 1
    assert "layer1.0.bn1" in notes[0]
    assert "cannot be split by sample and filter" in notes[0]
    assert str(strategy.distributions["layer2.0.add"]) == "sample 4 x channel 2"


def test_splits_follow_the_data_and_end_where_they_must():
    found = splits(Description(layers=(entry("stem", sample=2, filter=4),)), residual(), 8)
    assert found["block.conv"] == "sample 2 x channel 4"
    # the sums are reduced, but the shortcut still holds its channels
    assert found["block.bn"] == "sample 2 x replicated 4"
    assert found["block.add"] == "sample 2 x channel 4"
    assert found["fork.concat"] == "sample 2 x replicated 4"
    _, notes = built(Description(layers=(entry("stem", sample=2, filter=4),)), residual(), (8,))
    assert notes == (
        "a split of channel 4 ways ends where a concat layer needs the whole of it and is "
        "replicated: fork.concat",
    )


def test_space_is_split_until_it_is_pooled():
    found = splits(Description(layers=(entry("stem", sample=2, height=4),)), residual(), 8)
    assert found["fork.concat"] == found["block.add"] == "sample 2 x height 4"
    assert found["pool"] == "sample 2 x height 4"
    assert found["fc"] == "sample 2 x replicated 4"


def test_consumers_decide_where_nothing_comes_from_upstream():
    found = splits(Description(layers=(entry("fc", sample=4, channel=2),)), residual(), 8)
    assert found["pool"] == "sample 4 x channel 2"
    assert found["fork.concat"] == "sample 4 x replicated 2"
    assert found["stem"] == "sample 4 x replicated 2"
    assert found["loss"] == "sample 4 x replicated 2"


def test_a_dim_with_too_few_positions_is_replicated():
    graph = make_graph(
        IMAGE,
        [
            ("conv", "conv", {"filters": 8, "kernel": 1}),
            ("pool", "pool", {"kernel": 8}),
            ("fc", "linear", {"filters": 10}),
        ],
        8,
    )
    strategy, notes = built(Description(layers=(entry("conv", sample=2, height=4),)), graph, (8,))
    assert str(strategy.distributions["pool"]) == "sample 2 x replicated 4"
    assert len(notes) == 1
    assert "a split of height 4 ways ends where a pool layer cannot follow" in notes[0]


def test_samples_are_inherited_before_other_dims():
    conv = {"filters": 8, "kernel": 1}
    rows = [("a", "conv", conv), ("b", "conv", conv, ["input"]), ("sum", "add", {}, ["a", "b"])]
    layers = (entry("a", filter=8), entry("b", sample=4, filter=2))
    strategy, notes = built(Description(layers=layers), make_graph(IMAGE, rows, 8), (8,))
    assert str(strategy.distributions["sum"]) == "sample 4 x channel 2"
    assert any("not inherited" in note or "same work" in note for note in notes)


def test_nothing_said_is_data_parallel():
    assert set(splits(Description(), residual(8), 4, 2).values()) == {"sample 8"}
    strategy, notes = built(Description(), residual(2), (4, 2))
    assert strategy.distributions["stem"].degrees == {"sample": (1, 2)}
    assert "2 samples of a micro-batch are too few for 8 devices" in notes[0]
    found = splits(Description(default="replicated"), residual(2), 4, 2)
    assert set(found.values()) == {"replicated 8"}


@pytest.mark.parametrize(
    ("totals", "shape", "expected"),
    [
        ({"sample": 4, "filter": 2}, (4, 2), {"filter": (2, 1), "sample": (2, 2)}),
        ({"sample": 2, "filter": 4}, (4, 2), {"filter": (4, 1), "sample": (1, 2)}),
        ({"sample": 2, "filter": 8}, (4, 4), {"filter": (4, 2), "sample": (1, 2)}),
        ({"filter": 2, "channel": 4}, (4, 2), {"channel": (4, 1), "filter": (1, 2)}),
        ({"sample": 3}, (4, 2), None),
        ({"sample": 3, "filter": 2}, (2, 3), {"filter": (2, 1), "sample": (1, 3)}),
        ({"sample": 4, "filter": 4}, (4, 2), None),
    ],
)
def test_totals_take_inner_levels_first(totals, shape, expected):
    assert degrees_on_levels(totals, shape) == expected


def test_degrees_at_each_level_are_taken_as_they_are():
    layers = (entry("stem", sample=(4, 1), filter=(1, 2)),)
    strategy, _ = build_strategy(Description(layers=layers), residual(), (4, 2))
    assert strategy.distributions["stem"].degrees == {"sample": (4, 1), "filter": (1, 2)}


@pytest.mark.parametrize(("samples", "ways"), [(16, (4, 4)), (4, (1, 4)), (7, (1, 4)), (8, (2, 4))])
def test_samples_go_to_outer_levels(samples, ways):
    assert data_parallel(samples, (4, 4)) == Distribution(degrees={"sample": ways}, shape=(4, 4))


def test_splits_stop_between_stages_of_different_shapes():
    stages = (
        StageEntry(layers=("stem", "block"), devices=(0, 4)),
        StageEntry(layers=("fork", "pool", "fc", "loss"), devices=(4, 6)),
    )
    description = Description(stages=stages, layers=(entry("stem", filter=4),))
    strategy, _ = build_strategy(description, residual(), (8,))
    assert strategy.stages[1].shape == (2,)
    assert str(strategy.distributions["block.conv"]) == "channel 4"
    assert str(strategy.distributions["fork.conv"]) == "sample 2"
