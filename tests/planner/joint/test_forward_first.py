"""Pipelines over slow networks run all forward passes first where that is faster."""

from __future__ import annotations

import itertools

import pytest

import planner
from costmodels.errors import InputError
from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices, with_any_recomputation
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.variants import forward_first
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

# single GPUs behind 10 Gb/s: 1F1B and zero-bubble wait for messages of both directions in turn
QUESTION = {
    "model": "gpt2",
    "gpus": 4,
    "cluster": "aws-p3.2xlarge",
    "global_batch_size": 32,
    "precision": "fp16",
}


@pytest.fixture(scope="module")
def plan():
    return planner.optimize(**QUESTION)


@pytest.mark.slow
def test_the_best_pipelines_are_tried_with_forward_passes_first(plan):
    # without it the plan took 371 ms, and with blocks as they suit 1F1B 357
    assert plan.schedule.kind == "gpipe"
    assert plan.step_time_s < 0.355
    assert plan.search.lower_bound_s <= plan.step_time_s
    assert planner.simulate(plan).step_time == pytest.approx(plan.step_time_s, rel=1e-9)


@pytest.mark.parametrize(
    "wish", [{"keep": "schedule=1f1b"}, {"runtime": "megatron-core"}, {"framework": "megatron"}]
)
def test_they_are_not_where_they_cannot_be(wish):
    assert planner.optimize(**QUESTION, **wish).schedule.kind != "gpipe"


@pytest.mark.slow
def test_all_forward_passes_first_can_be_held_fixed(plan):
    # it was refused, as if nothing ran so
    kept = planner.optimize(**QUESTION, keep="schedule=gpipe")
    assert kept.schedule.kind == "gpipe"
    assert kept.step_time_s <= plan.step_time_s
    fewer = planner.optimize(**QUESTION, keep="schedule=gpipe,pp=2,zero=3")
    assert (fewer.schedule.kind, len(fewer.stages)) == ("gpipe", 2)
    with pytest.raises(InputError, match="schedule can be 1f1b or interleaved; keep"):
        planner.optimize(**QUESTION, keep="schedule=gpipe", runtime="megatron-core")
    with pytest.raises(InputError, match="schedule can then be 1f1b alone; keep"):
        planner.optimize(**QUESTION, keep="schedule=gpipe", forbid="pipeline")


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(("model", "batch"), [("gpt2", 16), ("resnet18", 32)])
def test_what_is_known_of_them_is_what_they_come_to(model, batch):
    inputs = {**QUESTION, "model": model, "global_batch_size": batch}
    setting = resolve(make_request("optimize", inputs))
    runtime = searched_runtime(setting)
    estimates = Estimates(setting, runtime)
    bounds = ChoiceBounds(
        setting=setting,
        estimates=estimates,
        floors=PipelineBounds(setting, estimates.plain.reduced),
    )
    every = choices(setting, list(insides(setting, ("none",))), (0, 2, 3))
    turns = (one for one in every if one.pp > 1 == one.chunks and one.micro_batches > 1)
    again = (other for one in turns for other in with_any_recomputation(one, ("none", "full")))
    seen = 0
    for one in itertools.islice(again, 0, None, 5):
        choice = forward_first(setting, one)
        found = estimates.of(choice)
        degrees = found.choice.degrees  # with blocks that suit it
        step, reason = tried(setting, degrees, choice_runtime(runtime, choice.zero))
        assert step is not None, reason
        assert 0.7 < found.seconds / step.seconds < 1.1
        assert 0.94 < found.memory / step.peak_memory < 1.05
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        assert bounds.of(choice, fitting=False) <= step.seconds
        assert bounds.memory.of(choice, inside) <= step.peak_memory
        seen += choice.schedule == "gpipe"
    assert seen > 5


@pytest.mark.slow
def test_more_memory_is_never_slower_for_what_they_keep(plan):
    less = planner.optimize(**QUESTION, memory="6 GiB")
    assert plan.step_time_s <= less.step_time_s
