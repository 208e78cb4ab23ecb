"""Zero-bubble schedules and all-to-all context parallelism, tried of the fastest choices."""

from __future__ import annotations

import json

import pytest

import planner
from costmodels.errors import InputError
from costmodels.simulation import Runtime, load_runtime
from planner.joint import ways_inside
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.runtimes import searched_runtime
from planner.joint.variants import is_variant, with_variants
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

ASKED = {"precision": "fp16", "optimizer": "adam"}
# Hosts of one GPU on slow links train by stages; a pipeline of few micro-batches waits a lot.
STAGES = {**ASKED, "gpus": 4, "cluster": "aws-p3.2xlarge", "global_batch_size": 4}
# Of two hosts, each has half of a sequence; keys and values of all positions are more to send.
HALVES = {**ASKED, "gpus": 8, "cluster": "lassen", "global_batch_size": 1, "keep": "cp=4,tp=2"}


def _config(folder, layers, positions, hidden=2048, vocabulary=8000, shared=1):
    path = folder / "config.json"
    config = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_attention_heads": hidden // 128,
        "num_key_value_heads": hidden // 128 // shared,
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_backward_passes_of_weights_fill_the_bubble(tmp_path):
    model = _config(tmp_path, 8, 1024)
    plan = planner.optimize(model, **STAGES)
    without = planner.optimize(model, **STAGES, forbid="zero-bubble,gpipe")
    assert (plan.schedule.kind, without.schedule.kind) == ("zero-bubble", "1f1b")
    assert plan.step_time_s < 0.9 * without.step_time_s
    assert planner.simulate(plan).step_time == plan.step_time_s
    # The bound is of such schedules, too, and of all other cuts into stages of blocks.
    assert 0.75 * plan.step_time_s < plan.search.lower_bound_s < plan.step_time_s
    blocks = {"stage_blocks": (2, 3, 2, 1), "dp": 1, "pp": 4, "micro_batches": 4}
    other = planner.simulate(model, **STAGES, **blocks, schedule="zero-bubble")
    assert other.step_time >= plan.search.lower_bound_s
    kept = planner.optimize(model, **STAGES, keep="schedule=1f1b")
    assert kept.step_time_s == without.step_time_s
    kept = planner.optimize(model, **STAGES, keep="schedule=zero-bubble")
    assert kept.step_time_s == plan.step_time_s


@pytest.mark.parametrize("runtime", ["megatron-core", "nanotron"])
def test_runtimes_have_the_schedules_that_their_tables_say(tmp_path, runtime):
    plan = planner.optimize(_config(tmp_path, 8, 1024), **STAGES, runtime=runtime)
    assert plan.schedule.kind != "zero-bubble"
    assert "zero-bubble" in load_runtime(runtime).lacks


def test_what_a_runtime_lacks_is_one_of_what_is_tried():
    with pytest.raises(InputError, match="some of zero-bubble, all-to-all, gpipe but is 'pp'"):
        Runtime(name="mine", lacks=("pp",))


@pytest.mark.slow
def test_fewer_gpus_fill_bubbles_too(tmp_path):
    # with eight a stage is two devices, and bubbles are filled; sixteen have nothing as fast
    model = _config(tmp_path, 4, 128, hidden=1024, vocabulary=50257, shared=4)
    asked = {"precision": "bf16", "optimizer": "adam", "forbid": "accumulation"}
    inputs = {**asked, "cluster": "dgx-a100", "global_batch_size": 4}
    more, fewer = (planner.optimize(model, gpus=gpus, **inputs) for gpus in (16, 8))
    assert fewer.schedule.kind == "zero-bubble"
    assert (more.step_time_s, more.idle_gpus) == (fewer.step_time_s, 8)


@pytest.mark.slow
def test_no_step_with_some_heads_of_all_positions_undercuts_its_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(ways_inside, "SHORTEST_PART", 256)
    request = {"model": _config(tmp_path, 2, 512), **ASKED, "gpus": 4, "cluster": "lassen"}
    setting = resolve(make_request("optimize", {**request, "global_batch_size": 4}))
    runtime = searched_runtime(setting)
    estimates = Estimates(setting, runtime)
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    found = choices(setting, [one for one in insides(setting) if one.cp == 2], (0, 2))
    seen = set()
    for choice in filter(is_variant, with_variants(setting, found)):
        step, reason = tried(setting, choice.degrees, runtime)
        assert step is not None, reason
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        assert floors.floor(choice) <= step.seconds
        assert bounds.of(choice) <= step.seconds
        assert bounds.memory.of(choice, inside) <= step.peak_memory
        assert estimates.least(choice) <= estimates.of(choice).seconds
        seen.add((choice.inside.cp_kind, choice.schedule))
    assert len(seen) == 3


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
