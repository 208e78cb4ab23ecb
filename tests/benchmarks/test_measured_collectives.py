"""All-reduces over many hosts, against a published table that fitted nothing."""

from __future__ import annotations

from importlib import resources

import numpy as np

from benchmarks.collectives import SYSTEMS, errors, measured

TABLE = str(resources.files("benchmarks.published") / "data" / "efa_all_reduce.csv")
SYSTEMS_BY_HOSTS = {s.num_hosts: s for s in SYSTEMS if s.source == "crazyguitar"}


def test_all_rows_of_the_table_belong_to_a_system() -> None:
    rows = [row for system in SYSTEMS_BY_HOSTS.values() for row in measured(TABLE, system)]
    assert len(rows) == 90
    # 1 GiB on 256 H100, in place: 110.87 GB/s
    assert any(gpus == 256 and np.isclose(time, 2**30 / 110.87e9) for _, gpus, _, time in rows)


def test_buckets_of_gradients_are_reduced_among_many_hosts_as_measured() -> None:
    for hosts in (16, 32):
        found = errors(TABLE, SYSTEMS_BY_HOSTS[hosts])["allreduce", "large"]
        # in the order of the table: 32 to 256 MiB, out of place and in place
        assert np.abs(found[:8]).max() < 0.12
