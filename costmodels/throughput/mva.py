"""Mean value analysis of closed queueing networks with several classes of customers.

Li et al. 2022, equations 1 and 2: a customer that arrives at a station sees what the network would
hold on average without it (the arrival theorem, exact for processor sharing). Their recursion runs
over all subsets of workers, which is exponential. Identical workers here form a class, and the
recursion runs over how many of each class there are: the product of (n_c + 1) populations, the
same numbers. Where even that is too many, the approximation of Bard and Schweitzer scales the
queue of the full population instead; the answer says which it was. The residual service of
equation 2 (half of what is being served) is itself an approximation of first come, first served:
where nearly all customers queue at one station it serves up to a third more than it can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike, NDArray

from costmodels.errors import InputError

Floats = NDArray[np.float64]

PROCESSOR_SHARING, FIRST_COME = "processor-sharing", "first-come"
# Populations up to which the recursion is exact: some seconds and some ten megabytes.
MAX_POPULATIONS = 200_000
_TOLERANCE, _MAX_ROUNDS = 1e-12, 100_000


class Solution(Struct, frozen=True, kw_only=True, eq=False):
    """Mean values at the full population; rows are classes, columns stations.

    Parameters
    ----------
    cycle_rate
        Rounds of all customers of a class together. [1/s]
    response
        Time that a customer spends at a station in a round, waiting included. [s]
    queue
        Customers of a class at a station. [items]
    utilisation
        Part of the time that a station serves a class.
    exact
        Whether the recursion ran over all populations.
    """

    cycle_rate: Floats
    response: Floats
    queue: Floats
    utilisation: Floats
    exact: bool

    @property
    def busy(self) -> Floats:
        """Part of the time that each station serves somebody."""
        return np.asarray(self.utilisation.sum(axis=0))


def mean_values(
    counts: Sequence[int],
    think: ArrayLike,
    service: ArrayLike,
    disciplines: Sequence[str],
    *,
    max_populations: int = MAX_POPULATIONS,
) -> Solution:
    """Solve a closed network.

    Parameters
    ----------
    counts
        Customers of each class. [items]
    think
        Time of each class at stations of its own, where nobody waits. [s]
    service
        Mean service time; rows are classes, columns stations. [s]
    disciplines
        "processor-sharing" or "first-come" for each station.
    max_populations
        More populations than that are approximated. [items]
    """
    sizes = np.asarray(counts, dtype=np.int64)
    times = np.asarray(service, dtype=float)
    delays = np.broadcast_to(np.asarray(think, dtype=float), sizes.shape)
    assert times.shape == (len(sizes), len(disciplines)), "one service time a class and station"
    if (sizes < 0).any() or sizes.sum() < 1:
        raise InputError(
            f"a queueing network must have at least 1 customer but has {list(counts)} in its "
            "classes; raise a number"
        )
    shared = np.array([d == PROCESSOR_SHARING for d in disciplines])
    if math.prod(int(n) + 1 for n in sizes) <= max_populations:
        return _exact(sizes, delays, times, shared)
    return _approximate(sizes, delays, times, shared)


def _response(times: Floats, shared: NDArray[np.bool_], queue: Floats, busy: Floats) -> Floats:
    """Equations 1 and 2; queue and busy are what an arriving customer of the first axis sees.

    Axes are (..., arriving class, class met, station).
    """
    sharing = times * (1.0 + queue.sum(axis=-2))
    served_first = times + (times * (queue - 0.5 * busy)).sum(axis=-2)
    response: Floats = np.where(shared, sharing, served_first)
    return response


def _exact(
    counts: NDArray[np.int64], think: Floats, times: Floats, shared: NDArray[np.bool_]
) -> Solution:
    """Run the recursion level by level: populations of equal total depend on those one below."""
    shape = counts + 1
    populations = np.indices(tuple(shape)).reshape(len(counts), -1).T
    totals = populations.sum(axis=1)
    strides = np.array([math.prod(map(int, shape[c + 1 :])) for c in range(len(counts))])
    order = np.argsort(totals, kind="stable")
    bounds = np.searchsorted(totals[order], np.arange(counts.sum() + 2))
    # of every population of the level below: (class, station)
    place = np.zeros(len(totals), dtype=np.int64)
    queue = busy = np.zeros((1, *times.shape))
    rate, response = np.zeros((1, len(counts))), np.zeros((1, *times.shape))
    for level in range(1, int(counts.sum()) + 1):
        rows = order[bounds[level] : bounds[level + 1]]
        present = populations[rows] > 0
        before = place[np.where(present, rows[:, None] - strides, 0)]
        # a class that is absent has no customer to arrive: whatever it reads is not used
        before = np.where(present, before, 0)
        response = _response(times, shared, queue[before], busy[before])
        rate = populations[rows] / (think + response.sum(axis=-1))
        queue, busy = rate[..., None] * response, rate[..., None] * times
        place[rows] = np.arange(len(rows))
    return Solution(
        cycle_rate=rate[0],
        response=response[0],
        queue=queue[0],
        utilisation=busy[0],
        exact=True,
    )


def _approximate(
    counts: NDArray[np.int64], think: Floats, times: Floats, shared: NDArray[np.bool_]
) -> Solution:
    """Take queues with one customer fewer as proportional to those of all (Bard, Schweitzer)."""
    num = len(counts)
    share = np.broadcast_to(np.ones(num), (num, num)).copy()
    full = counts > 0
    share[np.arange(num), np.arange(num)] = np.where(full, (counts - 1) / np.maximum(counts, 1), 0)
    queue = np.broadcast_to(counts[:, None] / times.shape[1], times.shape).astype(float)
    busy = np.zeros_like(queue)
    for _ in range(_MAX_ROUNDS):
        seen, served = (share[:, :, None] * x for x in (queue, busy))
        response = _response(times, shared, seen, served)
        rate = counts / (think + response.sum(axis=-1))
        new_queue, new_busy = rate[:, None] * response, rate[:, None] * times
        change = float(np.abs(new_queue - queue).max())
        queue, busy = 0.5 * (queue + new_queue), 0.5 * (busy + new_busy)
        if change <= _TOLERANCE * counts.sum():
            break
    return Solution(
        cycle_rate=rate,
        response=response,
        queue=rate[:, None] * response,
        utilisation=rate[:, None] * times,
        exact=False,
    )
