"""How far sequences are cut, by the samples that there are."""

from __future__ import annotations

import pytest

import planner
from planner.joint.ways_inside import insides
from planner.request.request import make_request
from planner.request.setting import resolve


def contexts(gpus, batch, tp):
    """Ways of context parallelism beside those of tensor parallelism."""
    question = {"model": "llama2-7b", "gpus": gpus, "cluster": "dgx-a100"}
    setting = resolve(make_request("optimize", {**question, "global_batch_size": batch}))
    return {one.cp for one in insides(setting) if one.tp == tp}


@pytest.mark.parametrize(
    ("gpus", "batch", "tp", "found"),
    [
        # of 4,096 positions, parts of 2,048 at least: samples are shared out among all
        (32, 32, 1, {1, 2}),
        # 20 samples are among 4 replicas of tensor parallelism, but not among 8 or 32
        (32, 20, 8, {1, 2}),
        (32, 20, 4, {1, 2, 4, 8}),
        (32, 20, 1, {1, 2, 4, 8, 16, 32}),
        # of many GPUs no more than make samples divide
        (64, 40, 4, {1, 2}),
        (64, 40, 1, {1, 2, 4, 8}),
        # nor do samples with any tensor parallelism within a host
        (64, 3, 1, {1, 2, 4, 8, 16, 32}),
    ],
)
def test_short_parts_are_looked_at_where_samples_do_not_divide(gpus, batch, tp, found):
    assert contexts(gpus, batch, tp) == found


@pytest.mark.slow
def test_what_has_no_tensor_parallelism_is_as_fast_beside_it():
    """Since 8 ways of tensor parallelism divide 20 samples, only long parts were looked at."""
    asked = {"gpus": 32, "cluster": "dgx-a100", "global_batch_size": 20}
    alone = planner.optimize("llama2-7b", **asked, keep="tp=1")
    assert planner.optimize("llama2-7b", **asked).step_time_s <= 1.001 * alone.step_time_s
