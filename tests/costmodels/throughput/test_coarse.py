"""The coarse-grained models: equations of Li et al. 2022."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from worker_profiles import profile, workers

from costmodels.throughput import (
    FIRST_COME,
    PROCESSOR_SHARING,
    Links,
    WorkerClass,
    mean_values,
    predict_all_reduce,
    predict_async,
    predict_sync,
    ring_time,
)


def test_equations_7_to_11() -> None:
    one = profile(update=np.full(4, 0.001))
    links, num = Links(bandwidth=1.25e9), 5
    transfer = one.model_bytes / 1.25e9
    classes = (WorkerClass(profile=one, count=num),)
    times = {
        rule: predict_sync(classes, links, overlap=False, rule=rule).step_time
        for rule in (PROCESSOR_SHARING, FIRST_COME, "hybrid")
    }
    rest = one.compute_time + one.update_time
    assert times[PROCESSOR_SHARING] == pytest.approx(2 * num * transfer + rest)
    assert times[FIRST_COME] == pytest.approx((num + 1) * transfer + rest)
    assert times["hybrid"] == pytest.approx(num * transfer + rest + (num + 1) * transfer / 2)
    overlapped = max(num * transfer, one.forward_time) + max(
        (num + 1) * transfer / 2, one.backward_time
    )
    found = predict_sync(classes, links)
    assert found.step_time == pytest.approx(overlapped + one.update_time)
    assert found.throughput == pytest.approx(num * 32 / found.step_time)
    ring = predict_all_reduce(classes, links, overlap=False).step_time
    assert ring == pytest.approx(rest + 2 * (num - 1) / num * transfer)


def test_async_follows_equation_5_and_6() -> None:
    links = Links(bandwidth=1.25e9)
    one = profile()
    transfer = one.model_bytes / links.bandwidth
    service = [[transfer, 0.0, transfer]]
    for count in range(1, 9):
        classes = (WorkerClass(profile=one, count=count),)
        first = mean_values(
            [count], one.compute_time, service, [FIRST_COME, PROCESSOR_SHARING, FIRST_COME]
        )
        used = FIRST_COME if first.busy.max() <= 0.6 else PROCESSOR_SHARING
        plain = mean_values([count], one.compute_time, service, [used, PROCESSOR_SHARING, used])
        found = predict_async(classes, links, overlap=False)
        assert found.rule == used
        assert found.throughput == pytest.approx(32 * plain.cycle_rate[0])
        uplink, _, downlink = plain.response[0]
        left = max(0, one.forward_time - downlink) + max(0, one.backward_time - uplink)
        first = mean_values([count], left, service, [FIRST_COME, PROCESSOR_SHARING, FIRST_COME])
        used = FIRST_COME if first.busy.max() <= 0.6 else PROCESSOR_SHARING
        again = mean_values([count], left, service, [used, PROCESSOR_SHARING, used])
        corrected = predict_async(classes, links)
        assert corrected.throughput == pytest.approx(32 * again.cycle_rate[0])
        assert corrected.rule == used
    assert found.rule == PROCESSOR_SHARING
    assert predict_async(workers(1), links, overlap=False).rule == FIRST_COME


def test_first_come_first_served_fills_a_link_and_no_more() -> None:
    links = Links(bandwidth=1e9)
    for count in (2, 5, 50):
        one = workers(count)
        found = predict_async(one, links, rule=FIRST_COME)
        assert found.utilisation <= 1.0 + 1e-12
        assert found.throughput <= 32 * 1e9 / one[0].profile.model_bytes * (1.0 + 1e-9)
    assert found.utilisation == pytest.approx(1.0)


def test_a_ring_tends_to_two_transfers() -> None:
    times = [ring_time(k, 3.0) for k in (1, 2, 4, 16, 10**6)]
    assert times[:2] == [0.0, 3.0]
    assert all(a < b < 6.0 for a, b in itertools.pairwise(times))
    assert times[-1] == pytest.approx(6.0, rel=1e-5)


def test_servers_and_caps_change_how_many_pass_side_by_side() -> None:
    one = workers(1)
    model = one[0].profile.model_bytes
    plain = Links(bandwidth=1.25e9)
    # four servers: the worker's own link is the limit, so one worker gains nothing
    four = Links(bandwidth=1.25e9, servers=4)
    assert predict_async(one, four).throughput == pytest.approx(
        predict_async(one, plain).throughput
    )
    assert predict_sync(workers(8), four).throughput > predict_sync(workers(8), plain).throughput
    # a cap of what one link carries anyway changes nothing
    same = Links(bandwidth=1.25e9, flow_cap=1.25e9)
    assert predict_async(workers(5), same) == predict_async(workers(5), plain)
    capped = Links(bandwidth=3.125e9, flow_cap=1.25e9)
    alone = predict_sync(one, capped, overlap=False).step_time
    assert alone == pytest.approx(one[0].profile.compute_time + 2 * model / 1.25e9)
