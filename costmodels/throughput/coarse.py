"""The coarse-grained models of Li et al. 2022: a step as downlink, computation, uplink, update.

Async-SGD with parameter servers is a closed queueing network (equations 1 to 6, see `mva`),
Sync-SGD is a sum of phases (equations 7 to 10), and so is a ring all-reduce (equation 11).

Beyond the paper, all of which vanishes in its own cases:

- A cap on flows, and several servers, let some flows pass side by side. A station that serves m at
  once is taken as one that is m times as fast and a delay for the rest (Seidmann et al. 1987); a
  phase of Sync-SGD takes no less than one flow alone.
- The slowest kind of worker determines a phase of Sync-SGD.
- What happens inside a host of several GPUs adds to the passes (section 4.4): the broadcast to the
  forward pass, the all-reduce to the backward pass.
- An all-reduce that overlaps hides behind the backward pass: T_F + max(T_B, all-reduce). The update
  that follows it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.throughput.mva import (
    FIRST_COME,
    MAX_POPULATIONS,
    PROCESSOR_SHARING,
    Solution,
    mean_values,
)
from costmodels.throughput.profile import Links, WorkerClass, check_classes

Floats = NDArray[np.float64]
_T = TypeVar("_T", float, NDArray[np.float64])
HYBRID = "hybrid"
UTILISATION_THRESHOLD = 0.6
"""rho_T: what the paper found best on its GPU clusters; 0.5 on its CPU cluster."""


class Predicted(Struct, frozen=True, kw_only=True):
    """What a coarse-grained model predicts.

    Parameters
    ----------
    throughput
        Samples of all workers a second. [samples/s]
    step_time
        Time of a step; of Async-SGD the mean over workers. [s]
    utilisation
        Part of the capacity of the links in use.
    rule
        How flows share links: "processor-sharing", "first-come", "hybrid" (the mean of both), or
        "" in a ring.
    exact
        Whether mean value analysis ran over all populations; None where none is needed.
    """

    throughput: float
    step_time: float
    utilisation: float
    rule: str
    exact: bool | None = None


def _phases(one: WorkerClass) -> tuple[float, float]:
    """Forward and backward of a worker with what its host adds. [s]"""
    profile = one.profile
    return (
        profile.forward_time + float(profile.broadcast.sum()),
        profile.backward_time + float(profile.reduce.sum()),
    )


def predict_async(
    classes: Sequence[WorkerClass],
    links: Links,
    *,
    overlap: bool = True,
    threshold: float = UTILISATION_THRESHOLD,
    rule: str = HYBRID,
    max_populations: int = MAX_POPULATIONS,
) -> Predicted:
    """Async-SGD with parameter servers, equations 3 to 6.

    Parameters
    ----------
    classes
        The workers.
    links
        Their links and the servers'.
    overlap
        Whether transfers overlap computation: the correction of equation 6.
    threshold
        rho_T: the network is shared first come, first served up to this utilisation.
    rule
        "hybrid" chooses by the threshold; "processor-sharing" and "first-come" do not choose.
    max_populations
        As of `mva.solve`.
    """
    model = check_classes(tuple(classes))
    counts = [one.count for one in classes]
    transfer = model / links.capacity
    # the part of a transfer that others do not wait for
    beside = model / links.worker_rate - transfer
    updates = [one.profile.update_time / links.servers for one in classes]
    service = np.array([[transfer, update, transfer] for update in updates])
    phases = np.array([_phases(one) for one in classes])

    def run(compute: Floats, discipline: str) -> Solution:
        stations = (discipline, PROCESSOR_SHARING, discipline)
        return mean_values(
            counts, compute + 2.0 * beside, service, stations, max_populations=max_populations
        )

    def by_rule(compute: Floats) -> tuple[Solution, str]:
        return _by_rule(lambda discipline: run(compute, discipline), rule, threshold)

    solution, used = by_rule(phases.sum(axis=1))
    if overlap:
        uplink, downlink = (solution.response[:, station] + beside for station in (0, 2))
        left = np.maximum(phases[:, 0] - downlink, 0.0) + np.maximum(phases[:, 1] - uplink, 0.0)
        solution, used = by_rule(left)
    samples = np.array([one.profile.samples for one in classes])
    # equation 2 overshoots where all queue: no link carries more than it can
    busy = float(solution.busy.max())
    rates = solution.cycle_rate / max(busy, 1.0)
    return Predicted(
        throughput=float(rates @ samples),
        step_time=sum(counts) / float(rates.sum()),
        utilisation=float(solution.busy[[0, 2]].max()) / max(busy, 1.0),
        rule=used,
        exact=solution.exact,
    )


def _by_rule(run: Callable[[str], Solution], rule: str, threshold: float) -> tuple[Solution, str]:
    """Solve with the discipline that the rule chooses; the name of that one, too (section 3.1)."""
    if rule != HYBRID:
        return run(rule), rule
    solution = run(FIRST_COME)
    if float(solution.busy[[0, 2]].max()) <= threshold:
        return solution, FIRST_COME
    return run(PROCESSOR_SHARING), PROCESSOR_SHARING


def predict_sync(
    classes: Sequence[WorkerClass], links: Links, *, overlap: bool = True, rule: str = HYBRID
) -> Predicted:
    """Sync-SGD with parameter servers, equations 7 to 10.

    Parameters
    ----------
    classes, links, overlap
        As of `predict_async`.
    rule
        "processor-sharing" is equation 7, "first-come" equation 8, "hybrid" their mean.
    """
    model = check_classes(tuple(classes))
    num = sum(one.count for one in classes)
    alone = model / links.worker_rate
    together = max(num * model / links.capacity, alone)
    uplink = {PROCESSOR_SHARING: together, FIRST_COME: alone, HYBRID: 0.5 * (together + alone)}[
        rule
    ]
    times = []
    for one in classes:
        forward, backward = _phases(one)
        if overlap:
            step = max(together, forward) + max(uplink, backward)
        else:
            step = together + forward + backward + uplink
        times.append(step + one.profile.update_time / links.servers)
    step_time = max(times)
    samples = sum(one.count * one.profile.samples for one in classes)
    return Predicted(
        throughput=samples / step_time,
        step_time=step_time,
        utilisation=num * model / links.capacity / step_time,
        rule=rule,
    )


def ring_time(num_workers: int, transfer: _T) -> _T:
    """Ring all-reduce: 2 (K - 1) / K times a transfer, which tends to twice that. [s]

    Parameters
    ----------
    num_workers
        K. [items]
    transfer
        T: one transfer of all bytes between two workers. [s]
    """
    return transfer * (2.0 * (num_workers - 1) / num_workers)


def predict_all_reduce(
    classes: Sequence[WorkerClass], links: Links, *, overlap: bool = True
) -> Predicted:
    """Sync-SGD with a ring all-reduce, equation 11.

    Parameters
    ----------
    classes, links, overlap
        As of `predict_async`; the cap on flows does not bind (section 4.4).
    """
    model = check_classes(tuple(classes))
    num = sum(one.count for one in classes)
    exchange = ring_time(num, model / links.bandwidth)
    times = []
    for one in classes:
        forward, backward = _phases(one)
        after = max(backward, exchange) if overlap else backward + exchange
        times.append(forward + after + one.profile.update_time)
    step_time = max(times)
    samples = sum(one.count * one.profile.samples for one in classes)
    return Predicted(
        throughput=samples / step_time,
        step_time=step_time,
        utilisation=exchange / step_time,
        rule="",
    )
