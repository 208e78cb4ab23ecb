"""Links of a cluster, fitted to collectives that were measured on such machines.

What a level costs is scaled: its bandwidth, the latency of a step, the start of a collective, how
slowly the bandwidth is reached, and the same of switches that reduce. One factor each holds for all
levels inside a host, fitted to collectives within one host, and one for those between hosts, fitted
to collectives of several. The forms of the algorithms stay, so all that bounds rely on stays true.

The factors are fitted by robust Gauss-Newton steps on the logarithm of the time, drawn a little to
one, which keeps what the rows do not tell. Assumes that every host has the same number of GPUs in
the group, and that nothing else uses the links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.cluster.cluster import Cluster
from costmodels.cluster.level import Level
from costmodels.communication.collectives import (
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    reduce_scatter_time,
)
from costmodels.communication.topology import Floats, Topology
from costmodels.errors import InputError

SCALED: Final = (
    *("bandwidth", "latency", "start_latency", "ramp"),
    *("in_network_bandwidth", "in_network_latency"),
)
COLLECTIVES: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")

# Weight of a factor of one beside the rows, and the largest logarithm of a factor.
_PULL: Final = 0.1
_FURTHEST: Final = float(np.log(20.0))
_STEPS: Final = 12
# Logarithms of the factors of the bandwidth to start from.
_BANDWIDTHS: Final = (0.0, -1.0, -2.0)
_DIFFERENCE: Final = 1e-3
# Logarithmic error beyond which a row counts less.
_OUTLIER: Final = 0.2


class MeasuredCollective(Struct, frozen=True, kw_only=True):
    """A collective of some GPUs, each of which holds `num_bytes` before or after it."""

    collective: str
    num_hosts: int
    num_gpus: int
    num_bytes: float
    seconds: float


def collective_times(cluster: Cluster, rows: Sequence[MeasuredCollective]) -> Floats:
    """Predicted time of each row on a cluster. [s]

    Parameters
    ----------
    cluster
        The machine.
    rows
        What is predicted.
    """
    result = np.zeros(len(rows))
    cluster = replace(cluster, curves=())
    alike: dict[tuple[str, int, int], list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        alike[row.collective, row.num_hosts, row.num_gpus].append(number)
    for (collective, hosts, gpus), members in alike.items():
        topology = Topology.of(cluster, cluster.shape(hosts * cluster.devices_per_host))
        group, inside, outside = [], gpus // hosts, hosts
        for level, used in enumerate(topology.shape):
            rest = inside if level <= cluster.host_index else outside
            group.append(min(used, rest))
            if level <= cluster.host_index:
                inside //= group[-1]
            else:
                outside //= group[-1]
        sizes = np.array([rows[i].num_bytes for i in members])
        result[members] = _time(collective, topology, group, sizes)
    return result


def _time(collective: str, topology: Topology, group: list[int], sizes: Floats) -> Floats:
    if collective == "all_reduce":
        return all_reduce_time(topology, group, sizes)
    if collective == "all_gather":
        return all_gather_time(topology, group, sizes / np.prod(group))
    if collective == "reduce_scatter":
        return reduce_scatter_time(topology, group, sizes)
    return all_to_all_time(topology, group, sizes)


def fitted_links(cluster: Cluster, rows: Sequence[MeasuredCollective], source: str) -> Cluster:
    """A cluster whose links are fitted to measured collectives; itself where it already is.

    Parameters
    ----------
    cluster
        The machine.
    rows
        Collectives of machines like it.
    source
        Where they are from, in a few words.

    Raises
    ------
    InputError
        When no row can lie on the cluster.
    """
    per_host, num_hosts = cluster.devices_per_host, cluster.num_devices // cluster.devices_per_host
    usable = [
        row
        for row in rows
        if row.num_gpus // row.num_hosts <= per_host and row.num_hosts <= num_hosts
    ]
    if not usable:
        raise InputError(
            f"measured collectives must be of hosts with at most {per_host} GPUs, and of at most "
            f"{num_hosts} hosts, to tell the links of cluster {cluster.name}, but none of "
            f"{len(rows)} is; give a table of machines like it"
        )
    for several, levels in (
        (False, range(cluster.host_index + 1)),
        (True, range(cluster.host_index + 1, len(cluster.levels))),
    ):
        chosen = [row for row in usable if (row.num_hosts > 1) == several]
        mark = f"Fitted to {len(chosen)} measured collectives of {source}."
        known = all(cluster.levels[level].source.endswith(mark) for level in levels)
        if chosen and levels and not known:
            cluster = _fitted(cluster, levels, chosen, mark)
    return cluster


def _fitted(
    cluster: Cluster, levels: Iterable[int], rows: Sequence[MeasuredCollective], mark: str
) -> Cluster:
    """The cluster with the links of some levels fitted to rows."""
    chosen = frozenset(levels)
    names = [
        name for name in SCALED if any(getattr(cluster.levels[level], name) for level in chosen)
    ]
    measured = np.log([row.seconds for row in rows])

    def off(factors: Floats) -> Floats:
        scaled = _with_factors(cluster, chosen, dict(zip(names, np.exp(factors), strict=True)), "")
        error: Floats = np.log(collective_times(scaled, rows)) - measured
        return error

    # where the other links are the slowest, a small change of these shows nothing
    tries = (
        _descended(off, np.array([start if name == "bandwidth" else 0.0 for name in names]))
        for start in _BANDWIDTHS
    )
    factors = min(tries, key=lambda factors: _cost(off(factors), factors))
    return _with_factors(cluster, chosen, dict(zip(names, np.exp(factors), strict=True)), mark)


def _descended(off: Callable[[Floats], Floats], factors: Floats) -> Floats:
    """Logarithms of factors with less error, from some on, by Gauss-Newton steps.

    Parameters
    ----------
    off
        Logarithmic error of every row.
    factors
        Where to start.
    """
    error = off(factors)
    for _ in range(_STEPS):
        moved = np.eye(factors.size) * _DIFFERENCE
        slopes = np.stack([(off(factors + one) - error) / _DIFFERENCE for one in moved], axis=1)
        weight = 1.0 / np.sqrt(1.0 + np.square(error / _OUTLIER))
        pull = _PULL**2 * error.size
        normal = slopes.T @ (weight[:, None] * slopes) + pull * np.eye(factors.size)
        step = -np.linalg.solve(normal, slopes.T @ (weight * error) + pull * factors)
        best = _cost(error, factors)
        for part in (1.0, 0.3, 0.1):
            trial = np.clip(factors + part * step, -_FURTHEST, _FURTHEST)
            tried = off(trial)
            if _cost(tried, trial) < best - 1e-9:
                factors, error = trial, tried
                break
        else:
            break
    return factors


def _cost(error: Floats, factors: Floats) -> float:
    robust = _OUTLIER**2 * (np.sqrt(1.0 + np.square(error / _OUTLIER)) - 1.0)
    return float(robust.mean() + 0.5 * _PULL**2 * np.square(factors).sum())


def _with_factors(
    cluster: Cluster, levels: frozenset[int], factors: dict[str, float], mark: str
) -> Cluster:
    def one(level: Level) -> Level:
        known = {name: getattr(level, name) for name in factors}
        new: dict[str, Any] = {
            name: float(old * factors[name]) for name, old in known.items() if old
        }
        return replace(level, **new, source=f"{level.source} {mark}".strip())

    return replace(
        cluster,
        levels=tuple(
            one(level) if number in levels else level for number, level in enumerate(cluster.levels)
        ),
    )
