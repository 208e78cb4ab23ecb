"""More GPUs never make a step slower: a number that divides nothing leaves some without work."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

import planner
from costmodels.cluster import load_cluster
from planner.cli.command import planner_command
from planner.errors import InfeasibleError
from planner.joint.answer import joint_plan
from planner.joint.fewer_gpus import FewerGpus
from planner.joint.hosts import on_gpus
from planner.joint.wishes import NO_WISHES
from planner.plan import Plan
from planner.planning.options import SearchOptions
from planner.request.request import make_request
from planner.request.setting import resolve
from search.problem.deadline import Deadline

QUESTION = {"cluster": "dgx-h100", "precision": "bf16", "optimizer": "adam"}
# Times are equal within that: see docs/search.md.
EQUAL = 1e-3
# Stands for a choice: how its layers and samples lie on devices, and which of those alike it is.
Way = namedtuple("Way", ("layout", "number"))
A_WAY = Way("data", 1)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "config.json"
    described = {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_hidden_layers": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(described))
    return str(path)


@pytest.fixture(scope="module")
def plans(config):
    return {n: planner.optimize(config, gpus=n, global_batch_size=64, **QUESTION) for n in (16, 24)}


@pytest.fixture(scope="module")
def kept(config):
    """Twelve replicas divide no batch of 64."""
    return planner.optimize(config, gpus=24, global_batch_size=64, keep="tp=2", **QUESTION)


@pytest.mark.slow
def test_a_number_of_gpus_that_divides_no_batch_is_not_slower_than_a_smaller_one(plans):
    few, more = plans[16], plans[24]
    assert more.step_time_s <= few.step_time_s * (1.0 + EQUAL)
    assert more.gpus + more.idle_gpus == 24
    # no usual strategy divides the batch by 24: it is compared with those on the GPUs at work
    assert any(one.fits and one.step_time_s for one in more.baselines)
    assert more.search.lower_bound_s <= more.step_time_s
    assert few.idle_gpus == 0


# What numbers of GPUs promise, as parts of a step: of the first nothing is estimated.
PROMISES = ((0.0, 1), (0.5, 4), (0.6, 2))


def test_smaller_numbers_are_told_of_the_best_plan_so_far(tmp_path, monkeypatch):
    tiny = {"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 100}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**tiny, "n_positions": 32}))
    asked = {"model": str(path), "cluster": "aws-p3.2xlarge", "gpus": 4, "global_batch_size": 4}
    setting = resolve(make_request("optimize", asked))
    whole = joint_plan(setting, SearchOptions())
    seconds, limits = whole.step_time_s, []

    def answered(part, limit):
        limits.append(limit)
        return dataclasses.replace(whole, step_time_s=(0.8 if part.gpus == 3 else 0.9) * seconds)

    parts = [(0.5 * seconds, None, on_gpus(setting, count)) for count in (3, 2)]
    monkeypatch.setattr(FewerGpus, "_promising", lambda self, best, told: (parts, math.inf))
    fewer = FewerGpus(setting, NO_WISHES, None, None, Deadline(None))
    plan = fewer.faster_plan(whole, answered)
    assert limits == [seconds, 0.8 * seconds]
    assert (plan.step_time_s, plan.idle_gpus) == (0.8 * seconds, 1)


@pytest.mark.slow
def test_what_is_asked_for_without_an_estimate_takes_no_place_of_what_promises(monkeypatch):
    question = {"model": "gpt2", "gpus": 8, "cluster": "dgx-h100", "global_batch_size": 16}
    setting = resolve(make_request("optimize", question))
    plan = planner.optimize("gpt2", gpus=8, cluster="dgx-h100", global_batch_size=16)
    faster = dataclasses.replace(plan, gpus=2, step_time_s=0.8 * plan.step_time_s)
    rows = [(part * plan.step_time_s, None, on_gpus(setting, n)) for part, n in PROMISES]
    monkeypatch.setattr(FewerGpus, "_promising", lambda self, best, told: (rows, math.inf))

    def answered(part, limit):
        return (
            faster if part.gpus == 2 else InfeasibleError("none fits", missing_bytes=1.0, layer="")
        )

    found = FewerGpus(setting, NO_WISHES, None, None, Deadline(None)).faster_plan(plan, answered)
    assert found.step_time_s == faster.step_time_s


@pytest.mark.parametrize(("usual", "least"), [(1.5, 0.8), (0.7, 0.7)])
def test_what_is_usual_hides_no_faster_estimate(monkeypatch, usual, least):
    question = {"model": "gpt2", "gpus": 2, "cluster": "dgx-h100", "global_batch_size": 16}
    setting = resolve(make_request("optimize", question))
    near = [SimpleNamespace(seconds=0.8, memory=0.0, choice=A_WAY)]
    monkeypatch.setattr(FewerGpus, "_expected", lambda self, part, limit: near)
    monkeypatch.setattr(FewerGpus, "_usual", lambda self, part: usual)
    fewer = FewerGpus(setting, NO_WISHES, None, SimpleNamespace(attends=True), Deadline(None))
    ((seconds, choices, part),), _ = fewer._promising(2.0, ())
    assert (seconds, choices, part.gpus) == (least, [A_WAY], 1)


def test_ways_to_train_that_are_unlike_are_simulated_first(monkeypatch):
    question = {"model": "gpt2", "gpus": 2, "cluster": "dgx-h100", "global_batch_size": 16}
    setting = resolve(make_request("optimize", question))
    alike, unlike = Way("data", 2), Way("cut", 1)
    # some are estimated under two runtimes
    order = [A_WAY, alike, A_WAY, unlike, Way("cut", 2)]
    near = [
        SimpleNamespace(seconds=0.8 + place / 1e3, memory=0.0, choice=one)
        for place, one in enumerate(order)
    ]
    monkeypatch.setattr(FewerGpus, "_expected", lambda self, part, limit: near)
    monkeypatch.setattr(FewerGpus, "_usual", lambda self, part: math.inf)
    fewer = FewerGpus(setting, NO_WISHES, None, SimpleNamespace(attends=True), Deadline(None))
    ((_, choices, _),), _ = fewer._promising(2.0, ())
    assert choices == [A_WAY, unlike, alike, Way("cut", 2)]


@pytest.mark.slow
def test_what_was_expected_to_be_faster_and_is_not_hides_no_smaller_number(monkeypatch):
    """Of 8 GPUs one that does not fit is expected to take half of what 4 of them take."""
    question = {"model": "gpt2", "gpus": 16, "cluster": "dgx-h100", "global_batch_size": 16}
    setting = resolve(make_request("optimize", question))
    plan = planner.optimize("gpt2", gpus=8, cluster="dgx-h100", global_batch_size=16)
    expected, steps, asked = {8: 0.5, 4: 1.0}, {8: 1.2, 4: 0.9}, []

    def near(self, part, limit):
        seconds = expected.get(part.gpus, math.inf)
        one = SimpleNamespace(seconds=seconds, memory=0.0, choice=A_WAY)
        return [one] if seconds <= limit else []

    def answered(part, limit):
        asked.append(part.gpus)
        return dataclasses.replace(plan, gpus=part.gpus, step_time_s=steps[part.gpus])

    monkeypatch.setattr(FewerGpus, "_expected", near)
    monkeypatch.setattr(FewerGpus, "_usual", lambda self, part: math.inf)
    fewer = FewerGpus(setting, NO_WISHES, None, SimpleNamespace(attends=True), Deadline(None))
    none = InfeasibleError("none fits", missing_bytes=1.0, layer="")
    found = fewer.faster_plan(none, answered)
    assert asked == [8, 4]
    assert (found.gpus, found.step_time_s, found.idle_gpus) == (4, 0.9, 12)


@pytest.mark.slow
def test_bounds_hold_for_smaller_numbers_that_are_slower(monkeypatch):
    question = {"model": "gpt2", "gpus": 8, "cluster": "dgx-h100", "global_batch_size": 16}
    setting = resolve(make_request("optimize", question))
    plan = planner.optimize("gpt2", gpus=8, cluster="dgx-h100", global_batch_size=16)
    part = on_gpus(setting, 4)
    least = 0.5 * plan.search.lower_bound_s
    slower = dataclasses.replace(
        plan,
        step_time_s=2.0 * plan.step_time_s,
        search=replace(plan.search, lower_bound_s=least),
    )
    monkeypatch.setattr(
        FewerGpus, "_promising", lambda self, best, told: ([(0.0, None, part)], math.inf)
    )
    fewer = FewerGpus(setting, NO_WISHES, None, None, Deadline(None))
    found = fewer.faster_plan(plan, lambda part, limit: slower)
    assert found.step_time_s == plan.step_time_s
    assert found.search.lower_bound_s == least
    assert found.search.gap == pytest.approx(1.0 - least / plan.step_time_s)
    assert not found.search.proven_optimal


@pytest.mark.slow
def test_links_that_are_faster_hide_no_plan_of_fewer_gpus(tmp_path):
    # one GPU computes a block less again than is estimated to fit, and is the fastest of all
    path = tmp_path / "config.json"
    described = {
        "model_type": "llama",
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_hidden_layers": 5,
        "vocab_size": 1000,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(described))
    usual = load_cluster("aws-p3.2xlarge")
    levels = tuple(replace(one, bandwidth=2.0 * one.bandwidth) for one in usual.levels)
    asked = {"gpus": 4, "global_batch_size": 12, "precision": "fp16", "memory": "1246764236 B"}
    slow, fast = (
        planner.optimize(path, cluster=cluster, **asked)
        for cluster in (usual, replace(usual, levels=levels))
    )
    assert fast.step_time_s <= slow.step_time_s * (1.0 + EQUAL)


@pytest.mark.slow
def test_stages_that_pay_with_moved_blocks_alone_are_found_on_fewer_gpus():
    """With one micro-batch, a first stage of fewer blocks is sooner through with its weights."""
    wishes = {"keep": "pp=2", "forbid": "offload", "runtime": "megatron-core"}
    question = {"cluster": "juwels-booster", "global_batch_size": 12, "optimizer": "sgd", **wishes}
    few, more = (planner.optimize("vit-l", gpus=n, precision="bf16", **question) for n in (2, 8))
    assert more.step_time_s <= few.step_time_s * (1.0 + EQUAL)


@pytest.mark.slow
def test_blocks_of_every_layout_are_moved_on_fewer_gpus(tmp_path):
    shape = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 1, "num_hidden_layers": 4}
    shape |= {"vocab_size": 1000, "max_position_embeddings": 512, "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(shape))
    question = QUESTION | {"cluster": "aws-p4de.24xlarge", "global_batch_size": 12}
    model = str(tmp_path / "config.json")
    few, more = (planner.optimize(model, gpus=n, **question) for n in (8, 16))
    assert more.step_time_s <= few.step_time_s * (1.0 + EQUAL)


@pytest.mark.slow
def test_what_waits_in_hosts_is_looked_for_on_fewer_gpus_as_well():
    question = {"cluster": "abci", "global_batch_size": 32, "precision": "fp16"}
    question |= {"optimizer": "adam", "forbid": "pipeline", "runtime": "torchtitan"}
    few, more = (planner.optimize("vit-l", gpus=n, memory="1784 MiB", **question) for n in (4, 8))
    assert few.offload
    assert more.step_time_s <= few.step_time_s * (1.0 + EQUAL)


@pytest.mark.slow
def test_what_fits_by_itself_on_fewer_gpus_hides_no_faster_one_with_hosts(tmp_path):
    path = tmp_path / "llama.json"
    config = {"model_type": "llama", "hidden_size": 768, "intermediate_size": 1536}
    config |= {"num_attention_heads": 12, "num_key_value_heads": 3, "num_hidden_layers": 1}
    config |= {"vocab_size": 50257, "max_position_embeddings": 128, "tie_word_embeddings": False}
    path.write_text(json.dumps(config))
    asked = {"cluster": "lassen", "global_batch_size": 16, "precision": "fp16"}
    asked |= {"optimizer": "sgd", "runtime": "megatron-core", "memory": "1566.1 MiB"}
    few = planner.simulate(str(path), gpus=4, tp=4, micro_batches=2, offload="optimizer", **asked)
    assert few.fits
    # on 4 GPUs 4 micro-batches fit without their hosts, and take longer than 2 GPUs do with them
    plan = planner.optimize(str(path), gpus=8, **asked)
    assert plan.step_time_s <= few.step_time * 1.001


def test_networks_without_attention_leave_gpus_without_work_too(tmp_path):
    # gradients of wide filters take longer than the few images do
    path = tmp_path / "wide.toml"
    wide = [("conv", f"filters = {n}\nkernel = 3\npadding = 1") for n in (64, 512, 2048)]
    rows = [*wide, ("global_pool", ""), ("linear", "filters = 10"), ("loss", "")]
    layers = [
        f'[[layer]]\nname = "l{n}"\nkind = "{kind}"\n{more}\n'
        for n, (kind, more) in enumerate(rows)
    ]
    layers[0] += 'inputs = ["input"]\n'
    head = 'name = "wide"\n[input]\nchannel = 3\nheight = 32\nwidth = 32\n'
    path.write_text(head + "".join(layers))
    few, more = (
        planner.optimize(
            path, gpus=n, cluster="aws-p3.2xlarge", global_batch_size=6, keep="recompute=none"
        )
        for n in (2, 4)
    )
    assert more.step_time_s <= few.step_time_s * (1.0 + EQUAL)
    assert more.idle_gpus or more.gpus_at_work < 4


@pytest.mark.slow
def test_a_plan_says_first_which_gpus_it_leaves_without_work(kept, plans, tmp_path):
    assert kept.idle_gpus == 8
    path = tmp_path / "plan.json"
    kept.save(path)
    again = Plan.load(path)
    assert again.idle_gpus == 8
    assert planner.simulate(again).step_time == pytest.approx(again.step_time_s, rel=1e-9)
    shown = CliRunner().invoke(planner_command, ["report", str(path)])
    assert shown.exit_code == 0
    assert shown.output.startswith("8 of 24 GPUs are left without work")
    plans[16].save(path)
    assert "idle_gpus" not in path.read_text()


def test_a_plan_is_evaluated_on_the_gpus_it_was_asked_for(kept, config, tmp_path):
    kept.save(tmp_path / "plan.json")
    asked = {"gpus": 24, "global_batch_size": 64, **QUESTION}
    again = planner.evaluate(config, strategy=tmp_path / "plan.json", **asked)
    assert again.gpus == kept.gpus
    assert again.step_time_s == pytest.approx(kept.step_time_s)


def test_what_is_kept_holds_for_fewer_gpus_as_well(kept):
    dims = {dim for layer in kept.layers.values() for dim in layer.degrees}
    assert dims & {"filter", "head", "hidden"}


@pytest.mark.slow
def test_what_is_ruled_out_is_not_blamed_where_nothing_divides(tmp_path):
    # one block and 12 samples have no way to train on 16 hosts of a GPU each
    path = tmp_path / "config.json"
    described = {
        "model_type": "llama",
        "hidden_size": 384,
        "intermediate_size": 1536,
        "num_attention_heads": 12,
        "num_key_value_heads": 3,
        "num_hidden_layers": 1,
        "vocab_size": 1000,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(described))
    asked = {"gpus": 16, "cluster": "aws-p3.2xlarge", "global_batch_size": 12}
    free, forbidding = (
        planner.optimize(str(path), forbid=one, **asked) for one in (None, "hybrid")
    )
    assert forbidding.step_time_s == pytest.approx(free.step_time_s)


def test_what_leaves_nothing_of_many_gpus_may_leave_something_of_fewer(tmp_path):
    # of 16 GPUs nothing is left but 8 ranks that split 4 heads
    path = tmp_path / "config.json"
    described = {
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "num_hidden_layers": 3,
        "vocab_size": 100,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(described))
    asked = {"cluster": "dgx-a100", "global_batch_size": 1, "optimizer": "adam", "runtime": "fsdp"}
    few, more = (
        planner.optimize(path, gpus=n, precision="fp16", forbid="zero-bubble", **asked)
        for n in (8, 16)
    )
    assert more.step_time_s <= few.step_time_s * (1.0 + EQUAL)
    assert more.gpus + more.idle_gpus == 16


@pytest.mark.slow
def test_what_may_not_fit_after_all_hides_no_plan_of_fewer_gpus(tmp_path):
    # on 8 of them the best is estimated to hold 3 % more than there is, on 4 of them 2 %
    path = tmp_path / "config.json"
    described = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "num_hidden_layers": 8,
        "vocab_size": 1000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(described))
    question = {"cluster": "aws-p3.16xlarge", "runtime": "megatron", "optimizer": "sgd"}
    question |= {"precision": "fp32", "global_batch_size": 8, "memory": "1774.6 MiB"}
    few, more = (planner.optimize(str(path), gpus=n, **question) for n in (8, 16))
    assert (few.idle_gpus, more.idle_gpus) == (4, 12)
    assert more.step_time_s == few.step_time_s


def test_far_fewer_gpus_are_asked_for_where_nothing_fits_on_those_that_promised_it(monkeypatch):
    """On 8 and on 7 of 12 estimates of memory were too low, and the plan of one was not found."""
    question = {"model": "gpt2", "gpus": 12, "cluster": "aws-p3.2xlarge", "global_batch_size": 64}
    setting, asked = resolve(make_request("optimize", question)), []
    plan = planner.optimize("gpt2", gpus=1, cluster="dgx-h100", global_batch_size=8)
    none = InfeasibleError("none fits", missing_bytes=1.0, layer="")
    rows = [(1.0 + i, (), on_gpus(setting, n)) for i, n in enumerate((8, 7, 6, 5, 3, 2, 1))]
    monkeypatch.setattr(FewerGpus, "_promising", lambda self, best, told: (rows, math.inf))

    def answered(part, limit):
        asked.append(part.gpus)
        return plan if part.gpus == 1 else none

    fewer = FewerGpus(setting, NO_WISHES, None, None, Deadline(None))
    assert fewer.faster_plan(none, answered).step_time_s == plan.step_time_s
    assert asked == [8, 7, 3, 1]


@pytest.mark.slow
def test_what_is_kept_of_shards_and_waits_in_hosts_is_looked_for_on_fewer_gpus(tmp_path):
    path = tmp_path / "config.json"
    described = {
        "model_type": "llama",
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "num_hidden_layers": 6,
        "vocab_size": 1000,
        "max_position_embeddings": 128,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(described))
    question = {"cluster": "hkbu-10gbe", "runtime": "deepspeed", "optimizer": "adam"}
    question |= {"precision": "fp16", "global_batch_size": 64, "keep": "shard_size=2"}
    few, more = (planner.optimize(str(path), gpus=n, **question) for n in (12, 24))
    assert more.step_time_s <= few.step_time_s
    # 8 ranks do not split its 28 heads, and 4 hold too much of it without their hosts
    question = {"cluster": "lassen", "runtime": "megatron-core", "optimizer": "sgd"}
    question |= {"precision": "fp32", "global_batch_size": 4, "input_size": 512}
    plan = planner.optimize("qwen2-7b", gpus=16, keep="dp=2", forbid="pipeline", **question)
    assert plan.idle_gpus == 8
    assert plan.offload


@pytest.mark.slow
@pytest.mark.parametrize("batch", [480, 512])
@pytest.mark.parametrize("model", ["gpt2", "llama3-8b", "bert-large", "mixtral-8x7b"])
def test_more_gpus_never_take_longer(model, batch):
    best = float("inf")
    for gpus in (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 120, 128, 160, 192, 256, 384, 512):
        plan = planner.optimize(model, gpus=gpus, global_batch_size=batch, **QUESTION)
        assert plan.step_time_s <= best * (1.0 + EQUAL), gpus
        best = min(best, plan.step_time_s)


@pytest.mark.slow
def test_stages_that_a_runtime_cannot_fill_are_not_looked_for_on_fewer_gpus(config, tmp_path):
    # nanotron fills stages by shares of the linear layers, of which this head has most
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(Path(config).read_text()), "vocab_size": 128_000}))
    question = {"global_batch_size": 64, "precision": "fp16", "optimizer": "adam"}
    plan = planner.optimize(
        str(path), gpus=12, cluster="abci", memory="4 GiB", runtime="nanotron", **question
    )
    assert plan.idle_gpus
