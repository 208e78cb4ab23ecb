"""Algorithm 1 of Li et al. 2022 as an event loop: workers, their timers and two shared links.

An event is a flow that has sent all it has, or a worker that begins a step or has gradients to send
again; what a worker does in between is computed at once (see `timeline`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from costmodels.throughput.mva import PROCESSOR_SHARING
from costmodels.throughput.profile import Links, WorkerClass
from costmodels.throughput.shares import FirstCome, ProcessorSharing, Share
from costmodels.throughput.timeline import WorkerTimeline, chain

Floats = NDArray[np.float64]
_STEP, _SEND = 0, 1  # kinds of timers: a step begins, gradients become ready on an idle uplink


def compute_factors(rng: np.random.Generator, variation: float, shape: tuple[int, ...]) -> Floats:
    """Computation of steps relative to the profile: gamma with mean 1.

    Parameters
    ----------
    rng
        Draws them.
    variation
        Their coefficient of variation; 0 for none.
    shape
        Shape of the result.
    """
    if variation == 0.0:
        return np.ones(shape)
    scale = variation**2
    return np.asarray(rng.gamma(1.0 / scale, scale, shape))


class WorkerLoop:
    """One simulation of workers around parameter servers.

    Parameters
    ----------
    classes, links
        The workers, their links and the servers'.
    discipline
        How flows share a link: "processor-sharing" or "first-come".
    synchronous
        Whether a step begins when all workers have completed the one before.
    overlap
        Whether transfers overlap computation layer by layer.
    variation
        Coefficient of variation of the computation of a step.
    phases
        When each worker begins, from 0 to 1 of a round; None for all at once.
    rng
        Draws the variation.
    """

    def __init__(
        self,
        classes: Sequence[WorkerClass],
        links: Links,
        *,
        discipline: str,
        synchronous: bool,
        overlap: bool,
        variation: float,
        phases: Floats | None,
        rng: np.random.Generator,
    ) -> None:
        kinds = [WorkerTimeline.of(one.profile, overlap) for one in classes]
        self.classes, self.links, self.synchronous = classes, links, synchronous
        self.of = [kind for one, kind in zip(classes, kinds, strict=True) for _ in range(one.count)]
        share = ProcessorSharing if discipline == PROCESSOR_SHARING else FirstCome
        self.down: Share = share(links.capacity, links.worker_rate)
        self.up: Share = share(links.capacity, links.worker_rate)
        self.rng, self.variation = rng, variation
        self.timers: list[tuple[float, int, int]] = []
        num = len(self.of)
        self.phases = np.zeros(num) if phases is None else phases
        self.releases: list[list[float]] = [[] for _ in range(num)]
        self.sent = [0] * num  # gradients given to the uplink
        self.busy_from = [0] * num  # first of them since the uplink became active
        self.computed, self.updated = [0.0] * num, [0.0] * num
        self.updates = {id(k): k.updates / links.servers for k in kinds}
        self.totals = [np.concatenate([[0.0], np.cumsum(kind.sizes)]) for kind in self.of]
        self.model = float(self.totals[0][-1])
        self.begins: list[list[float]] = [[] for _ in range(num)]
        self.waiting = num
        self.latest = 0.0

    def until(self, steps: int) -> None:
        """Run until the slowest worker has made so many steps."""
        for worker, begin in enumerate(self.phases * self._round_time()):
            heapq.heappush(self.timers, (float(begin), _STEP, worker))
        missing = len(self.of)
        while missing:
            timer = self.timers[0][0] if self.timers else float("inf")
            down, up = self.down.next_time(), self.up.next_time()
            if timer <= down and timer <= up:
                now, kind, worker = heapq.heappop(self.timers)
                if kind == _SEND:
                    self._send(now, worker)
                    continue
                self.begins[worker].append(now)
                missing -= len(self.begins[worker]) == steps + 1
                self.down.start(now, worker, self.model)
            elif down <= up:
                worker = self.down.finish(down)
                self._received(worker)
                self.down.leave(worker)
            else:
                self._sent(up, self.up.finish(up))

    def _round_time(self) -> float:
        """What a step takes about, without waiting or with the links as the bottleneck. [s]"""
        links = self.links
        alone = max(one.profile.compute_time for one in self.classes)
        alone += 2.0 * self.model / links.worker_rate
        return float(max(alone, len(self.of) * self.model / links.capacity))

    def _received(self, worker: int) -> None:
        """All parameters are there: everything up to the uplink follows."""
        kind = self.of[worker]
        arrivals = self.down.times(worker, kind.arrivals)
        # layers without parameters that come first wait for nothing
        arrivals[kind.arrivals == 0.0] = self.begins[worker][-1]
        factor = float(compute_factors(self.rng, self.variation, ()))
        ready, self.computed[worker] = kind.releases(arrivals, factor)
        self.releases[worker] = ready.tolist()
        self.sent[worker] = 0
        self.updated[worker] = 0.0
        heapq.heappush(self.timers, (self.releases[worker][0], _SEND, worker))

    def _ready(self, now: float, worker: int) -> float:
        """Gradients that are ready and not yet given to the uplink, which now get them. [B]"""
        releases, first = self.releases[worker], self.sent[worker]
        last, end = first, len(releases)
        while last < end and releases[last] <= now:
            last += 1
        self.sent[worker] = last
        totals = self.totals[worker]
        return float(totals[last] - totals[first])

    def _send(self, now: float, worker: int) -> None:
        self.busy_from[worker] = self.sent[worker]
        self.up.start(now, worker, self._ready(now, worker))

    def _sent(self, now: float, worker: int) -> None:
        """All gradients that were ready have been sent."""
        more = self._ready(now, worker)
        if more > 0.0:
            self.up.extend(worker, more)
            return
        self._update(now, worker)
        self.up.leave(worker)
        if self.sent[worker] < len(self.releases[worker]):
            timer = self.releases[worker][self.sent[worker]]
            heapq.heappush(self.timers, (timer, _SEND, worker))
        else:
            self._completed(max(now, self.updated[worker], self.computed[worker]), worker)

    def _update(self, now: float, worker: int) -> None:
        """Gradients of the busy period that ends now are applied one after the other."""
        kind = self.of[worker]
        first, last = self.busy_from[worker], self.sent[worker]
        durations = self.updates[id(kind)][first:last]
        if not kind.overlap or last - first == 1:
            # without overlap the update follows the transfer of all
            end = max(now, self.updated[worker]) + float(durations.sum())
        else:
            totals = self.totals[worker]
            ready = self.up.times(worker, totals[first + 1 : last + 1] - totals[first])
            ready[0] = max(ready[0], self.updated[worker])
            end = float(chain(ready, durations)[-1])
        self.updated[worker] = end

    def _completed(self, now: float, worker: int) -> None:
        if not self.synchronous:
            heapq.heappush(self.timers, (now, _STEP, worker))
            return
        self.waiting -= 1
        self.latest = max(self.latest, now)
        if self.waiting == 0:
            for one in range(len(self.of)):
                heapq.heappush(self.timers, (self.latest, _STEP, one))
            self.waiting, self.latest = len(self.of), 0.0

    def rates(self, first: int) -> Floats:
        """Steps of each worker a second from its step `first` on. [1/s]"""
        return np.array([(len(b) - 1 - first) / (b[-1] - b[first]) for b in self.begins])

    @property
    def num_steps(self) -> int:
        """Completed steps of all workers. [items]"""
        return sum(len(begins) - 1 for begins in self.begins)
