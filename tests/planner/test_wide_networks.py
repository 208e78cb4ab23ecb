"""Networks of wide graphs: each gets a plan and a bound, the same on every run.

What skips and branches carry may travel beside computation and bounds nothing, so that additive
problems are chains; where many layers share weights, they are too wide for elimination.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from questions import SPLITS_ALONE

import planner
from benchmarks.planning.wide import (
    WIDE,
    dense_blocks,
    hrnet,
    long_skips,
    random_dag,
    repeated_weights,
    searched_cells,
    unet_plus_plus,
)
from costmodels.graph import Network
from search.elimination import buckets
from search.errors import ProblemError

# of the kinds of `WIDE`, small enough to be planned for in a second or two
SMALL = {
    "dense": lambda: dense_blocks(1, 8, growth=8, size=32),
    "hrnet": lambda: hrnet(3, 2, filters=8, size=64),
    "unet-plus-plus": lambda: unet_plus_plus(3, filters=8, size=64),
    "cells": lambda: searched_cells(2, 4, filters=8),
    "long-skips": lambda: long_skips(20, filters=8, size=32),
    "random": lambda: random_dag(200, filters=8, size=16),
    "random-1": lambda: random_dag(60, filters=8, size=16, seed=1),
}
# of which these are too wide once elimination gives up early
SHARING = {
    "shared": lambda: repeated_weights(3, 4, size=16),
    "shared-more": lambda: repeated_weights(4, 6, size=16),
}


@pytest.fixture
def narrow_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elimination gives up early."""
    monkeypatch.setattr(buckets, "MAX_ELEMENTS", 1000.0)


def plan_of(network: Network, **options: object) -> planner.Plan:
    # the launches of such small layers would take nearly all of the step, however they are split
    return planner.optimize(
        network,
        gpus=16,
        global_batch_size=32,
        cap=8,
        launch_time="0 s",
        forbid=SPLITS_ALONE,
        **options,
    )


@pytest.mark.ci_cases(1)
@pytest.mark.usefixtures("narrow_tables")
@pytest.mark.parametrize("name", [*SMALL, *SHARING])
def test_a_wide_network_gets_a_plan_with_a_bound(name: str) -> None:
    plan = plan_of({**SMALL, **SHARING}[name]())
    usual = [b.step_time_s for b in plan.baselines if b.fits and b.step_time_s is not None]
    assert plan.step_time_s <= min(usual) * (1 + 1e-9)
    assert 0.8 * plan.step_time_s < plan.search.lower_bound_s <= plan.step_time_s
    assert plan.search.stopped_by == ""
    assert plan.search.solver.endswith("dives" if name in SHARING else "shortest-path")


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_tables")
def test_message_passing_and_elimination_bound_each_others_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = plan_of(SHARING["shared"]())
    monkeypatch.setattr(buckets, "MAX_ELEMENTS", 2.0**26)
    exact = plan_of(SHARING["shared"]())
    assert exact.search.solver == "elimination"
    assert passed.search.lower_bound_s <= exact.step_time_s
    assert exact.search.lower_bound_s <= passed.step_time_s


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_tables")
@pytest.mark.parametrize("network", [SMALL["cells"], SHARING["shared"]])
def test_a_wide_network_gets_the_same_plan_on_every_run(network: Callable[[], Network]) -> None:
    first, second = (plan_of(network(), seed=3) for _ in range(2))
    assert first.to_json() == second.to_json()


@pytest.mark.slow
@pytest.mark.usefixtures("narrow_tables")
@pytest.mark.parametrize("network", [SMALL["long-skips"]])
def test_under_a_memory_limit_a_wide_network_gets_a_plan_too(
    network: Callable[[], Network],
) -> None:
    free = plan_of(network())
    held = sum(free.memory_bytes.values())
    reserved = free.memory_bytes["reserved"]
    plan = plan_of(network(), memory=reserved + 0.97 * (held - reserved))
    assert sum(plan.memory_bytes.values()) < held
    assert plan.search.lower_bound_s > 0.0


@pytest.mark.usefixtures("narrow_tables")
def test_what_was_asked_of_elimination_alone_is_refused() -> None:
    with pytest.raises(ProblemError, match="use the solver auto"):
        plan_of(SHARING["shared"](), search="elimination")


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDE)
def test_a_large_wide_network_gets_a_plan_with_a_bound(name: str) -> None:
    plan = planner.optimize(WIDE[name](), gpus=64)
    assert 0.8 * plan.step_time_s < plan.search.lower_bound_s <= plan.step_time_s
