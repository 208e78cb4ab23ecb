"""Tensor parallelism across hosts: searched where a batch has no more samples than hosts."""

from __future__ import annotations

import json

import planner
from planner.joint.ways_inside import insides
from planner.request.request import make_request
from planner.request.setting import resolve

QUESTION = {
    "gpus": 16,
    "cluster": "dgx-a100",
    "global_batch_size": 1,
    "precision": "bf16",
    "optimizer": "adam",
}
# so large that links between hosts cost less than what more devices compute at once
LARGE = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 16,
    "num_hidden_layers": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def test_one_sequence_uses_the_devices_of_several_hosts(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LARGE))
    # what is forbidden leaves splits by degrees alone, which a user can ask for by hand
    plan = planner.optimize(str(path), **QUESTION, forbid="context")
    by_hand = planner.simulate(str(path), tp=16, **QUESTION)
    assert plan.step_time_s <= by_hand.step_time
    assert plan.search.lower_bound_s <= by_hand.step_time


def test_replicas_cross_hosts_where_there_are_samples_for_them():
    def degrees(batch: int) -> set[int]:
        question = {**QUESTION, "model": "gpt2", "global_batch_size": batch}
        return {one.tp for one in insides(resolve(make_request("optimize", question)))}

    assert degrees(2) == {1, 2, 4, 8, 16}
    assert degrees(4) == {1, 2, 4, 8}


def test_what_sends_less_than_gradients_crosses_hosts_too(tmp_path):
    config = {
        "model_type": "mixtral",
        "hidden_size": 768,
        "intermediate_size": 2304,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "num_hidden_layers": 1,
        "vocab_size": 50257,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    question = {**QUESTION, "global_batch_size": 4, "cluster": "aws-p3.2xlarge", "gpus": 2}
    question |= {"precision": "fp16", "runtime": "torchtitan"}
    plan = planner.optimize(str(path), **question)
    by_hand = planner.simulate(str(path), tp=2, **question)
    assert plan.step_time_s <= by_hand.step_time
    assert plan.search.lower_bound_s <= by_hand.step_time
