"""Tests of links that are fitted to measured collectives."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.calibration import (
    COLLECTIVES,
    MeasuredCollective,
    collective_times,
    fitted_links,
)
from costmodels.errors import InputError


def rows(hosts: int, gpus: int = 8) -> list[MeasuredCollective]:
    return [
        MeasuredCollective(
            collective=collective, num_hosts=hosts, num_gpus=gpus, num_bytes=size, seconds=1.0
        )
        for collective in COLLECTIVES
        for size in np.geomspace(1e3, 1e9, 13)
    ]


def measured_on(cluster: Cluster, asked: list[MeasuredCollective]) -> list[MeasuredCollective]:
    times = collective_times(cluster, asked)
    return [replace(row, seconds=float(time)) for row, time in zip(asked, times, strict=True)]


def slower(cluster: Cluster, level: int) -> Cluster:
    """The cluster with half the bandwidth and three times the latency at one level."""
    old = cluster.levels[level]
    new = replace(old, bandwidth=0.5 * old.bandwidth, latency=3.0 * old.latency)
    return replace(cluster, levels=(*cluster.levels[:level], new, *cluster.levels[level + 1 :]))


@pytest.mark.parametrize("level", [0, 1])
def test_a_slower_machine_is_found_from_its_collectives(level: int) -> None:
    known = load_cluster("dgx-a100")
    truth = slower(known, level)
    asked = rows(1) if level == 0 else rows(4, 32)
    measured = measured_on(truth, asked)
    fitted = fitted_links(known, measured[::2], "a test")
    unseen = measured[1::2]
    error = collective_times(fitted, unseen) / [row.seconds for row in unseen] - 1
    assert np.abs(error).mean() < 0.05
    assert fitted.levels[1 - level] == known.levels[1 - level]
    assert fitted.levels[level].source.endswith(
        f"{len(measured[::2])} measured collectives of a test."
    )


def test_what_is_fitted_already_stays_as_it_is() -> None:
    known = load_cluster("dgx-h100")
    measured = measured_on(slower(known, 0), rows(1))
    fitted = fitted_links(known, measured, "a test")
    assert fitted_links(fitted, measured, "a test") == fitted


def test_a_machine_that_is_as_known_is_hardly_changed() -> None:
    known = load_cluster("dgx-h100")
    fitted = fitted_links(known, measured_on(known, rows(1)), "a test")
    assert fitted.levels[0].bandwidth == pytest.approx(known.levels[0].bandwidth, rel=0.01)


def test_collectives_of_larger_hosts_are_refused() -> None:
    with pytest.raises(InputError, match=r"at most 1 GPUs.*give a table of machines like it"):
        fitted_links(load_cluster("aws-p3.2xlarge"), rows(1), "a test")
