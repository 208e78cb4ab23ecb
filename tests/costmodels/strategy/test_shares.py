"""Stages by shares of the weights, as nanotron fills them."""

from __future__ import annotations

from collections import Counter

import pytest

from costmodels.errors import InputError
from costmodels.graph import Graph, build_graph
from costmodels.strategy.blocks import block_of
from costmodels.strategy.shares import cut_by_shares
from planner.models.configs import transformer


def llama(blocks: int, vocabulary: int) -> Graph:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": blocks,
        "intermediate_size": 256,
        "vocab_size": vocabulary,
        "max_position_embeddings": 32,
    }
    network = transformer(config, "a test", name="test", source="a test", fixed={}).build("test")
    return build_graph(network, 1)


def blocks_of(graph: Graph, parts: int, full_when: str = "reached") -> list[int]:
    rows = cut_by_shares(graph, parts, full_when)
    assert [name for row in rows for name in row] == [x.name for x in graph.compute_layers]
    return [len(Counter(block_of(name) for name in row if block_of(name))) for row in rows]


def test_a_large_head_weighs_as_many_blocks_as_it_has_weights():
    # a block has 4 h^2 + 3 h f = 65,536 weights, the head as many as four blocks
    graph = llama(16, 4 * 65536 // 64)
    assert blocks_of(graph, 2) == [10, 6]
    assert blocks_of(graph, 4) == [5, 5, 5, 1]
    assert blocks_of(graph, 8) == [3, 2, 3, 2, 3, 2, 1, 0]
    assert blocks_of(graph, 1) == [16]


def test_a_stage_may_have_to_exceed_its_share():
    graph = llama(16, 4 * 65536 // 64)
    assert blocks_of(graph, 2, "exceeded") == [11, 5]
    assert blocks_of(graph, 4, "exceeded") == [6, 5, 5, 0]
    assert blocks_of(graph, 8, "exceeded") == [3, 3, 2, 3, 2, 3, 0, 0]
    assert blocks_of(graph, 1, "exceeded") == [16]
    # no share is exact
    assert blocks_of(llama(16, 65536 // 64), 3, "exceeded") == blocks_of(llama(16, 65536 // 64), 3)


def test_no_stage_computes_the_loss_alone():
    rows = cut_by_shares(llama(16, 4 * 65536 // 64), 8)
    assert rows[-1] == ("norm", "head", "loss")
    assert len(cut_by_shares(llama(16, 4 * 65536 // 64), 16)) == 16


def test_a_stage_that_would_idle_gets_what_comes_after_the_last_block():
    assert blocks_of(llama(4, 64), 4) == [2, 1, 1, 0]


def test_more_stages_than_can_be_filled_are_refused():
    with pytest.raises(InputError, match="choose fewer"):
        cut_by_shares(llama(2, 64), 8)
