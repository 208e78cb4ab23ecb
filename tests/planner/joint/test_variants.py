"""Zero-bubble schedules and all-to-all context parallelism, tried of the fastest choices."""

from __future__ import annotations

import json

import pytest

import planner
from costmodels.errors import InputError
from costmodels.simulation import Runtime, load_runtime

ASKED = {"precision": "fp16", "optimizer": "adam"}
# Hosts of one GPU on slow links train by stages; a pipeline of few micro-batches waits a lot.
STAGES = {**ASKED, "gpus": 4, "cluster": "aws-p3.2xlarge", "global_batch_size": 4}
# Of two hosts, each has half of a sequence; keys and values of all positions are more to send.
HALVES = {**ASKED, "gpus": 8, "cluster": "lassen", "global_batch_size": 1, "keep": "cp=2,tp=4"}


def _config(folder, layers, positions):
    path = folder / "config.json"
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": layers,
        "vocab_size": 8000,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_backward_passes_of_weights_fill_the_bubble(tmp_path):
    model = _config(tmp_path, 8, 1024)
    plan = planner.optimize(model, **STAGES)
    without = planner.optimize(model, **STAGES, forbid="zero-bubble")
    assert (plan.schedule.kind, without.schedule.kind) == ("zero-bubble", "1f1b")
    assert plan.step_time_s < 0.9 * without.step_time_s
    assert planner.simulate(plan).step_time == plan.step_time_s
    # No bound of choices is one of such a schedule.
    assert not plan.search.proven_optimal
    assert plan.search.lower_bound_s < plan.step_time_s
    kept = planner.optimize(model, **STAGES, keep="schedule=1f1b")
    assert kept.step_time_s == without.step_time_s


@pytest.mark.parametrize("runtime", ["megatron-core", "nanotron"])
def test_runtimes_have_the_schedules_that_their_tables_say(tmp_path, runtime):
    plan = planner.optimize(_config(tmp_path, 8, 1024), **STAGES, runtime=runtime)
    assert plan.schedule.kind != "zero-bubble"
    assert "zero-bubble" in load_runtime(runtime).lacks


def test_what_a_runtime_lacks_is_one_of_what_is_tried():
    with pytest.raises(InputError, match="some of zero-bubble, all-to-all but is 'gpipe'"):
        Runtime(name="mine", lacks=("gpipe",))


def test_heads_are_brought_together_where_keys_and_values_are_more(tmp_path):
    model = _config(tmp_path, 4, 4096)
    plan = planner.optimize(model, **HALVES)
    without = planner.optimize(model, **HALVES, forbid="all-to-all")
    splits = [
        {str(one.distribution) for one in of.layers.values() if one.kind == "attention"}
        for of in (plan, without)
    ]
    assert (plan.ring_attention, without.ring_attention) == (False, True)
    assert splits[0] != splits[1]
    assert plan.step_time_s < without.step_time_s
    assert planner.simulate(plan).step_time == plan.step_time_s
