"""Steps of many micro-batches, known from few of them where these tell what all of them do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.simulation import SimulatedStep, load_runtime, run_graph
from planner.planning.staged import BEHAVIOUR, StagedStep, tried
from planner.planning.staged_plan import given_plan
from planner.request.parts import Degrees
from planner.request.request import make_request
from planner.request.setting import resolve

SLOW = {"model": "bert-base", "gpus": 8, "cluster": "hkbu-10gbe", "global_batch_size": 256}
# under each of these, gradients of what is not cut leave in every micro-batch, more slowly than
# they come: more than four micro-batches of them wait in the end, or the step is 1.2 % longer
BEHIND = {"fsdp": Degrees(zero=2, micro_batches=32), "zero3": Degrees(pp=2, micro_batches=64)}


@pytest.mark.slow
@pytest.mark.parametrize("runtime", BEHIND)
def test_what_leaves_too_slowly_is_run_whole(runtime):
    setting = resolve(make_request("optimize", SLOW))
    found, reason = tried(setting, BEHIND[runtime], load_runtime(runtime))
    assert found is not None, reason
    whole = whole_step(found)
    assert found.step.told_from is None
    assert found.step.peak.memory.total == whole.peak.memory.total
    assert found.step.step_time == whole.step_time


def whole_step(found: StagedStep) -> SimulatedStep:
    count = found.placed.strategy.schedule.micro_batches
    return run_graph(found.compiler.with_micro_batches(count).compile(1), BEHAVIOUR)


@pytest.mark.slow
def test_plans_say_of_all_micro_batches_what_few_tell():
    setting = resolve(make_request("optimize", SLOW))
    found, reason = tried(setting, Degrees(zero=3, micro_batches=32), load_runtime("zero3"))
    assert found is not None, reason
    assert found.step.told_from is not None
    step = whole_step(found)
    plan, whole = (given_plan(one, "zero3") for one in (found, replace(found, step=step)))
    assert plan.peak_memory == whole.peak_memory
    assert plan.breakdown_s == pytest.approx(whole.breakdown_s, rel=1e-6, abs=1e-9)
    assert plan.hidden_s == pytest.approx(whole.hidden_s, rel=1e-6, abs=1e-9)
    for name, layer in plan.layers.items():
        for what in ("forward_s", "backward_s", "gradient_s", "reduction_s"):
            told, seen = getattr(layer, what), getattr(whole.layers[name], what)
            assert told == pytest.approx(seen, rel=1e-6, abs=1e-9), (name, what)
    assert sum(plan.breakdown_s.values()) == pytest.approx(plan.step_time_s, rel=1e-6)
