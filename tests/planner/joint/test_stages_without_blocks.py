"""Stages of networks without blocks: estimated, bounded and simulated with the same cuts."""

from __future__ import annotations

import random
import statistics

import pytest

from planner.joint.bounds import ChoiceBounds
from planner.joint.choices import choices
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimates
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.by_degrees import strategy_by_degrees
from planner.request.request import make_request
from planner.request.setting import resolve


def asked_for(model, cluster, gpus, batch):
    """The question, and the estimates of its choices."""
    asked = {"model": model, "gpus": gpus, "cluster": cluster, "global_batch_size": batch}
    setting = resolve(make_request("optimize", asked))
    return setting, Estimates(setting, searched_runtime(setting))


@pytest.mark.parametrize(
    ("model", "cluster", "count", "most"),
    [
        # what stages send each other is most of a step, within hosts and between them
        ("vgg16", "lassen", 1, 0.03),
        ("resnet18", "juwels-booster", 8, 0.03),
    ],
)
def test_estimates_are_of_the_stages_that_are_simulated(model, cluster, count, most):
    setting, estimates = asked_for(model, cluster, 16, 256)
    rows = [
        one
        for one in choices(setting, list(insides(setting)), (0,))
        if one.pp > 1 and one.inside.tp == 1 and one.micro_batches <= count
    ]
    place = {layer.name: n for n, layer in enumerate(setting.graph.compute_layers)}
    errors, known = [], {}
    for choice in random.Random(3).sample(rows, min(6, len(rows))):
        runtime = choice_runtime(estimates.runtime, choice.zero)
        strategy, _, _ = strategy_by_degrees(setting, choice.degrees, runtime, known)
        simulated = tuple(place[stage.layers[0]] for stage in strategy.stages)
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        assert estimates.cuts.starts(choice.parts, (), inside.balance) == simulated
        found, _ = tried(setting, choice.degrees, runtime, known)
        assert found is not None
        errors.append(abs(estimates.of(choice).seconds / found.seconds - 1.0))
    assert statistics.median(errors) < most


def test_bounds_of_interleaved_stages_hold():
    setting, estimates = asked_for("squeezenet1_0", "lassen", 4, 32)
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    rows = [
        one
        for one in choices(setting, list(insides(setting)), (0,))
        if (one.pp, one.chunks, one.micro_batches) == (2, 3, 16)
    ]
    assert rows
    for choice in rows[:2]:
        found, _ = tried(setting, choice.degrees, choice_runtime(estimates.runtime, choice.zero))
        assert found is not None
        assert bounds.of(choice, fitting=False) <= found.seconds
        inside = estimates.insides(choice.zero).of(choice.inside, choice.samples)
        assert bounds.memory.of(choice, inside) <= found.peak_memory


@pytest.mark.parametrize(
    ("model", "cluster", "usual"),
    # messages between stages and exchanges of weights are most of a step
    [("resnet18", "aws-p3.2xlarge", 0.7), ("vgg16", "lassen", 0.6)],
)
def test_bounds_know_what_stages_send_and_exchange(model, cluster, usual):
    setting, estimates = asked_for(model, cluster, 16, 256)
    floors = PipelineBounds(setting, estimates.plain.reduced)
    bounds = ChoiceBounds(setting=setting, estimates=estimates, floors=floors)
    rows = [
        one
        for one in choices(setting, list(insides(setting)), (0, 2, 3))
        if one.pp > 1 and one.chunks == 1 and one.micro_batches <= 8
    ]
    parts = []
    for choice in random.Random(3).sample(rows, 16):
        found, _ = tried(setting, choice.degrees, choice_runtime(estimates.runtime, choice.zero))
        assert found is not None
        parts.append(bounds.of(choice, fitting=False) / found.seconds)
    assert max(parts) <= 1.0
    assert statistics.median(parts) > usual


def test_what_is_kept_of_split_channels_is_estimated_as_it_is_read():
    # a convolution reads all channels, of which each device makes a part
    setting, estimates = asked_for("resnet18", "dgx-a100", 8, 64)
    reserved, known = setting.cluster.device.reserved_memory, {}
    rows = [
        one
        for one in choices(setting, list(insides(setting)), (0, 2))
        if one.inside.tp > 1 and one.pp == 1 and one.inside.recompute == "full"
    ]
    for choice in random.Random(5).sample(rows, 8):
        found, _ = tried(setting, choice.degrees, estimates.runtime, known)
        assert found is not None
        held = found.peak_memory - reserved
        assert estimates.of(choice).memory - reserved == pytest.approx(held, rel=0.1)


@pytest.mark.slow
def test_what_a_stage_holds_is_estimated_stage_by_stage():
    # the one that keeps the most is not the one whose passes hold the most beside
    setting, estimates = asked_for("resnet18", "dgx-a100", 8, 64)
    reserved, known, off = setting.cluster.device.reserved_memory, {}, []
    rows = [
        one
        for one in choices(setting, list(insides(setting)), (0, 1, 2))
        if one.pp > 1 and one.micro_batches <= 32
    ]
    for choice in random.Random(3).sample(rows, 24):
        found, _ = tried(setting, choice.degrees, estimates.runtime, known)
        assert found is not None
        held = found.peak_memory - reserved
        off.append(abs((estimates.of(choice).memory - reserved) / held - 1.0))
    assert statistics.median(off) < 0.01
    assert statistics.mean(off) < 0.02
