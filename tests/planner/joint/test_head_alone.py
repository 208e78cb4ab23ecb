"""A last stage without a block: what comes after the blocks may take as long as several of them."""

from __future__ import annotations

import json

import pytest

import planner
from costmodels.strategy.blocks import block_of

# The head takes as long as two of the three blocks.
NETWORK = {
    "model_type": "mixtral",
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "num_hidden_layers": 3,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


# Attention whose layers are in no block.
WITHOUT_BLOCKS = """
name = "bare"
input = { sequence = 16 }

[[layer]]
name = "tokens"
kind = "embedding"
rows = 100
filters = 64

[[layer]]
name = "qkv"
kind = "linear"
filters = 192

[[layer]]
name = "attention"
kind = "attention"
heads = 4

[[layer]]
name = "head"
kind = "linear"
filters = 100

[[layer]]
name = "loss"
kind = "loss"
"""


def test_attention_without_blocks_is_planned(tmp_path):
    path = tmp_path / "bare.toml"
    path.write_text(WITHOUT_BLOCKS)
    plan = planner.optimize(str(path), gpus=2, global_batch_size=8)
    assert plan.search.lower_bound_s <= plan.step_time_s


@pytest.mark.slow
def test_the_last_stage_may_have_no_block(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(NETWORK))
    question = {"gpus": 8, "cluster": "aws-p4de.24xlarge", "global_batch_size": 32}
    question |= {"runtime": "megatron-core", "optimizer": "sgd", "forbid": "expert,recompute"}
    plan = planner.optimize(str(path), **question, keep="pp=2")
    assert [any(map(block_of, stage.layers)) for stage in plan.stages] == [True, False]
    # with a block in each stage
    question |= {"dp": 4, "pp": 2, "micro_batches": 4, "zero": 1, "stage_blocks": (2, 1)}
    del question["forbid"]
    other = planner.simulate(str(path), **question)
    assert plan.step_time_s < 0.94 * other.step_time


def test_a_head_alone_is_no_faster_where_its_gradients_take_long(tmp_path):
    path = tmp_path / "config.json"
    rows = {"model_type": "llama", "hidden_size": 768, "intermediate_size": 1536}
    rows |= {"num_attention_heads": 12, "num_key_value_heads": 12, "num_hidden_layers": 3}
    rows |= {"vocab_size": 32000, "tie_word_embeddings": False}
    path.write_text(json.dumps({**rows, "max_position_embeddings": 4096}))
    question = {"gpus": 6, "cluster": "aws-p3.2xlarge", "global_batch_size": 12}
    question |= {"runtime": "megatron-core", "optimizer": "adam", "precision": "fp16"}
    plan = planner.optimize(str(path), **question)
    degrees = {"dp": 3, "pp": 2, "micro_batches": 4, "zero": 1}
    # the last stage alone is the lightest cut by work, but not with what is reduced after it
    for blocks in ((2, 1), (3, 0), "equal"):
        other = planner.simulate(str(path), **question, **degrees, stage_blocks=blocks)
        assert plan.step_time_s <= other.step_time * 1.0001
