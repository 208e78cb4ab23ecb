"""The best assignments of a search are simulated, and the fastest of them is the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import planner
from planner.plan import Plan
from planner.planning import decide


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.optimize("vgg16", gpus=64, cluster="abci", global_batch_size=2048)


def test_the_plan_is_the_fastest_when_simulated(plan: Plan) -> None:
    rows = plan.simulated
    assert len(rows) > 1
    assert [row.timeline_s for row in rows] == sorted(row.timeline_s for row in rows)
    chosen = [row for row in rows if row.chosen]
    assert len(chosen) == 1
    assert chosen[0].simulated_s == min(row.simulated_s for row in rows)
    assert chosen[0].timeline_s == pytest.approx(plan.step_time_s)


def test_a_changed_order_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # what is fastest on the timeline is made the slowest when it is simulated
    simulate, times = decide.simulate_assignment, iter((1.0, 0.5, 0.75, 0.75))

    def other(*arguments: Any) -> Any:
        return replace(simulate(*arguments), step_time=next(times))

    monkeypatch.setattr(decide, "simulate_assignment", other)
    changed = planner.optimize("vgg16", gpus=64, cluster="abci", global_batch_size=2048)
    rows = changed.simulated
    assert [row.chosen for row in rows] == [False, True, False, False]
    assert changed.step_time_s == rows[1].timeline_s > rows[0].timeline_s
    assert any("simulation changed the order" in text for text in changed.fallbacks)
    assert any("faster than the first when both are simulated" in t for t in changed.fallbacks)
    # the bound is still one of the timeline
    assert changed.search.lower_bound_s <= rows[0].timeline_s


def test_a_kept_order_is_no_fallback() -> None:
    kept = planner.optimize("alexnet", gpus=4, cluster="abci", global_batch_size=128)
    assert kept.simulated[0].chosen
    assert not any("simulation" in text for text in kept.fallbacks)


def test_simulating_the_plan_again_gives_the_same_time(plan: Plan) -> None:
    again = planner.simulate(plan)
    assert again.step_time == pytest.approx(plan.simulated_step_time, rel=1e-12)
    assert again.fits


def test_plans_keep_their_simulations(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def test_plans_without_simulations_can_be_read(plan: Plan) -> None:
    document = json.loads(plan.to_json())
    del document["simulated"]
    assert Plan.from_json(json.dumps(document)).simulated_step_time is None
