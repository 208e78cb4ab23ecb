"""Steps of many micro-batches, known from few of them where these tell what all of them do."""

from __future__ import annotations

from dataclasses import replace

import pytest

import planner
from costmodels.simulation import load_runtime, run_job
from planner.planning import staged
from planner.planning.staged import tried
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve

SLOW = {"model": "bert-base", "gpus": 8, "cluster": "hkbu-10gbe", "global_batch_size": 256}
# under each of these, gradients of what is not cut leave in every micro-batch, more slowly than
# they come: more than four micro-batches of them wait in the end, or the step is 1.2 % longer
BEHIND = {"fsdp": Degrees(zero=2, micro_batches=32), "zero3": Degrees(pp=2, micro_batches=64)}


@pytest.mark.parametrize("runtime", BEHIND)
def test_what_leaves_too_slowly_is_run_whole(runtime):
    setting = resolve(make_request("optimize", SLOW))
    found, reason = tried(setting, BEHIND[runtime], load_runtime(runtime))
    assert found is not None, reason
    count = found.placed.strategy.schedule.micro_batches
    step, laid_out = run_job(found.compiler.with_micro_batches(count), staged.BEHAVIOUR)
    whole = replace(found, laid_out=0).in_full().step
    assert laid_out == count
    assert step.peak.memory.total == whole.peak.memory.total
    assert step.step_time == whole.step_time


def test_plans_hold_the_tasks_of_all_that_few_stand_for():
    setting = resolve(make_request("optimize", SLOW))
    degrees = Degrees(zero=3, micro_batches=32)
    found, reason = tried(setting, degrees, load_runtime("zero3"))
    assert found is not None, reason
    assert found.laid_out < 32
    whole = found.in_full()
    assert whole.laid_out == 32
    assert whole.seconds == pytest.approx(found.seconds, rel=1e-9)
    assert whole.peak_memory == found.peak_memory
    plan = planner.evaluate("bert-base", strategy="zero3:micro_batches=32", **_without_model())
    assert sum(plan.breakdown_s.values()) == pytest.approx(plan.step_time_s, rel=1e-6)


def _without_model() -> dict[str, object]:
    return {name: value for name, value in SLOW.items() if name != "model"}
