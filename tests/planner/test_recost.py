"""What may be the best is simulated, and the fastest that fits is the plan, or a simpler one."""

from __future__ import annotations

import itertools
import json
from functools import cache

import pytest

import planner
from planner.plan import Plan
from planner.planning.decision import decide

SIMPLER = "the simplest of the plans within 1 %"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planner.optimize("vgg16", gpus=64, cluster="abci", global_batch_size=2048)


def fastest(plan: Plan) -> float:
    return min(
        row.step_time_s
        for row in plan.finalists
        if row.peak_memory_bytes <= plan.memory_capacity_bytes
    )


def check_choice(plan: Plan) -> None:
    """What must hold of every plan that was chosen by simulation."""
    chosen = [row for row in plan.finalists if row.chosen]
    assert len(chosen) == 1
    assert chosen[0].step_time_s == plan.step_time_s
    assert chosen[0].peak_memory_bytes == pytest.approx(plan.peak_memory, rel=1e-12)
    assert plan.step_time_s <= (1.0 + decide.SIMPLER_WITHIN) * fastest(plan)
    for usual in plan.baselines:
        if usual.fits:
            assert usual.step_time_s is not None
            assert plan.step_time_s <= usual.step_time_s


def test_the_plan_is_the_fastest_when_simulated(plan: Plan) -> None:
    rows = plan.finalists
    assert len(rows) > 1
    assert [row.step_time_s for row in rows] == sorted(row.step_time_s for row in rows)
    check_choice(plan)


def test_every_usual_strategy_that_can_be_used_is_simulated(plan: Plan) -> None:
    assert any(usual.fits for usual in plan.baselines)
    for usual in plan.baselines:
        if usual.step_time_s is not None:
            alone = planner.simulate(
                "vgg16",
                gpus=64,
                cluster="abci",
                global_batch_size=2048,
                strategy=usual.name,
                bucket_bytes=usual.bucket_bytes,
            )
            assert usual.step_time_s == alone.step_time
            assert usual.peak_memory_bytes == alone.peak_memory
            assert usual.fits == alone.fits


# (network, GPUs, cluster, batch): the additive model hides all-reduces behind messages that take
# the same links, and the search is drawn to such plans
CONTENDED = (
    pytest.param("resnet152", 32, "aws-p3.2xlarge", 256, marks=pytest.mark.slow),
    ("vgg16", 256, "dgx-a100", 256),
    pytest.param("resnet50", 16, "hkbu-10gbe", 128, marks=pytest.mark.slow),
)


@cache
def contended(model: str, gpus: int, cluster: str, batch: int) -> Plan:
    return planner.optimize(model, gpus=gpus, cluster=cluster, global_batch_size=batch)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "gpus", "cluster", "batch"), CONTENDED)
def test_no_usual_strategy_is_faster(model: str, gpus: int, cluster: str, batch: int) -> None:
    found = contended(model, gpus, cluster, batch)
    check_choice(found)
    for usual in found.baselines:
        if usual.fits:
            alone = planner.simulate(
                model, gpus=gpus, cluster=cluster, global_batch_size=batch, strategy=usual.name
            )
            assert planner.simulate(found).step_time <= alone.step_time


@pytest.mark.slow
def test_layers_without_weights_are_split_as_their_neighbours() -> None:
    """VGG16 has five parts at most: few changes of split along 39 layers."""
    found = contended("vgg16", 256, "dgx-a100", 256)
    layers = list(found.layers.values())
    sides = [(a.distribution.level_replication, a.degrees.get("sample")) for a in layers]
    changes = sum(a != b for a, b in itertools.pairwise(sides))
    assert changes <= 6


@pytest.mark.slow
def test_more_candidates_never_give_a_worse_plan() -> None:
    times = [
        planner.optimize("vgg16", gpus=256, global_batch_size=256, cap=cap).step_time_s
        for cap in (64, 185, 500)
    ]
    for before, after in itertools.pairwise(times):
        # what moves find depends a little on where they begin: 0.35 % here
        assert after <= before * 1.005


def test_a_simpler_plan_is_taken_where_it_is_hardly_slower() -> None:
    found = planner.optimize("cosmoflow-128", gpus=8, cluster="abci", global_batch_size=4)
    assert fastest(found) < found.step_time_s <= 1.01 * fastest(found)
    assert any(SIMPLER in text for text in found.fallbacks)


def test_plans_keep_their_finalists(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan


def test_plans_without_finalists_can_be_read(plan: Plan) -> None:
    document = json.loads(plan.to_json())
    del document["finalists"]
    assert Plan.from_json(json.dumps(document)).finalists == ()


@pytest.mark.slow
def test_borders_of_runs_are_moved() -> None:
    """The best plan has borders between layers where no plan of one split has any."""
    assert planner.optimize("alexnet", gpus=256).search.gap < 0.1
