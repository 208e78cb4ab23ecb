"""The fine-grained model: Algorithm 1 of Li et al. 2022, a simulation of every operation.

A worker receives layer after layer, runs each forward pass as soon as the layer and the pass before
are there, backward passes in the reverse order, sends each layer's gradients as soon as they are
made, and the server applies each as it comes. Only links are shared (see `shares`); so events are
flows that begin to send or run out of bytes, and all else is computed in between (see `timeline`),
which gives what Algorithm 1 gives operation by operation.

What the paper leaves open or measures, and how it is taken here:

- The paper draws each step from 100 recorded ones. Here the computation of a step is the profile
  times a factor of mean 1 (gamma, coefficient of variation `variation`), drawn anew for each step.
- Workers of Async-SGD begin at any time within a round, and the mean over several such runs counts:
  workers that are nearly alike keep their distance for hundreds of steps, so that one run says as
  much about how they happened to begin as about the network. Begun at once, they would always meet
  at the links.
- Async-SGD is counted from a quarter of the steps on, until the slowest worker has made all its
  steps; the others go on meanwhile.
- Steps that vary little let overlapping workers of Async-SGD fall into taking turns, which no
  queueing network knows of: around the onset of saturation the simulation is then up to a fifth
  above the coarse-grained model, and close to it again with a `variation` of 0.5.
- Several servers hold parts of all layers: one link of their joint capacity, and a worker is
  limited by its own link and by the cap times the number of servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.errors import InputError
from costmodels.throughput.coarse import ring_time
from costmodels.throughput.events import WorkerLoop, compute_factors
from costmodels.throughput.mva import FIRST_COME, PROCESSOR_SHARING
from costmodels.throughput.profile import Links, WorkerClass, check_classes
from costmodels.throughput.timeline import WorkerTimeline, chain

Floats = NDArray[np.float64]
# Steps of a worker in a run, of many workers, and from how many workers on. [items]
STEPS, FEWER_STEPS, MANY_WORKERS = 24, 12, 100
# Runs from different beginnings, and steps of all workers in all runs aimed at. [items]
LEAST_RUNS, MOST_RUNS, STEPS_IN_ALL = 2, 40, 4000
VARIATION = 0.02
"""Coefficient of variation of the computation of a step: an assumption, a few percent at most."""


class SimulatedThroughput(Struct, frozen=True, kw_only=True):
    """What simulations found.

    Parameters
    ----------
    throughput
        Samples of all workers a second, mean over runs. [samples/s]
    deviation
        Standard deviation of that between runs; 0 where there was one. [samples/s]
    step_time
        Mean time of a step; of Async-SGD the mean over workers. [s]
    utilisation
        Part of the capacity of the links in use.
    downlink_bytes, uplink_bytes
        What the servers sent and received in all runs. [B]
    num_steps, num_runs
        Steps of all workers in all runs, and runs. [items]
    """

    throughput: float
    deviation: float
    step_time: float
    utilisation: float
    downlink_bytes: float
    uplink_bytes: float
    num_steps: int
    num_runs: int


# More steps tell nothing new, and take minutes. [items]
_MOST_STEPS = 100_000


def default_steps(num_workers: int) -> int:
    """Steps of each worker in a run. [items]"""
    return STEPS if num_workers < MANY_WORKERS else FEWER_STEPS


def check_effort(steps: int | None, variation: float) -> None:
    """Refuse what cannot be simulated.

    Raises
    ------
    InputError
        When there are no steps, or the variation is none.
    """
    if steps is not None and not 1 <= steps <= _MOST_STEPS:
        raise InputError(
            f"a simulation must have from 1 to {_MOST_STEPS:,} steps of each worker but has "
            f"{steps}; correct --steps"
        )
    if not 0.0 <= variation <= 1.0:
        raise InputError.rule(
            "the variation of computation",
            "be from 0 to 1",
            f"{variation:g}",
            "0.02 is usual",
        )


def _beginnings(num_workers: int, runs: int, rng: np.random.Generator) -> Floats:
    """Evenly spread beginnings of the workers in each run, from 0 to 1: a shifted lattice.

    The generalised golden ratio g is the root of g^(d + 1) = g + 1 in d dimensions.
    """
    golden = 1.0
    for _ in range(64):
        golden = (1.0 + golden) ** (1.0 / (num_workers + 1))
    steps = golden ** -np.arange(1.0, num_workers + 1)
    spread: Floats = (rng.uniform(size=num_workers) + np.outer(np.arange(runs), steps)) % 1.0
    return spread


def _effort(
    num_workers: int,
    steps: int | None,
    runs: int | None,
    *,
    synchronous: bool,
    variation: float,
) -> tuple[int, int]:
    """Steps of each worker in a run, and runs. [items]"""
    steps = default_steps(num_workers) if steps is None else steps
    if synchronous and variation == 0.0:
        steps = 1  # all are alike
    if synchronous or num_workers == 1:
        return steps, 1
    if runs is None:
        runs = min(max(STEPS_IN_ALL // (num_workers * steps), LEAST_RUNS), MOST_RUNS)
    return steps, runs


def simulate_workers(
    classes: Sequence[WorkerClass],
    links: Links,
    *,
    synchronous: bool,
    discipline: str = PROCESSOR_SHARING,
    overlap: bool = True,
    steps: int | None = None,
    runs: int | None = None,
    variation: float = VARIATION,
    seed: int = 0,
) -> SimulatedThroughput:
    """Simulate workers around parameter servers.

    Parameters
    ----------
    classes
        The workers.
    links
        Their links and the servers'.
    synchronous
        Whether a step begins when all workers have completed the one before.
    discipline
        How flows share a link: "processor-sharing" or "first-come".
    overlap
        Whether transfers overlap computation layer by layer.
    steps
        Steps of each worker in a run at least; by default enough for a prediction. [items]
    runs
        Runs of Async-SGD from different beginnings; by default as many as pay. [items]
    variation
        Coefficient of variation of the computation of a step.
    seed
        Seed of that variation and of the beginnings.
    """
    assert discipline in (PROCESSOR_SHARING, FIRST_COME)
    model = check_classes(tuple(classes))
    num = sum(one.count for one in classes)
    check_effort(steps, variation)
    steps, runs = _effort(num, steps, runs, synchronous=synchronous, variation=variation)
    rng = np.random.default_rng(seed)
    samples = [one.profile.samples for one in classes for _ in range(one.count)]
    options: dict[str, Any] = {"discipline": discipline, "synchronous": synchronous}
    options |= {"overlap": overlap, "variation": variation, "rng": rng}
    together = synchronous or num == 1
    throughputs, rates, down, up, done = [], [], 0.0, 0.0, 0
    for phases in _beginnings(num, runs, rng):
        run = WorkerLoop(classes, links, phases=None if together else phases, **options)
        run.until(steps)
        found = run.rates(0 if synchronous else steps // 4)
        # a worker's window may end with a step that others wait for in theirs: together they
        # still move no more than the links carry
        found = found / max(model * float(found.sum()) / links.capacity, 1.0)
        rates.append(found)
        throughputs.append(float(found @ samples))
        down, up = down + run.down.served, up + run.up.served
        done += run.num_steps
    rate = np.mean(rates, axis=0)
    return SimulatedThroughput(
        throughput=float(np.mean(throughputs)),
        deviation=float(np.std(throughputs)),
        step_time=1.0 / float(rate.mean()),
        utilisation=model * float(rate.sum()) / links.capacity,
        downlink_bytes=down,
        uplink_bytes=up,
        num_steps=done,
        num_runs=runs,
    )


def simulate_all_reduce(
    classes: Sequence[WorkerClass],
    links: Links,
    *,
    overlap: bool = True,
    steps: int | None = None,
    variation: float = VARIATION,
    seed: int = 0,
) -> SimulatedThroughput:
    """Simulate workers in a ring: Algorithm 1 with link model ALL_REDUCE (section 3.2.2).

    There is no downlink, and every worker has its link to itself; the cap on flows does not bind,
    since the communication library opens several (section 4.4).

    Parameters
    ----------
    classes, links, overlap, steps, variation, seed
        As of `simulate_workers`.
    """
    check_classes(tuple(classes))
    num = sum(one.count for one in classes)
    check_effort(steps, variation)
    if variation == 0.0:
        steps = 1  # all are alike
    elif steps is None:
        steps = default_steps(num)
    rng = np.random.default_rng(seed)
    ends, moved = np.zeros(steps), 0.0
    for one in classes:
        kind = WorkerTimeline.of(one.profile, overlap)
        transfers = ring_time(num, kind.sizes / links.bandwidth)
        moved = float(transfers.sum())
        here = np.zeros(len(kind.arrivals))
        for step, factors in enumerate(compute_factors(rng, variation, (steps, one.count))):
            # computation is one chain without waiting, so the slowest worker ends last
            ready, computed = kind.releases(here, float(factors.max()))
            received = chain(ready, transfers)
            if overlap:
                end = chain(received, kind.updates)[-1]
            else:
                end = received[-1] + kind.updates.sum()
            ends[step] = max(ends[step], float(end), computed)
    samples = sum(one.count * one.profile.samples for one in classes)
    step_time = float(ends.mean())
    return SimulatedThroughput(
        throughput=samples / step_time,
        deviation=0.0,
        step_time=step_time,
        utilisation=moved / step_time,
        downlink_bytes=0.0,
        uplink_bytes=moved * links.bandwidth * num * steps,
        num_steps=steps * num,
        num_runs=1,
    )
