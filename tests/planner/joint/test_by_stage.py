"""A framework with two runtimes has plans under the one that it trains under."""

from __future__ import annotations

import pytest

import planner
from planner.errors import ConflictError, InfeasibleError

ASKED = {"gpus": 8, "cluster": "dgx-a100", "global_batch_size": 32, "framework": "accelerate"}


@pytest.fixture(scope="module")
def plans():
    """Of gpt2, by the stage of ZeRO that is kept."""
    return {zero: planner.optimize("gpt2", **ASKED, keep=f"zero={zero}") for zero in (0, 2, 3)}


def test_what_is_cut_is_under_the_runtime_that_cuts_it(plans):
    """ZeRO 2 was under DistributedDataParallel, which said 4.3 GiB of what takes 6 under FSDP."""
    assert {zero: plan.runtime for zero, plan in plans.items()} == {0: "ddp", 2: "fsdp", 3: "fsdp"}
    asked = planner.optimize("gpt2", **ASKED, keep="zero=2", runtime="fsdp")
    assert plans[2].step_time_s == asked.step_time_s
    assert plans[2].peak_memory == asked.peak_memory


@pytest.mark.slow
def test_the_fastest_of_all_stages_is_the_plan(plans):
    best = planner.optimize("gpt2", **ASKED)
    fastest = min(plans.values(), key=lambda plan: plan.step_time_s)
    assert best.step_time_s == fastest.step_time_s
    assert best.runtime == fastest.runtime
    assert best.search.lower_bound_s <= min(p.search.lower_bound_s for p in plans.values())
    alone = planner.optimize("gpt2", **ASKED, forbid="sharding")
    assert alone.step_time_s == plans[0].step_time_s


@pytest.mark.slow
def test_where_it_does_not_fit_the_one_that_lacks_the_least_tells():
    with pytest.raises(InfeasibleError, match=r"needs 4\.47 GiB a GPU"):
        planner.optimize("gpt2", **ASKED, memory="3 GiB")
    plan = planner.optimize("gpt2", **ASKED, memory="4.5 GiB")
    assert plan.fits
    assert plan.runtime == "fsdp"


def test_what_leaves_nothing_of_any_stage_is_refused():
    with pytest.raises(ConflictError, match="accelerate"):
        planner.optimize("gpt2", **ASKED, keep="zero=1")


def test_a_limit_of_time_is_shared_out():
    plan = planner.optimize("gpt2", **ASKED, time_limit=0.1)
    assert plan.search.stopped_by in ("", "time limit")
    assert plan.step_time_s > 0.0
