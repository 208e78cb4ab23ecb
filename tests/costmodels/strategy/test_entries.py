"""Entries of a strategy that contradict each other or the network, and those that do not."""

from __future__ import annotations

import pytest
from written_strategies import entry, residual, splits, stages

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.strategy import (
    Description,
    LayerEntry,
    MemoryConfig,
    StageEntry,
    SubgraphEntry,
    build_strategy,
)


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
