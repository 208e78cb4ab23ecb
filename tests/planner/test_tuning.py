"""Options of the step that are searched from outside, and those that stay as they were given."""

from __future__ import annotations

import pytest

import planner
from planner.errors import ConflictError
from planner.planning import answer as searched

QUESTION = {"gpus": 8, "cluster": "lassen", "global_batch_size": 64, "cap": 8}


@pytest.mark.parametrize(
    "given", [{"bucket_bytes": "3 MiB"}, {"all_reduce": "ring"}, {"all_reduce": "auto"}]
)
def test_trials_leave_what_is_given(given, monkeypatch):
    tried = []
    attempt = searched.attempt

    def watch(setting, training, options, **known):
        tried.append(training)
        return attempt(setting, training, options, **known)

    monkeypatch.setattr(searched, "attempt", watch)
    plan = planner.optimize("alexnet", tune_trials=6, **given, **QUESTION)
    assert len(set(tried)) >= 5, "the other option of the step is tried"
    for name in given:
        assert {getattr(training, name) for training in tried} == {getattr(plan.training, name)}
    assert plan.training.bucket_bytes == 3 * 2**20 or "bucket_bytes" not in given
    assert plan.training.all_reduce == given.get("all_reduce", plan.training.all_reduce)


def test_trials_without_anything_to_try_are_refused():
    with pytest.raises(ConflictError, match="bucket size and the all-reduce are given"):
        planner.optimize("alexnet", tune_trials=2, bucket_bytes=1e6, all_reduce="tree", **QUESTION)


def test_no_size_of_buckets_between_those_tried_makes_a_plan_faster():
    plan = planner.optimize("resnet18", gpus=256)
    for size in (7, 10, 14, 20):
        other = planner.evaluate("resnet18", gpus=256, strategy=plan, bucket_bytes=size * 2.0**20)
        assert plan.step_time_s <= other.step_time_s * (1.0 + 1e-9), f"{size} MiB"
    assert plan.search.gap < 0.02
