"""The step on its timeline: by hand, by laws, and against the additive bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import ALPHA, BANDWIDTH, topology_of

from costmodels.cluster import load_cluster
from costmodels.communication.collectives import all_reduce_time
from costmodels.communication.topology import Topology
from costmodels.step.timeline import (
    LayerStep,
    bucketed_time,
    fill_buckets,
    gradient_time,
    overlapped_step,
)
from costmodels.step.training import Training

MS, MB = 1e-3, 1e6
# 2 (p-1) (alpha + m/p beta) with p = 4 and no latency: 0.15 ms for each MB
PER_MB = 2 * 3 / 4 * MB / BANDWIDTH


def layer(
    backward: float, gradient: float, group: tuple[int, ...] = (4,), **times: float
) -> LayerStep:
    plain = {"forward": 1 * MS, "update": 0.0}
    return LayerStep(
        backward=backward,
        gradient_bytes=gradient,
        gradient_group=group,
        **{**plain, **times},
    )


def ring(**options) -> Training:
    return Training(all_reduce="ring", **options)


def test_by_hand():
    """Backward runs c, b, a; buckets of 10 MB leave as b and a fill them.

    time    0    2    4         7  ms
    compute  c    b    a
    ready             [c+b]     [a]
    reduce            |-- 3.0 --|-- 1.5 --|
    """
    layers = [layer(3 * MS, 10 * MB), layer(2 * MS, 12 * MB), layer(2 * MS, 8 * MB)]
    buckets = fill_buckets(layers, 10 * MB)
    assert buckets == [(4 * MS, 20 * MB, (4,)), (7 * MS, 10 * MB, (4,))]
    step = overlapped_step(layers, topology_of(4, latency=0.0), ring(bucket_bytes=10 * MB))
    assert step.gradient == pytest.approx(30 * PER_MB) == pytest.approx(4.5 * MS)
    assert step.exposed == pytest.approx(1.5 * MS)
    assert step.hidden == pytest.approx(3.0 * MS)
    assert step.total == pytest.approx((3 + 7 + 1.5) * MS)
    assert step.num_buckets == 2


def test_the_queue_is_served_one_after_the_other():
    # the first all-reduce lasts until 2 + 6 ms, so that the second waits for it, not for compute
    layers = [layer(3 * MS, 10 * MB), layer(2 * MS, 40 * MB)]
    step = overlapped_step(layers, topology_of(4, latency=0.0), ring(bucket_bytes=1 * MB))
    assert step.exposed == pytest.approx((2 + 6 + 1.5 - 5) * MS)


def test_without_overlap_all_reduces_follow_the_backward_pass():
    layers = [layer(3 * MS, 10 * MB, update=1 * MS), layer(2 * MS, 40 * MB)]
    topology = topology_of(4, latency=0.0)
    step = overlapped_step(layers, topology, ring(bucket_bytes=1 * MB, gradient_overlap=False))
    assert step.gradient == pytest.approx(50 * PER_MB)
    assert step.exposed == pytest.approx(step.gradient)
    assert step.hidden == pytest.approx(0.0)
    assert step.total == pytest.approx((2 + 5 + 7.5 + 1) * MS)


def test_gradients_of_different_groups_travel_apart():
    layers = [
        layer(1 * MS, 1 * MB, (4, 1)),
        layer(1 * MS, 2 * MB, (1, 2)),
        layer(1 * MS, 4 * MB, (4, 1)),
        layer(1 * MS, 0.0, (1, 1)),
    ]
    buckets = fill_buckets(layers, 100 * MB)
    # neither fills its bucket: both leave at the end
    assert buckets == [(4 * MS, 5 * MB, (4, 1)), (4 * MS, 2 * MB, (1, 2))]


def test_every_bucket_costs_a_latency():
    layers = [layer(1 * MS, 1 * MB) for _ in range(6)]
    topology = topology_of(4)
    one = overlapped_step(layers, topology, ring(bucket_bytes=100 * MB))
    six = overlapped_step(layers, topology, ring(bucket_bytes=1 * MB))
    assert (one.num_buckets, six.num_buckets) == (1, 6)
    assert six.gradient - one.gradient == pytest.approx(5 * 2 * 3 * ALPHA)


def test_a_step_without_gradients_is_its_passes():
    layers = [layer(2 * MS, 0.0, update=1 * MS)] * 3
    step = overlapped_step(layers, topology_of(4), ring())
    assert step.total == pytest.approx(3 * (1 + 2 + 1) * MS)
    assert step.gradient == step.exposed == step.num_buckets == 0


def test_groups_that_cannot_run_an_algorithm_take_the_cheapest():
    # a tree lies over hosts: a group inside one has none
    topology = Topology.of(load_cluster("dgx-a100"), (8, 4))
    groups = np.array([[8, 1], [8, 4], [1, 1]])
    times = gradient_time(topology, groups, 25 * MB, "tree")
    assert np.isfinite(times).all()
    assert times[0] == all_reduce_time(topology, [8, 1], 25 * MB)
    assert times[1] == all_reduce_time(topology, [8, 4], 25 * MB, "tree")
    assert times[2] == 0.0
    for name in ("auto", "ring", "hierarchical", "halving_doubling"):
        assert (
            gradient_time(topology, groups, MB, name) == all_reduce_time(topology, groups, MB, name)
        ).all()


times = st.floats(0.0, 5e-3)
GROUPS = ((1, 1), (4, 1), (1, 4), (4, 4), (2, 2))
steps = st.lists(
    st.builds(
        layer,
        times,
        st.sampled_from([0.0, 1e3, 1e5]) | st.floats(0.0, 60 * MB),
        st.sampled_from(GROUPS),
        forward=times,
        update=times,
    ),
    min_size=1,
    max_size=12,
)


@given(
    layers=steps,
    bucket=st.floats(1e3, 100 * MB),
    algorithm=st.sampled_from(["auto", "ring", "tree", "hierarchical"]),
    overlap=st.booleans(),
    weight=st.floats(0.0, 1.0),
    cluster=st.sampled_from(["lassen", "dgx-a100", "dgx-h100"]),
)
def test_the_bounds_never_exceed_the_step(layers, bucket, algorithm, overlap, weight, cluster):
    topology = Topology.of(load_cluster(cluster), (4, 4))
    training = Training(bucket_bytes=bucket, all_reduce=algorithm, gradient_overlap=overlap)
    step = overlapped_step(layers, topology, training)
    sizes = np.array([one.gradient_bytes for one in layers])
    # a bucket leaves with the gradient that fills it, so it holds at most that much
    largest = max(min(sizes.sum(), bucket + sizes.max()), 1.0)
    assert all(size <= largest * (1 + 1e-12) for _, size, _ in fill_buckets(layers, bucket))
    groups = np.array([one.gradient_group for one in layers])
    reduce = sizes * gradient_time(topology, groups, largest, algorithm) / largest
    rest = sum(one.forward + one.update for one in layers)
    backward = np.array([one.backward for one in layers])
    everything, tolerance = rest + backward.sum(), 1 + 1e-9
    assert step.gradient * tolerance >= reduce.sum()
    mixed = everything + weight * (reduce.sum() - backward.sum())
    assert mixed <= step.total * tolerance
    # with layer j's gradient come, all before it are still to come
    for j in range(len(layers)):
        term = everything - backward[:j].sum() + reduce[: j + 1].sum()
        assert term <= step.total * tolerance
    if not overlap:
        assert everything + reduce.sum() <= step.total * tolerance
    assert step.total >= everything / tolerance


@given(layers=steps, bucket=st.floats(1e3, 100 * MB))
def test_overlap_never_costs_and_never_hides_more_than_there_is(layers, bucket):
    topology = topology_of(4, 4)
    hidden = overlapped_step(layers, topology, Training(bucket_bytes=bucket))
    plain = overlapped_step(layers, topology, Training(bucket_bytes=bucket, gradient_overlap=False))
    assert hidden.total <= plain.total * (1 + 1e-12)
    assert hidden.gradient == pytest.approx(plain.gradient)
    assert -1e-12 <= hidden.exposed <= hidden.gradient + 1e-12


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.floats(1.0, 3e8), min_size=1, max_size=30),
    bucket=st.floats(1e4, 2e8),
    smaller=st.floats(0.01, 1.0),
    cluster=st.sampled_from([("dgx-a100", 32), ("lassen", 16), ("aws-p3.2xlarge", 8)]),
)
def test_gradients_pay_no_more_than_their_buckets_take(sizes, bucket, smaller, cluster):
    where = load_cluster(cluster[0])
    topology = Topology.of(where, where.shape(cluster[1]))
    group = np.array(topology.shape)
    paid = bucketed_time(topology, np.tile(group, (len(sizes), 1)), sizes, bucket, "auto")
    taken, filling = 0.0, 0.0
    for size in sizes:
        filling += size
        if filling >= smaller * bucket:
            taken += float(gradient_time(topology, group, filling, "auto"))
            filling = 0.0
    if filling:
        taken += float(gradient_time(topology, group, filling, "auto"))
    assert paid.sum() <= taken * (1.0 + 1e-9)
