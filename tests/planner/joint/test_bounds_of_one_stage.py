"""Bounds of ways to train in one stage: passes, exchanges beside them, and what follows."""

from __future__ import annotations

from typing import Any

import pytest

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import Choice, choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.exchange_bounds import gathered_after, slowed_by_exchanges
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import Request
from planner.request.setting import Setting, resolve

QUESTIONS: dict[str, dict[str, Any]] = {
    "resnet18": {"gpus": 4, "cluster": "aws-p3.16xlarge", "global_batch_size": 4},
    "alexnet": {"gpus": 8, "cluster": "lassen", "global_batch_size": 64},
    "vgg16": {"gpus": 4, "cluster": "abci", "global_batch_size": 16},
}
EXPERTS: dict[str, Any] = {"gpus": 8, "cluster": "abci", "global_batch_size": 32}
SLOW_LINKS = {"gpus": 16, "cluster": "abci", "global_batch_size": 16}


def bounds_of(network: str) -> tuple[Setting, ChoiceBounds]:
    setting = resolve(Request(source=network, **QUESTIONS.get(network, SLOW_LINKS)))
    estimates = Estimates(setting, searched_runtime(setting))
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors, hybrid=True)
    return setting, bounds


@pytest.mark.slow
@pytest.mark.parametrize("network", QUESTIONS)
def test_no_way_to_train_takes_less_than_its_bound(network):
    setting, bounds = bounds_of(network)
    near = 0
    for choice in choices(setting, list(insides(setting))):
        if choice.pp > 2 or choice.micro_batches > 2:
            continue
        for way in bounds.shards(choice):
            runtime = choice_runtime(bounds.estimates.runtime, way.zero)
            step, _ = tried(setting, way.degrees, runtime)
            least = bounds.of(way, fitting=False, alone=True)
            if step is not None:
                assert bounds.floors.floor(way) <= step.seconds, way
                assert least <= step.seconds, way
                near += choice.parts == choice.micro_batches == 1 and least > 0.9 * step.seconds
    assert near > 2


def test_blocks_wait_for_activations_under_tensor_parallelism():
    setting, bounds = bounds_of("resnet18")
    alone, *others = [one for one in insides(setting) if one.recompute == "none"]
    assert bounds.estimates.plain.of(alone, setting.batch).gaps == (0.0, 0.0)
    assert all(min(bounds.estimates.plain.of(one, setting.batch).gaps) > 0.0 for one in others)


def test_layers_split_by_degrees_take_no_less_than_with_any_split():
    setting, bounds = bounds_of("vgg16")
    floors = bounds.floors
    any_split = floors.micro_batch(4, setting.batch)[0]
    by_degrees = floors.by_degrees[4, setting.batch][0]
    inside = next(one for one in insides(setting) if (one.tp, one.recompute) == (4, "none"))
    costed = bounds.estimates.plain.of(inside, setting.batch)
    assert any_split * 1.01 < by_degrees < costed.total_computed * 1.000001


def test_only_computation_that_is_done_again_waits_for_the_slowest():
    # experts wait for slow messages, again too
    setting = resolve(Request(source="qwen3-30b-a3b", input_size=1024, precision="fp16", **EXPERTS))
    estimates = Estimates(setting, searched_runtime(setting))
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    wanted = (4, 2, False, "full", 1, 2, 0)
    [way] = [one for one in choices(setting, list(insides(setting))) if _said_of(one) == wanted]
    step, _ = tried(setting, way.degrees, choice_runtime(estimates.runtime, way.zero))
    assert step is not None
    assert 0.99 * step.seconds < bounds.of(way, fitting=False) <= step.seconds


def _said_of(choice: Choice) -> tuple[Any, ...]:
    split, recompute = choice.split, choice.inside.recompute
    rest = (choice.parts, choice.micro_batches, choice.zero)
    return (split.tp, split.ep, split.sequence_parallel, recompute, *rest)


def test_updated_weights_are_gathered_where_their_state_alone_is_cut():
    setting, bounds = bounds_of("vgg16")
    plain = next(one for one in choices(setting, list(insides(setting))) if one.dp == setting.gpus)
    rows = [one for one in choices(setting, [plain.inside]) if one.dp == setting.gpus]
    inside = bounds.estimates.plain.of(plain.inside, plain.samples)
    times = {one.zero: gathered_after(bounds.estimates, one, inside) for one in rows}
    assert times[0] == times[3] == 0.0
    assert times[1] == times[2] > 0.0


def test_updated_weights_are_gathered_over_the_ranks_of_the_largest():
    # under tensor parallelism norms are held by more ranks, whose links are faster together
    setting, bounds = bounds_of("bert-base")
    ways = [
        one
        for one in choices(setting, list(insides(setting)))
        if (one.split.tp, one.parts, one.micro_batches, one.inside.recompute) == (4, 1, 1, "none")
        and 0 < one.zero < 3
    ]
    assert len(ways) == 4  # with and without sequence parallelism
    for way in ways:
        step, _ = tried(setting, way.degrees, choice_runtime(bounds.estimates.runtime, way.zero))
        assert step is not None
        assert 0.85 * step.seconds < bounds.of(way, fitting=False, alone=True) <= step.seconds


@pytest.mark.parametrize(
    ("computed", "gaps", "exchanged", "least"),
    [(10.0, 0.0, 4.0, 10.4), (4.0, 0.0, 10.0, 10.4), (10.0, 3.0, 2.0, 13.0), (4.0, 3.0, 9.0, 9.4)],
)
def test_computation_and_exchanges_slow_each_other_down(computed, gaps, exchanged, least):
    assert slowed_by_exchanges(computed, gaps, exchanged) == pytest.approx(least)
