"""The fine-grained model: links, and Algorithm 1 of Li et al. 2022."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from worker_profiles import profile, workers

from costmodels.errors import InputError
from costmodels.throughput import (
    FIRST_COME,
    PROCESSOR_SHARING,
    Links,
    WorkerClass,
    WorkerProfile,
    predict_async,
    predict_sync,
    simulate_all_reduce,
    simulate_workers,
)
from costmodels.throughput.events import WorkerLoop
from costmodels.throughput.fine import FEWER_STEPS, LEAST_RUNS
from costmodels.throughput.shares import FirstCome, ProcessorSharing


@pytest.mark.parametrize("kind", [ProcessorSharing, FirstCome])
def test_a_link_serves_flows_up_to_their_limit(kind) -> None:
    link = kind(25.0, 10.0)
    for worker in range(3):
        link.start(0.0, worker, 100.0)
    ends = []
    while link.next_time() < 1e9:
        now = link.next_time()
        ends.append((now, link.finish(now)))
        link.leave(ends[-1][1])
    if kind is ProcessorSharing:
        assert ends == [(pytest.approx(12.0), w) for w in range(3)]
    else:
        # two at 10, the third at 5 for 10 s, then at 10
        assert ends == [(10.0, 0), (10.0, 1), (pytest.approx(15.0), 2)]
    assert link.served == pytest.approx(300.0)


def shares(active: list[int], links: Links, discipline: str) -> dict[int, float]:
    """Procedure SHARE with limits: progressive filling, or in the order of arrival. [B/s]"""
    left, result = links.capacity, {}
    for place, worker in enumerate(active):
        fair = links.capacity if discipline == FIRST_COME else left / (len(active) - place)
        result[worker] = min(links.worker_rate, fair, left)
        left -= result[worker]
    return result


def algorithm_1(profiles, links, discipline, synchronous, overlap, steps) -> list[list[float]]:
    """Operation by operation, as printed: when each worker has completed each step."""
    num = len(profiles)
    done: list[list[float]] = [[] for _ in profiles]
    queues: list[dict[str, deque]] = [{r: deque() for r in "dwup"} for _ in profiles]
    running: dict[tuple[int, str], list] = {}
    active: dict[str, list[int]] = {"d": [], "u": []}
    waits: list[dict] = [{} for _ in profiles]
    after: list[dict] = [{} for _ in profiles]
    pending = [0] * num
    now = 0.0

    def begin(w: int) -> None:
        one, n = profiles[w], len(profiles[w].forward)
        size, need = {}, {}
        for i in range(n):
            if one.num_bytes[i] > 0:
                size["d", i] = one.num_bytes[i]
                size["u", i] = one.num_bytes[i]
                size["p", i] = one.update[i]
                last = [("b", 0)] if not overlap else []
                need["u", i] = {("b", i), *last}
                sends = [("u", j) for j in range(n) if one.num_bytes[j] > 0]
                need["p", i] = {("u", i), *(sends if not overlap else [])}
                need["d", i] = set()
            size["f", i], size["b", i] = one.forward[i], one.backward[i]
            need["f", i] = {("f", i - 1)} if i else set()
            downs = range(n) if not overlap else [i]
            need["f", i] |= {("d", j) for j in downs if one.num_bytes[j] > 0}
            need["b", i] = {("b", i + 1)} if i + 1 < n else {("f", i)}
        waits[w], after[w], pending[w] = need, size, len(size)
        for op in sorted(need):
            if not need[op]:
                queues[w][resource(op)].append(op)

    def resource(op) -> str:
        return {"d": "d", "f": "w", "b": "w", "u": "u", "p": "p"}[op[0]]

    def fill() -> None:
        for w in range(num):
            for r in "dwup":
                if (w, r) not in running and queues[w][r]:
                    op = queues[w][r].popleft()
                    running[w, r] = [op, after[w][op]]
                    if r in active and w not in active[r]:
                        active[r].append(w)

    for w in range(num):
        begin(w)
    while any(len(d) < steps for d in done):
        fill()
        rates = {r: shares(active[r], links, discipline) for r in "du"}
        speed = {key: rates[key[1]][key[0]] if key[1] in rates else 1.0 for key in running}
        eta, key = min(
            (left[1] / speed[k] if speed[k] > 0 else np.inf, k) for k, left in running.items()
        )
        now += eta
        for k, left in running.items():
            left[1] = max(left[1] - eta * speed[k], 0.0)
        op = running.pop(key)[0]
        w, r = key
        pending[w] -= 1
        for other, need in waits[w].items():
            if op in need:
                need.remove(op)
                if not need:
                    queues[w][resource(other)].append(other)
        if r in active and not queues[w][r]:
            active[r].remove(w)
        if pending[w] == 0:
            done[w].append(now)
            if not synchronous:
                begin(w)
            elif not any(pending):
                for other in range(num):
                    begin(other)
    return [d[:steps] for d in done]


@pytest.mark.parametrize("discipline", [PROCESSOR_SHARING, FIRST_COME])
@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("cap", [None, 0.8e9])
def test_the_simulation_is_algorithm_1(discipline, synchronous, overlap, cap) -> None:
    links = Links(bandwidth=1.25e9, flow_cap=cap)
    update = np.array([0.001, 0.004, 0.0, 0.002, 0.003])
    kinds = [
        profile(seed=seed, layers=5, scale=scale, update=update, num_bytes=sizes)
        for seed, scale in ((1, 1.0), (2, 1.7), (3, 0.6))
        for sizes in [np.array([0.0, 1.1e7, 0.0, 2.3e7, 5e6])]
    ]
    expected = algorithm_1(kinds, links, discipline, synchronous, overlap, steps=4)
    run = WorkerLoop(
        [WorkerClass(profile=kind, count=1) for kind in kinds],
        links,
        discipline=discipline,
        synchronous=synchronous,
        overlap=overlap,
        variation=0.0,
        phases=None,
        rng=np.random.default_rng(0),
    )
    run.until(4)
    for worker, ends in enumerate(expected):
        found = run.begins[worker][1:5]
        if synchronous:
            ends = [max(e[i] for e in expected) for i in range(4)]
        assert found == pytest.approx(ends, rel=1e-9)


def test_one_worker_by_hand() -> None:
    # downlink 1 s + 2 s; forward [1, 2], [3, 4]; backward of the second [4, 7], of the first
    # [7, 9]; uplink of the second [7, 9], of the first [9, 10]; updates [9, 9.5], [10, 10.25]
    one = WorkerProfile(
        name="hand",
        samples=10.0,
        forward=np.array([1.0, 1.0]),
        backward=np.array([2.0, 3.0]),
        num_bytes=np.array([1e9, 2e9]),
        update=np.array([0.25, 0.5]),
    )
    classes, links = (WorkerClass(profile=one, count=1),), Links(bandwidth=1e9)
    for discipline in (PROCESSOR_SHARING, FIRST_COME):
        found = simulate_workers(
            classes, links, synchronous=True, discipline=discipline, variation=0.0
        )
        assert found.step_time == pytest.approx(10.25)
        assert found.throughput == pytest.approx(10.0 / 10.25)
    # phase after phase: 3 + 2 + 5 + 3 + 0.75
    plain = simulate_workers(classes, links, synchronous=True, overlap=False, variation=0.0)
    assert plain.step_time == pytest.approx(13.75)
    asynchronous = simulate_workers(classes, links, synchronous=False, variation=0.0)
    assert asynchronous.step_time == pytest.approx(10.25)


def test_two_workers_by_hand() -> None:
    one = WorkerProfile(
        name="hand",
        samples=1.0,
        forward=np.array([1.0]),
        backward=np.array([2.0]),
        num_bytes=np.array([2e9]),
    )
    classes, links = (WorkerClass(profile=one, count=2),), Links(bandwidth=1e9)

    def step(discipline: str, where: Links = links) -> float:
        found = simulate_workers(
            classes, where, synchronous=True, discipline=discipline, variation=0.0, overlap=False
        )
        return found.step_time

    # both: 4 s down, 3 s of computation, 4 s up
    assert step(PROCESSOR_SHARING) == pytest.approx(11.0)
    # down until 2 and 4, computed at 5 and 7, sent [5, 7] and [7, 9]
    assert step(FIRST_COME) == pytest.approx(9.0)
    # a cap of half leaves both side by side however they are served
    capped = Links(bandwidth=1e9, flow_cap=0.5e9)
    assert step(PROCESSOR_SHARING, capped) == step(FIRST_COME, capped) == pytest.approx(11.0)
    # twice the link with a cap of the old one: nobody waits
    wide = Links(bandwidth=2e9, flow_cap=1e9)
    assert step(PROCESSOR_SHARING, wide) == step(FIRST_COME, wide) == pytest.approx(7.0)
    ring = simulate_all_reduce(classes, links, variation=0.0)
    assert ring.step_time == pytest.approx(1.0 + 2.0 + 2.0)


@given(
    num=st.integers(1, 6),
    layers=st.integers(1, 6),
    seed=st.integers(0, 100),
    rate=st.floats(1e8, 1e10),
    discipline=st.sampled_from([PROCESSOR_SHARING, FIRST_COME]),
    overlap=st.booleans(),
    cap=st.sampled_from([None, 0.3, 0.5]),
    servers=st.integers(1, 3),
)
@settings(max_examples=60)
def test_bounds_bytes_and_bandwidth(
    num, layers, seed, rate, discipline, overlap, cap, servers
) -> None:
    one = profile(layers=layers, seed=seed)
    classes = (WorkerClass(profile=one, count=num),)
    links = Links(bandwidth=rate, flow_cap=cap and cap * rate, servers=servers)

    def run(where: Links, **more):
        usual = {"discipline": discipline, "overlap": overlap, "variation": 0.0}
        return simulate_workers(classes, where, **{**usual, **more})

    found = run(links, synchronous=True)
    faster = run(
        replace(links, bandwidth=1.3 * rate, flow_cap=cap and 1.3 * cap * rate), synchronous=True
    )
    assert faster.throughput >= found.throughput * (1.0 - 1e-9)
    random = run(links, synchronous=False, steps=6, runs=2)
    for result in (found, faster):
        assert result.throughput <= num * 32 / one.compute_time * (1.0 + 1e-9)
        assert result.utilisation <= 1.0 + 1e-9
    assert random.throughput <= num * 32 / one.compute_time * (1.0 + 1e-9)
    assert random.utilisation <= 1.0 + 1e-9
    assert random.throughput <= 32 * links.capacity / one.model_bytes * (1.0 + 1e-9)
    assert found.downlink_bytes == pytest.approx(found.num_steps * one.model_bytes)
    assert found.uplink_bytes == pytest.approx(found.num_steps * one.model_bytes)
    assert random.uplink_bytes >= random.num_steps * one.model_bytes * (1.0 - 1e-9)


@pytest.mark.slow
def test_processor_sharing_does_not_care_how_times_are_spread() -> None:
    """Without overlap the queueing network is exact whatever the distributions (insensitivity)."""
    links = Links(bandwidth=1.25e9)
    for count in (2, 4, 8):
        exact = predict_async(workers(count), links, overlap=False, rule=PROCESSOR_SHARING)
        for variation in (0.1, 0.5):
            found = simulate_workers(
                workers(count),
                links,
                synchronous=False,
                overlap=False,
                variation=variation,
                runs=20,
                steps=200,
            )
            assert found.throughput == pytest.approx(exact.throughput, rel=0.03)


def test_faster_and_slower_workers() -> None:
    links = Links(bandwidth=1.25e9)
    fast, slow = profile("v100"), profile("t4", scale=2.5)
    both = (WorkerClass(profile=fast, count=4), WorkerClass(profile=slow, count=2))
    slowest = predict_sync((WorkerClass(profile=slow, count=6),), links)
    assert predict_sync(both, links).step_time == slowest.step_time
    for overlap in (True, False):
        coarse = predict_async(both, links, overlap=overlap)
        fine = simulate_workers(both, links, synchronous=False, overlap=overlap)
        assert fine.throughput == pytest.approx(coarse.throughput, rel=0.1)
        alike = predict_async((WorkerClass(profile=slow, count=6),), links, overlap=overlap)
        assert coarse.throughput > alike.throughput
    ring = simulate_all_reduce(both, links, variation=0.0).step_time
    alone = simulate_all_reduce((WorkerClass(profile=slow, count=6),), links, variation=0.0)
    assert ring == pytest.approx(alone.step_time)


@pytest.mark.slow
def test_hundreds_of_workers_take_few_steps() -> None:
    links = Links(bandwidth=1.25e9)
    classes = (
        WorkerClass(profile=profile(layers=300), count=250),
        WorkerClass(profile=profile(layers=300, scale=2.0), count=250),
    )
    coarse = predict_async(classes, links)
    fine = simulate_workers(classes, links, synchronous=False)
    ring = simulate_all_reduce(classes, links)
    # a few seconds: the least number of runs, and few steps in each
    assert fine.num_runs == LEAST_RUNS
    assert fine.num_steps < 2 * LEAST_RUNS * FEWER_STEPS * 500
    assert coarse.exact
    assert fine.throughput == pytest.approx(coarse.throughput, rel=0.05)
    assert ring.throughput > 50 * fine.throughput


def test_the_same_seed_gives_the_same() -> None:
    links = Links(bandwidth=1.25e9)
    first, again = (
        simulate_workers(workers(3), links, synchronous=False, seed=7) for _ in range(2)
    )
    assert first == again
    assert simulate_workers(workers(3), links, synchronous=False, seed=8) != first


def test_merging_layers_keeps_everything() -> None:
    one = profile(layers=7, num_bytes=np.array([0, 0, 5.0, 0, 1.0, 0, 0]))
    merged = one.merged()
    assert merged.num_bytes.tolist() == [0.0, 5.0, 1.0]
    assert merged.forward_time == pytest.approx(one.forward_time)
    assert merged.backward_time == pytest.approx(one.backward_time)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: profile(samples=0.0), "more than 0 samples"),
        (lambda: profile(forward=np.zeros(4)), "more than 0 s forward"),
        (lambda: profile(num_bytes=np.zeros(4)), "parameters to exchange"),
        (lambda: profile(update=np.zeros(3)), "one update for each of its 4 layers"),
        (lambda: profile(backward=-np.ones(4)), "backward of at least 0"),
        (lambda: WorkerClass(profile=profile(), count=0), "at least 1 worker"),
        (lambda: Links(bandwidth=0.0), "bandwidth must be more than 0"),
        (lambda: Links(bandwidth=1.0, flow_cap=-1.0), "cap of a flow"),
        (lambda: Links(bandwidth=1.0, servers=0), "at least 1 parameter server"),
        (lambda: predict_sync((), Links(bandwidth=1.0)), "at least one kind"),
        (
            lambda: simulate_workers(workers(1), Links(bandwidth=1.0), synchronous=True, steps=0),
            "from 1 to 100,000 steps",
        ),
        (
            lambda: predict_sync((*workers(1), *workers(1, seed=1)), Links(bandwidth=1.0)),
            "one model",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, text) -> None:
    with pytest.raises(InputError, match=text):
        make()
