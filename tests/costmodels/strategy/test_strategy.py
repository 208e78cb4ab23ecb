"""Splits follow from a few, contradictions are found, pipelines are cut as evenly as can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import graph as make_graph

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph, build_graph
from costmodels.strategy import (
    Description,
    LayerEntry,
    MemoryConfig,
    StageEntry,
    Strategy,
    SubgraphEntry,
    build_strategy,
    cut_graph,
    data_parallel,
    degrees_on_levels,
    describe_strategy,
    hybrid,
    propagate,
    shared_weights,
    single_stage,
    stage_shape,
)
from costmodels.strategy.cut import crossing_tensors, cut_evenly
from costmodels.strategy.place import block_shape
from costmodels.strategy.strategy import Stage
from costmodels.strategy.tree import compress, find_nodes, more_specific, strategy_tree
from planner.models import load_network
from planner.notes import words

IMAGE = {"channel": 3, "height": 16, "width": 16}


@pytest.fixture(scope="module")
def gpt() -> Graph:
    return build_graph(load_network("gpt2"), 16)


@pytest.fixture(scope="module")
def resnet() -> Graph:
    return build_graph(load_network("resnet50"), 16)


def residual(batch: int = 8) -> Graph:
    """A residual block between two convolutions, with a fork that is joined by channels."""
    conv = {"filters": 8, "kernel": 3, "padding": 1}
    return make_graph(
        IMAGE,
        [
            ("stem", "conv", conv),
            ("block.conv", "conv", conv),
            ("block.bn", "batch_norm", {}),
            ("block.add", "add", {}, ["block.bn", "stem"]),
            ("fork.conv", "conv", conv),
            ("fork.concat", "concat", {}, ["fork.conv", "block.add"]),
            ("pool", "global_pool", {}),
            ("fc", "linear", {"filters": 10}),
            ("loss", "loss", {}),
        ],
        batch,
    )


def entry(name: str, **partition: int | tuple[int, ...]) -> LayerEntry:
    return LayerEntry(name=name, partition=partition, label=f'[[layer]] "{name}"')


def built(
    description: Description, graph: Graph, shape: Sequence[int]
) -> tuple[Strategy, tuple[str, ...]]:
    """A strategy, and its notes in words."""
    strategy, notes = build_strategy(description, graph, shape)
    return strategy, tuple(words(note) for note in notes)


def splits(description: Description, graph: Graph, *shape: int) -> dict[str, str]:
    strategy, _ = build_strategy(description, graph, shape)
    return {name: str(distribution) for name, distribution in strategy.distributions.items()}


# the tree


def test_tree_selects_layers_and_subgraphs(gpt):
    tree = strategy_tree([layer.name for layer in gpt.compute_layers])
    assert tree.layers == tuple(layer.name for layer in gpt.compute_layers)
    (attention,) = find_nodes(tree, "h.3.attn")
    assert attention.is_layer
    assert attention.own_layers == ("h.3.attn",)
    below = {"h.3.attn", "h.3.attn.c_attn", "h.3.attn.c_proj", "h.3.attn.dropout"}
    assert set(attention.layers) == below
    assert [n.path for n in find_nodes(tree, "h.2-4")] == ["h.2", "h.3", "h.4"]
    assert [n.path for n in find_nodes(tree, "h.1?.ln_*")] == [
        f"h.1{i}.ln_{j}" for i in "01" for j in "12"
    ]
    # a shell pattern stays within its segment
    assert find_nodes(tree, "h.*_attn") == ()
    assert find_nodes(tree, "") == (tree,)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("h.3", "h", True),
        ("h.3", "h.*", True),
        ("h.0-5", "h.*", True),
        ("h.3", "h.0-5", True),
        ("h.*", "h.*", False),
        ("h.*.attn", "h.3", True),
        ("*.3", "h.*", False),
        ("h.*", "*.3", False),
        ("h", "", True),
    ],
)
def test_more_specific(first, second, expected):
    assert more_specific(first, second) is expected
    assert not (more_specific(first, second) and more_specific(second, first))


@given(st.sets(st.integers(0, 9), min_size=1), st.sets(st.integers(0, 9)))
def test_compressed_patterns_select_the_same(chosen, others):
    names = [f"a.{i}.conv" for i in sorted(chosen | others)] + ["a.norm.conv"]
    tree = strategy_tree(names)
    wanted = [f"a.{i}.conv" for i in sorted(chosen)]
    found = [node.path for pattern in compress(tree, wanted) for node in find_nodes(tree, pattern)]
    assert sorted(found) == sorted(wanted)


# propagation


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


# contradictions


def error_of(description: Description, graph: Graph, *shape: int) -> str:
    with pytest.raises(InputError) as caught:
        build_strategy(description, graph, shape)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_equally_specific_entries_must_agree(gpt):
    name = "h.*.attn.c_attn"
    first = LayerEntry(name=name, partition={"sample": 8}, label="one")
    second = LayerEntry(name=name, partition={"filter": 8}, label="two")
    message = error_of(Description(layers=(first, second)), gpt, 8)
    assert "one and two" in message
    assert "partition of layer 'h.0.attn.c_attn' but say sample 8 and filter 8" in message
    # the same split written another way is no contradiction, a more specific entry overrules
    same = LayerEntry(name=name, partition={"sample": (8,)}, label="two")
    deeper = LayerEntry(name="h.3.attn.c_attn", partition={"filter": 8}, label="three")
    found = splits(Description(layers=(first, same, deeper)), gpt, 8)
    assert found["h.2.attn.c_attn"] == "sample 8"
    assert found["h.3.attn.c_attn"] == "filter 8"


@pytest.mark.parametrize(
    ("bad", "parts"),
    [
        (entry("h.*.atn.c_attn", sample=2), ["fits none", "'h.*.attn.c_attn'"]),
        (entry("head", sample=8, filter=4), ["8 x 4 = 32 ways", "has devices, 8"]),
        (entry("head", sample=16), ["splits 16 ways", "has devices, 8"]),
        (entry("head", sample=3), ["divide the devices", "sample = 3"]),
        (entry("head", sample=(2, 2)), ["each of the 1 levels", "[2, 2]"]),
        (entry("head", height=2), ["'head' (linear) cannot be split by height", "use sample"]),
        (entry("head", samples=2), ["splits 'samples'", "use one of sample"]),
        (entry("head", sample=0), ["at least 1 way", "0 ways"]),
    ],
)
def test_entries_that_cannot_be(gpt, bad, parts):
    message = error_of(Description(layers=(bad,)), gpt, 8)
    for part in [bad.label, *parts]:
        assert part in message


def test_an_entry_names_a_layer_with_too_few_positions():
    message = error_of(Description(layers=(entry("fc", sample=8),)), residual(4), 8)
    assert '[[layer]] "fc" does not fit' in message
    assert "4 sample positions, fewer than the 8" in message


def stages(*rows: tuple[tuple[str, ...], tuple[int, int] | None]) -> tuple[StageEntry, ...]:
    return tuple(
        StageEntry(layers=layers, devices=devices, label=f"[[stage]] {i}")
        for i, (layers, devices) in enumerate(rows, start=1)
    )


REST = ("fork", "pool", "fc", "loss")


@pytest.mark.parametrize(
    ("given_stages", "parts"),
    [
        (
            stages((("stem", "block"), None), (("block.add", *REST), None)),
            ["'block.add' must be in one stage", "[[stage]] 1 and [[stage]] 2"],
        ),
        (
            stages((("stem",), None), (REST, None)),
            ["'block.conv' and 2 more is in none", "[[stage]] 1"],
        ),
        (
            stages((("block",), None), (("stem", *REST), None)),
            [
                "order of the forward pass",
                "'block.conv' of [[stage]] 1 reads 'stem' of [[stage]] 2",
            ],
        ),
        (
            stages((("stem", "block"), (0, 4)), (REST, (2, 4))),
            ["[[stage]] 1 has 0-3 and [[stage]] 2 has 2-3"],
        ),
        (stages((("stem", "block"), (0, 4)), (REST, None)), ["all stages or none", "[[stage]] 2"]),
        (stages((("stem", "block"), (0, 4)), (REST, (4, 12))), ["[[stage]] 2", "0 to 7", "4-11"]),
        (stages((("stem", "block", *REST), (2, 7))), ["whole blocks", "4 x 2", "2-6"]),
        (stages((("stem", "blok"), None), (REST, None)), ["[[stage]] 1", "'blok'", "'block'"]),
    ],
)
def test_stages_that_cannot_be(given_stages, parts):
    message = error_of(Description(stages=given_stages), residual(), 4, 2)
    for part in parts:
        assert part in message


def test_shared_devices_are_interleaved():
    rows = stages((("stem", "block"), (0, 8)), (REST, (0, 8)))
    strategy, _ = build_strategy(Description(stages=rows), residual(), (8,))
    assert strategy.schedule.kind == "interleaved"
    message = error_of(Description(stages=rows, kind="gpipe"), residual(), 8)
    assert "'interleaved' but the kind of [schedule] is 'gpipe'" in message


def test_layers_must_be_on_the_devices_of_their_stage():
    bad = LayerEntry(name="fc", partition={"sample": 2}, devices=(0, 4), label="here")
    rows = stages((("stem", "block"), (0, 4)), (REST, (4, 8)))
    message = error_of(Description(stages=rows, layers=(bad,)), residual(), 8)
    assert "here must be on all devices of the stage of 'fc', 4-7, but is on 0-3" in message


def test_subgraphs_hand_down_and_deeper_ones_overrule(gpt):
    description = Description(
        subgraphs=(
            SubgraphEntry(name="", state=True, gradients=False, weights=False),
            SubgraphEntry(name="h.*", recompute=True),
            SubgraphEntry(name="h.3", recompute=False, weights=True),
            SubgraphEntry(name="h.4.attn", recompute=False),
        )
    )
    strategy, _ = build_strategy(description, gpt, (8,))
    (stage,) = strategy.stages
    starts = [segment[0] for segment in stage.recompute]
    assert starts == [
        *("h.0.ln_1", "h.1.ln_1", "h.2.ln_1", "h.4.ln_1", "h.4.add_1"),
        *(f"h.{i}.ln_1" for i in range(5, 12)),
    ]
    assert stage.recompute[3] == ("h.4.ln_1",)
    assert strategy.memory["h.2.ln_1"] == MemoryConfig(state=True)
    assert strategy.memory["h.3.ln_1"] == MemoryConfig(state=True, weights=True)
    # what has no weight has nothing to cut
    assert "h.3.attn" not in strategy.memory


def test_subgraphs_that_clash():
    clash = (
        SubgraphEntry(name="block", recompute=True, label="one"),
        SubgraphEntry(name="block", recompute=False, label="two"),
    )
    message = error_of(Description(subgraphs=clash), residual(), 8)
    assert "one and two" in message
    assert "recompute of layer 'block.conv' but say yes and no" in message
    rows = (StageEntry(layers=("*",), recompute=(("block.*",),), label="stage"),)
    message = error_of(Description(stages=rows, subgraphs=clash[:1]), residual(), 8)
    assert "stage and one" in message
    assert "'block.conv' is recomputed" in message


def test_both_ways_of_giving_stages_are_one_too_many():
    with pytest.raises(InputError, match=r"one by one, as \[\[stage\]\] 1"):
        Description(stages=stages((("stem",), None)), groups=2)


# pipelines


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


# usual strategies


def test_hybrid_places_tensor_inside_data_inside_pipeline(gpt):
    strategy = hybrid(gpt, (8, 4), dp=4, tp=4, pp=2, micro_batches=8)
    assert [stage.group for stage in strategy.stages] == [(0, 16), (16, 32)]
    assert strategy.distributions["h.0.mlp.c_fc"].degrees == {"sample": (2, 2), "filter": (4, 1)}
    assert strategy.schedule.micro_batches == 8
    assert shared_weights(gpt, strategy) == (("token_embedding", (0, 1)),)
    assert shared_weights(gpt, hybrid(gpt, (8, 4), dp=16, tp=2)) == ()


def test_interleaved_hybrid_goes_round_robin(gpt):
    strategy = hybrid(
        gpt, (8, 2), dp=8, pp=2, chunks=3, schedule_kind="interleaved", micro_batches=2
    )
    assert [stage.first_device for stage in strategy.stages] == [0, 8] * 3
    assert strategy.num_devices == 16
    with pytest.raises(InputError, match="must be scheduled as 'interleaved'"):
        hybrid(gpt, (8, 2), dp=8, pp=2, chunks=3)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"dp": 4}, "must be the 8 devices but is 4 x 1 x 1 = 4"),
        ({"dp": 8, "pp": 1, "chunks": 0}, "must be the 8 devices"),
        ({"dp": 8}, "1 sample positions, fewer than the 8"),
    ],
)
def test_hybrids_that_cannot_be(degrees, message):
    with pytest.raises(InputError, match=message):
        hybrid(build_graph(load_network("gpt2"), 1), (8,), **degrees)


def test_single_stage_holds_all_layers(resnet):
    shape = (4, 2)
    split = {la.name: data_parallel(16, shape) for la in resnet.compute_layers}
    strategy = single_stage(split, shape)
    strategy.check(resnet)
    assert strategy.stages == (Stage(layers=tuple(split), first_device=0, shape=shape),)


# any strategy


NAMES = [layer.name for layer in residual().compute_layers]
PARTITIONS = st.dictionaries(
    st.sampled_from(["sample", "filter", "channel", "height", "head"]),
    st.one_of(st.sampled_from([1, 2, 3, 4, 8]), st.tuples(st.integers(1, 4), st.integers(1, 2))),
    max_size=3,
)
ENTRIES = st.builds(
    lambda name, partition: LayerEntry(name=name, partition=partition, label=name),
    st.sampled_from([*NAMES, "*", "block", "block.*", "f*"]),
    PARTITIONS,
)


@given(
    st.lists(ENTRIES, max_size=4),
    st.integers(1, 3),
    st.integers(1, 2),
    st.sampled_from([2, 8]),
    st.sampled_from(["data", "replicated"]),
)
@settings(max_examples=300)
def test_any_description_is_valid_or_refused(entries, groups, chunks, batch, default):
    graph = residual(batch)
    description = Description(layers=tuple(entries), groups=groups, chunks=chunks, default=default)
    try:
        strategy, _ = build_strategy(description, graph, (4, 2))
    except InputError:
        return
    strategy.check(graph)
    assert list(strategy.distributions) == NAMES
    # what is written down of it makes the same strategy
    again, _ = build_strategy(describe_strategy(strategy, graph, (4, 2)), graph, (4, 2))
    assert again == strategy


def test_most_descriptions_of_the_test_above_are_accepted():
    accepted = 0
    for dim, ways in itertools.product(("sample", "filter"), (1, 2, 4, 8)):
        try:
            build_strategy(Description(layers=(entry("stem", **{dim: ways}),)), residual(), (4, 2))
            accepted += 1
        except InputError:
            pass
    assert accepted == 8


def test_propagation_refuses_what_a_layer_cannot_have():
    graph = residual()
    stage = Stage(layers=tuple(NAMES), first_device=0, shape=(16,))
    wanted = Distribution(degrees={"filter": (16,)}, shape=(16,))
    with pytest.raises(InputError, match="8 filter positions, fewer than the 16"):
        propagate(graph, (stage,), {"stem": wanted})
