"""Weights cut over some of the ranks that hold them, searched."""

from __future__ import annotations

import dataclasses
import json

import pytest
from msgspec.structs import replace

import planner
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.hybrid import shard_sizes, with_fewer_shards
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.search import JointSearch
from planner.joint.ways_inside import insides
from planner.joint.wishes import Wishes, parse_keep
from planner.planning.options import SearchOptions
from planner.planning.staged import tried
from planner.report.sentences import training_sentence
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 6,
    "vocab_size": 32000,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
# Two hosts of eight GPUs that share one slow link, and weights that no GPU can hold alone.
QUESTION = {
    "gpus": 16,
    "cluster": "aws-p3.16xlarge",
    "global_batch_size": 64,
    "precision": "fp16",
    "optimizer": "adam",
    "memory": "8 GiB",
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def _best(config, keep, *forbid):
    """The best way to train on all GPUs."""
    setting = resolve(make_request("optimize", {**QUESTION, "model": config}))
    search = JointSearch(
        setting=setting,
        runtime=searched_runtime(setting),
        options=SearchOptions(),
        deadline=Deadline(None),
        wishes=Wishes(keep=parse_keep(keep), forbid=("offload", "recompute", *forbid)),
    )
    result = search.run()
    assert result.best is not None
    return result


def test_weights_are_cut_within_hosts_where_links_between_them_are_slow(config):
    free, without, kept = (
        _best(config, "zero=3,tp=1,pp=1"),
        _best(config, "zero=3,tp=1,pp=1", "hybrid"),
        _best(config, "shard_size=4,tp=1,pp=1"),
    )
    sizes = [one.best.degrees.shard_size for one in (free, without, kept)]
    assert sizes == [8, None, 4]
    assert free.best.seconds < 0.9 * without.best.seconds
    assert free.best.seconds <= kept.best.seconds
    assert free.bound <= free.best.seconds
    assert free.bound <= without.bound


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize("zero", [1, 2])
def test_state_is_cut_within_hosts_too_where_weights_are_whole(zero):
    asked = {"model": "gpt2", "gpus": 16, "cluster": "proteus-hc2", "global_batch_size": 32}
    free, without = (
        planner.optimize(**asked, keep=f"zero={zero}", forbid=forbid) for forbid in (None, "hybrid")
    )
    assert {layer.shard_size for layer in free.layers.values() if layer.sharded} == {8}
    assert free.step_time_s < 0.95 * without.step_time_s
    assert free.search.lower_bound_s <= free.step_time_s
    assert planner.simulate(free).step_time == free.step_time


def test_a_plan_says_over_how_many_gpus_weights_are_cut(config):
    asked = {**QUESTION, "model": config}
    plan = planner.optimize(**asked, keep="zero=3,shard_size=4,tp=1,pp=1,recompute=none")
    assert {layer.shard_size for layer in plan.layers.values() if layer.sharded} == {4}
    assert "ZeRO 3 over 4 GPUs" in training_sentence(plan)
    assert planner.simulate(plan).step_time == plan.step_time


@pytest.mark.ci_cases(2)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_estimates_of_all_shards_are_near_the_simulation_and_bounds_below_it(config, zero):
    setting = resolve(make_request("optimize", {**QUESTION, "model": config}))
    runtime = searched_runtime(setting)
    estimates = Estimates(setting, runtime)
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors, hybrid=True)
    wanted = [
        choice
        for choice in choices(setting, list(insides(setting)))
        if choice.zero == zero and choice.chunks == 1 and choice.samples == 2
        if choice.inside.recompute == "none" and choice.inside.tp < 4 and choice.pp < 4
    ]
    off, count = [], 0
    for choice in wanted:
        inside = estimates.insides(zero).of(choice.inside, choice.samples)
        sizes = shard_sizes(choice, inside, estimates.exchanges)
        assert sizes == sorted(sizes, reverse=True)
        assert all(choice.dp % size == 0 for size in sizes)
        held = 0.0
        for way in bounds.shards(choice):
            one = estimates.of(way)
            found, reason = tried(setting, one.choice.degrees, choice_runtime(runtime, zero))
            assert found is not None, reason
            assert bounds.of(choice, fitting=False) <= found.seconds
            assert bounds.of(way, fitting=False, alone=True) <= found.seconds
            inside = estimates.insides(zero).of(way.inside, way.samples)
            assert bounds.memory.of(way, inside) <= found.peak_memory
            assert one.memory >= held  # fewer ranks hold more
            held = one.memory
            off.append(abs(one.seconds / found.seconds - 1.0))
            count += way != choice
    assert count > 8
    assert sorted(off)[len(off) // 2] < 0.02


def test_none_are_left_where_few_ranks_hold_the_same_weights(config):
    setting = resolve(make_request("optimize", {**QUESTION, "model": config}))
    estimates = Estimates(setting, searched_runtime(setting))
    rows = [one for one in choices(setting, list(insides(setting))) if one.zero == 3]
    few = next(one for one in rows if one.dp == 2)
    inside = estimates.insides(3).of(few.inside, few.samples)
    assert shard_sizes(few, inside, estimates.exchanges) == []
    cut = next(one for one in rows if one.dp == 16)
    inside = estimates.insides(3).of(cut.inside, cut.samples)
    assert shard_sizes(cut, inside, estimates.exchanges) == [8, 4, 2]
    for other in (
        replace(cut, zero=0),
        replace(cut, shard_size=4),
        replace(cut, offload=("weights",)),
    ):
        assert shard_sizes(other, inside, estimates.exchanges) == []


def test_as_many_blocks_are_computed_again_as_fewer_shards_take_to_fit(config):
    def asked(memory):
        setting = resolve(make_request("optimize", {**QUESTION, "model": config, "memory": memory}))
        estimates = Estimates(setting, searched_runtime(setting))
        rows = choices(setting, list(insides(setting, ("none",))))
        return estimates, next(one for one in rows if one.zero == 3 and one.dp == 16)

    estimates, choice = asked(None)
    few = replace(choice, shard_size=8)
    again = dataclasses.replace(choice.inside, recompute="full")
    everything = replace(few, inside=again)
    least, most = estimates.of(everything).memory, estimates.of(few).memory
    assert estimates.of(choice).memory < least  # so that all ranks together need not
    estimates, choice = asked(f"{(least + most) / 2**31:.4f} GiB")
    whole = [estimates.of(choice)]
    assert with_fewer_shards(estimates, whole) == whole
    found = with_fewer_shards(estimates, whole, partly=True)
    part = [one.choice for one in found if one.choice.shard_size == 8]
    fits = [
        number
        for number in range(1, estimates.most_again(few))
        if estimates.of(replace(everything, again=number)).memory
        <= estimates.setting.cluster.device.memory
    ]
    assert replace(everything, again=min(fits)) in part
