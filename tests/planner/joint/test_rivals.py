"""More memory never gives a slower plan: of splits alone, and of all ways to train."""

from __future__ import annotations

import math

import pytest

import planner
from planner.errors import InfeasibleError

# Steps that differ by less than this part are equal.
EQUAL = 1e-3


@pytest.mark.parametrize(
    ("model", "cluster", "gpus", "shares"),
    [
        ("resnet18", "dgx-a100", 8, (0.8, 0.9, 0.97, 1.0, 2.0)),
        pytest.param("resnet18", "dgx-a100", 64, (0.9, 1.0), marks=pytest.mark.slow),
        pytest.param("alexnet", "abci", 16, (0.9, 0.97, 1.0), marks=pytest.mark.slow),
    ],
)
def test_more_memory_never_gives_a_slower_plan(model, cluster, gpus, shares):
    options = {"gpus": gpus, "cluster": cluster, "global_batch_size": 256}
    free = planner.optimize(model, **options)
    best = math.inf
    for share in shares:
        try:
            plan = planner.optimize(model, memory=share * free.peak_memory, **options)
        except InfeasibleError:
            assert best == math.inf, share
            continue
        assert plan.fits
        assert plan.step_time_s <= best * (1.0 + EQUAL), share
        best = min(best, plan.step_time_s)
    assert best < math.inf
    assert free.step_time_s <= best * (1.0 + EQUAL)


def test_a_limit_that_the_best_splits_keep_to_changes_nothing():
    # by estimates others are faster, which need more memory
    options = {
        "gpus": 8,
        "cluster": "abci",
        "global_batch_size": 256,
        "forbid": "pipeline,accumulation,sharding,recompute",
    }
    free = planner.optimize("resnet18", **options)
    limited = planner.optimize("resnet18", memory=free.peak_memory, **options)
    assert limited.fits
    assert limited.memory_capacity_bytes == pytest.approx(free.peak_memory)
    assert limited.step_time_s == free.step_time_s
    assert limited.layers == free.layers


def test_without_a_limit_ways_to_train_are_asked_as_well():
    options = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 256}
    splits = planner.optimize(
        "resnet18", forbid="pipeline,accumulation,sharding,recompute", **options
    )
    plan = planner.optimize("resnet18", **options)
    assert plan.is_staged
    assert plan.step_time_s < splits.step_time_s
    assert plan.search.lower_bound_s <= plan.step_time_s
    for ways in ("zero=1", "zero=2", "zero=3", "pp=2", "micro_batches=2"):
        asked = planner.optimize("resnet18", keep=ways, **options)
        assert plan.step_time_s <= asked.step_time_s * (1.0 + EQUAL), ways
