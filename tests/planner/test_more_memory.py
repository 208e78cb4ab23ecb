"""More memory never gives a slower plan, beyond what counts as equal."""

from __future__ import annotations

import itertools

import pytest

import planner
from planner.errors import InfeasibleError
from planner.planning.decision.choice import EQUAL


@pytest.mark.slow
def test_more_memory_is_never_slower():
    options = {"gpus": 16, "global_batch_size": 128, "cluster": "abci"}
    free = planner.optimize("resnet18", **options)
    reserved = free.memory_bytes["reserved"]
    steps = []
    for share in (0.8, 0.95, 1.0):
        limit = reserved + share * (free.peak_memory - reserved)
        try:
            plan = planner.optimize("resnet18", memory=limit, **options)
            steps.append(plan.step_time_s)
        except InfeasibleError:
            steps.append(float("inf"))
    assert steps[-1] < float("inf")
    for less, more in itertools.pairwise(steps):
        assert more <= less * (1.0 + EQUAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "limits"),
    [
        # state cut over 8 of 64 replicas is 0.2 % faster than plain data parallelism in less memory
        ({"model": "resnet101", "gpus": 64, "global_batch_size": 2048}, ("3.38 GiB", None)),
        # of what waits in the hosts with as few blocks computed again as fit, 39.2 s were found
        # with 44.6 GiB and 40.9 with 59.5
        (
            {"model": "megatron-529.6b", "gpus": 64, "global_batch_size": 64},
            ("44.6 GiB", "59.5 GiB"),
        ),
        # pipelines that are slower than estimated took the places of what is 0.6 % faster
        (
            {"model": "t5-11b", "gpus": 16, "cluster": "lassen", "global_batch_size": 32},
            ("9.332 GiB", "11.33 GiB"),
        ),
    ],
)
def test_other_ways_to_train_are_never_slower_with_more_memory(question, limits):
    steps = [planner.optimize(**question, memory=limit).step_time_s for limit in limits]
    for less, more in itertools.pairwise(steps):
        assert more <= less * (1.0 + EQUAL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "step"),
    [
        # the fourth of those that are estimated to take about as long, 0.8 % less than the first
        ("50.88 GB", 3.85),
        # one of two with as few blocks computed again as fit, estimated to be the slower one
        ("67.85 GB", 3.805),
    ],
)
def test_of_estimates_that_are_about_as_fast_the_best_is_found(memory, step):
    plan = planner.optimize("mixtral-8x7b", gpus=64, global_batch_size=64, memory=memory)
    assert plan.step_time_s < step
