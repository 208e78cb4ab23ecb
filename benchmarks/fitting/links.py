"""Fits links to published collectives: `python -m benchmarks.fitting.links`.

Prints the constants of `costmodels/cluster/data/links.toml`, fitted to every other message size,
and the mean errors on the sizes that were fitted and on those that were not, before and after.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from costmodels.cluster import Cluster, load_cluster
from costmodels.communication.calibration import (
    SCALED,
    MeasuredCollective,
    collective_times,
    fitted_links,
)
from planner.tables.imports import READERS


@dataclass(frozen=True, slots=True)
class Link:
    """A link, a cluster that has it, and the collectives that tell it.

    `sources` are the form, the path and a part of the name of the GPU; `between` says whether the
    link joins hosts.
    """

    name: str
    cluster: str
    between: bool
    sources: tuple[tuple[str, str, str], ...]


_TABLE = "collectives.csv"
LINKS = (
    Link(
        "nvlink5-sharp",
        "dgx-b200",
        False,
        (
            ("aiconfigurator", "aiconfigurator/data/b200_sxm/comm", "B200"),
            ("nccl-tests", _TABLE, "p6-b200"),
        ),
    ),
    Link("efa-100", "aws-p4de.24xlarge", True, (("nccl-tests", _TABLE, "p4de"),)),
    Link("efa-400", "aws-p5.48xlarge", True, (("nccl-tests", _TABLE, "p5.48"),)),
    Link("gpudirect-tcpx-200", "gcp-a3-megagpu", True, (("nccl-tests", _TABLE, "a3-mega"),)),
    Link("efa-v4-400", "aws-p6-b200.48xlarge", True, (("nccl-tests", _TABLE, "p6-b200"),)),
)


def measured_collectives(tables: Path, link: Link) -> list[MeasuredCollective]:
    """Collectives within a host, or across hosts, of all sources of a link."""
    rows = [
        MeasuredCollective(
            collective=collective,
            num_hosts=hosts,
            num_gpus=gpus,
            num_bytes=size,
            seconds=seconds,
        )
        for form, path, gpu in link.sources
        for found in READERS[form](str(tables / path))
        if gpu in found.device
        for collective, hosts, gpus, size, seconds in found.collectives
    ]
    return [row for row in rows if (row.num_hosts > 1) == link.between]


def halves(
    rows: Sequence[MeasuredCollective],
) -> tuple[list[MeasuredCollective], list[MeasuredCollective]]:
    """Rows of every other message size, and the others."""
    order = {size: i for i, size in enumerate(sorted({row.num_bytes for row in rows}))}
    return (
        [row for row in rows if order[row.num_bytes] % 2 == 0],
        [row for row in rows if order[row.num_bytes] % 2 == 1],
    )


def mean_error(cluster: Cluster, rows: Sequence[MeasuredCollective]) -> float:
    """Mean of the absolute relative errors."""
    seconds = np.array([row.seconds for row in rows])
    return float(np.abs(collective_times(cluster, rows) / seconds - 1.0).mean())


def main() -> None:
    """Print what fits each link."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    tables = parser.parse_args().data / "tables"
    for link in LINKS:
        cluster = load_cluster(link.cluster)
        seen, unseen = halves(measured_collectives(tables, link))
        fitted = fitted_links(cluster, seen, "published tables")
        level = fitted.levels[cluster.host_index + link.between]
        constants = {name: getattr(level, name) for name in SCALED if getattr(level, name)}
        print(f"[{link.name}]", ", ".join(f"{name} = {x:.4g}" for name, x in constants.items()))
        for what, one in (("as it is", cluster), ("fitted", fitted)):
            errors = f"{mean_error(one, seen):.1%}, held out {mean_error(one, unseen):.1%}"
            print(f"    {what}: {len(seen)} rows {errors} of {len(unseen)}")


if __name__ == "__main__":
    main()
