"""Weights that are gathered beside computation without weights, and while groups wait."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import planner
from planner.joint.choices import choices
from planner.joint.estimate import Estimates
from planner.joint.gathers import RunsOfUnits
from planner.joint.hybrid import shard_sizes
from planner.joint.runtimes import choice_runtime, searched_runtime
from planner.joint.ways_inside import insides
from planner.planning.staged import tried
from planner.request.request import make_request
from planner.request.setting import resolve

# Small layers with large weights: gathers take longer than what they are beside.
QUESTION = {"model": "alexnet", "cluster": "dgx-a100", "gpus": 32, "global_batch_size": 256}


def test_units_without_weights_run_with_their_neighbours_of_the_same_stage():
    weighs = np.array([False, True, False, False, True, False, False])
    runs = RunsOfUnits.of((0, 3, 6), np.arange(7), weighs)
    assert runs.forward.tolist() == [1, 1, 1, 4, 4, 4, 6]
    assert runs.backward.tolist() == [1, 1, 1, 4, 4, 4, 6]
    whole = RunsOfUnits.of((0,), np.arange(7), weighs)
    assert whole.forward.tolist() == [1, 1, 1, 1, 4, 4, 4]
    assert whole.backward.tolist() == [1, 1, 4, 4, 4, 4, 4]
    assert (whole.next[1], whole.before[4]) == (4, 1)
    assert np.flatnonzero(whole.opens).tolist() == [1]
    assert np.flatnonzero(whole.ends).tolist() == [4]


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_estimates_of_gathers_are_near_the_simulation_where_they_outlast_layers(pp):
    setting = resolve(make_request("optimize", QUESTION))
    runtime = searched_runtime(setting)
    estimates, off = Estimates(setting, runtime), []
    for choice in choices(setting, list(insides(setting, ("none",)))):
        if (choice.zero, choice.pp, choice.micro_batches, choice.chunks) != (3, pp, 1, 1):
            continue
        inside = estimates.insides(3).of(choice.inside, choice.samples)
        for size in (0, *shard_sizes(choice, inside, estimates.exchanges)):
            way = replace(choice, shard_size=size)
            found, reason = tried(setting, way.degrees, choice_runtime(runtime, 3))
            assert found is not None, reason
            off.append(abs(estimates.of(way).seconds / found.seconds - 1.0))
    assert len(off) > 5
    assert np.median(off) < 0.02
    assert max(off) < 0.06


@pytest.mark.slow
def test_more_gpus_take_no_longer_where_gathers_outlast_layers():
    steps = [planner.optimize(**QUESTION | {"gpus": gpus}).step_time_s for gpus in (32, 64)]
    assert steps[1] <= steps[0] * 1.001
