"""Piecewise fits of measured collectives, and that what was measured is what a step is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from costmodels.cluster import load_cluster
from costmodels.cluster.curve import CURVED, CollectiveCurve
from costmodels.communication.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
    send_recv_time,
)
from costmodels.communication.curves import curve_times, fitted_curve, with_curves
from costmodels.communication.topology import Topology
from costmodels.errors import InputError

SIZES = [2.0**n for n in range(8, 27)]


def curve(collective: str = "all_reduce", hosts: int = 1, gpus: int = 2) -> CollectiveCurve:
    return CollectiveCurve(
        collective=collective, hosts=hosts, gpus=gpus, start=1e-3, slope=1e-9,
        knots=(1e5,), rates=(1e-8,),
    )  # fmt: skip


def fit(seconds: list[float]) -> CollectiveCurve:
    return fitted_curve("all_reduce", 1, 2, SIZES, seconds)


class TestFit:
    def test_a_curve_is_found_again(self) -> None:
        true = CollectiveCurve(
            collective="all_reduce", hosts=1, gpus=2, start=1e-4, slope=2e-10,
            knots=(2.0**14, 2.0**20), rates=(2e-9, 5e-10),
        )  # fmt: skip
        times = curve_times(true, SIZES)
        assert curve_times(fit(list(times)), SIZES) == pytest.approx(times, rel=1e-4)

    def test_it_is_far_closer_than_a_straight_line(self) -> None:
        # two protocols, as libraries have them
        sizes = np.array(SIZES)
        times = np.minimum(1e-4 + 3e-9 * sizes, 2e-3 + 4e-10 * sizes)
        weight = 1.0 / times
        line = np.linalg.lstsq(
            np.stack([weight, sizes * weight], axis=1), np.ones_like(times), rcond=None
        )[0]
        straight = np.abs((line[0] + line[1] * sizes) / times - 1).max()
        pieces = np.abs(curve_times(fit(list(times)), sizes) / times - 1).max()
        assert straight > 0.3
        assert pieces < 0.1

    @given(st.lists(st.floats(1e-6, 1.0), min_size=len(SIZES), max_size=len(SIZES)))
    def test_whatever_was_measured_it_grows_ever_slower(self, seconds: list[float]) -> None:
        found = fit(seconds)
        times = curve_times(found, np.linspace(1.0, SIZES[-1] * 4, 400))
        steps = np.diff(times)
        assert (steps >= -1e-12).all()
        assert (np.diff(steps) <= 1e-9 * times.max()).all()
        assert (times > 0).all()

    @pytest.mark.parametrize(
        "options",
        [
            {"collective": "gossip"},
            {"gpus": 1},
            {"hosts": 2, "gpus": 3},
            {"rates": ()},
            {"slope": -1.0},
        ],
    )
    def test_nonsense_is_refused(self, options: dict[str, object]) -> None:
        with pytest.raises(InputError):
            replace(curve(), **options)


class TestUse:
    @pytest.mark.parametrize("collective", CURVED)
    def test_what_was_measured_comes_first(self, collective: str) -> None:
        plain = load_cluster("lassen")
        cluster = with_curves(plain, [curve(collective)])
        known, unknown = (Topology.of(one, (4, 2)) for one in (cluster, plain))
        pair, four, across = (2, 1), (4, 1), (1, 2)

        def time(topology: Topology, group: tuple[int, int]) -> float:
            size = 1e6
            if collective == "send_recv":
                return float(send_recv_time(topology, 0 if group[1] == 1 else 1, size, 1))
            if collective == "all_gather":
                return float(all_gather_time(topology, group, size / np.prod(group)))
            times = {
                "all_reduce": all_reduce_time,
                "reduce_scatter": reduce_scatter_time,
                "all_to_all": all_to_all_time,
            }
            return float(times[collective](topology, group, size))

        assert time(known, pair) == pytest.approx(1e-3 + 1e-3 + 1e-3)
        assert time(known, across) == time(unknown, across)
        if collective != "send_recv":
            assert time(known, four) == time(unknown, four)

    def test_curves_across_hosts_are_for_hosts(self) -> None:
        cluster = with_curves(load_cluster("lassen"), [curve(hosts=2)])
        topology = Topology.of(cluster, (4, 2))
        groups = np.array([[2, 1], [1, 2]])
        within, across = all_reduce_time(topology, groups, 1e6)
        assert across == pytest.approx(3e-3)
        assert within < 1e-3

    def test_a_congested_network_is_not_the_one_that_was_measured(self) -> None:
        cluster = with_curves(load_cluster("lassen"), [curve(), curve(hosts=2)])
        assert [c.hosts for c in cluster.congested(2.0).curves] == [1]
