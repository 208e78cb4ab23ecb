"""What is shared out unevenly, against all ways to share it out."""

import itertools

import numpy as np
import pytest

import planner
from planner.joint.uneven import uneven_cut, uneven_shares


def passes(times, blocks, count):
    ends = np.cumsum((0, *blocks))
    sums = [row[a:b].sum() for row, a, b in zip(times, ends[:-1], ends[1:], strict=True)]
    return sum(sums) + (count - 1) * max(sums)


@pytest.mark.parametrize("seed", range(60))
def test_cuts_are_as_good_as_any(seed):
    random = np.random.default_rng(seed)
    blocks, stages = int(random.integers(3, 9)), int(random.integers(1, 4))
    count = int(random.integers(1, 9))
    times = [random.random(blocks) * random.integers(1, 4) for _ in range(stages)]
    memory = [random.random(blocks) * 0.5 for _ in range(stages)]
    best = np.inf
    for ends in itertools.combinations(range(1, blocks), stages - 1):
        ends = (0, *ends, blocks)
        rows = [ends[i + 1] - ends[i] for i in range(stages)]
        if all(row[a:b].sum() <= 1.0 for row, a, b in zip(memory, ends, ends[1:], strict=False)):
            best = min(best, passes(times, rows, count))
    found = uneven_cut(times, memory, count)
    if not found:
        assert best == np.inf
        return
    assert sum(found) == blocks
    assert min(found) > 0
    # limits on the slowest stage are tried in steps
    assert best - 1e-9 <= passes(times, found, count) <= best * 1.02


def test_a_stage_twice_as_fast_has_twice_the_blocks():
    assert uneven_cut([np.ones(12), 2.0 * np.ones(12)], [np.zeros(12)] * 2, 64) == (8, 4)
    # where the faster one has less room the rest goes to the other
    assert uneven_cut([np.ones(12), 2.0 * np.ones(12)], [np.ones(12) / 6, np.zeros(12)], 64) == (
        6,
        6,
    )


@pytest.mark.parametrize("seed", range(40))
def test_shares_are_the_best_there_are(seed):
    random = np.random.default_rng(seed)
    groups = int(random.integers(1, 4))
    times = random.random(groups) + 0.1
    replicas = [int(random.integers(1, 4)) for _ in range(groups)]
    total = int(random.integers(1, 24))
    ways = [
        shares
        for shares in itertools.product(range(1, total + 1), repeat=groups)
        if sum(s * r for s, r in zip(shares, replicas, strict=True)) == total
    ]
    found = uneven_shares(times, replicas, total)
    if not ways:
        assert found == ()
        return
    assert found in ways
    best = min(max(times * np.array(shares)) for shares in ways)
    assert max(times * np.array(found)) == pytest.approx(best)


@pytest.mark.slow
def test_plain_data_parallelism_with_unequal_shares_is_never_faster_than_the_plan():
    asked = {"gpus": 12, "cluster": "lassen", "global_batch_size": 32}
    plan = planner.optimize("gpt2", **asked)
    data = planner.simulate("gpt2", strategy="data", **asked)
    assert plan.step_time_s <= data.step_time * (1.0 + 1e-9)
    assert plan.search.lower_bound_s <= data.step_time
    assert next(one for one in plan.baselines if one.name == "data").fits
