"""One direction of the parameter servers' links, shared by the flows of workers over time.

Procedure SHARE of Algorithm 1 of Li et al. 2022: with processor sharing every active flow gets the
same part; with first come, first served the one that came first gets all of it. A worker takes no
more than its own rate (its link, or the cap of its flows: their section 4.4); what it cannot take
goes to the others, which for equal limits is progressive filling. A flow is active from its first
byte until it has nothing left to send, and keeps its place meanwhile.

Under processor sharing all flows progress alike, so one clock of bytes served per flow stands for
all of them, and an event costs the logarithm of the number of flows instead of the number.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
INFINITY = float("inf")


class Share(ABC):
    """A link that serves flows of workers, one for each.

    Parameters
    ----------
    capacity
        What the link carries. [B/s]
    limit
        What one flow takes at most. [B/s]
    """

    def __init__(self, capacity: float, limit: float) -> None:
        self.capacity, self.limit = capacity, limit
        self.now = 0.0
        self.served = 0.0  # [B]

    @abstractmethod
    def start(self, now: float, worker: int, amount: float) -> None:
        """Make a flow active with so many bytes. [B]

        Parameters
        ----------
        now
            When. [s]
        worker
            Whose flow.
        amount
            What it has to send. [B]
        """

    @abstractmethod
    def extend(self, worker: int, amount: float) -> None:
        """Give the flow that has just finished more to send, so that it never left. [B]"""

    @abstractmethod
    def next_time(self) -> float:
        """When the next flow will have sent all it has, infinite if there is none. [s]"""

    @abstractmethod
    def finish(self, now: float) -> int:
        """The worker whose flow has sent all it has now."""

    @abstractmethod
    def leave(self, worker: int) -> None:
        """Drop a flow that has just finished, unless it was extended."""

    @abstractmethod
    def times(self, worker: int, amounts: Floats) -> Floats:
        """When a flow had sent so many bytes since it became active; call before it leaves. [s]"""


class ProcessorSharing(Share):
    """Every active flow gets the same part."""

    def __init__(self, capacity: float, limit: float) -> None:
        super().__init__(capacity, limit)
        self.clock = 0.0  # bytes that a flow active since the beginning would have sent
        self.active = 0
        self.goals: list[tuple[float, int]] = []
        self.begin: dict[int, tuple[float, int]] = {}
        self.history_times: list[float] = []
        self.history_clock: list[float] = []

    def _rate(self) -> float:
        return min(self.limit, self.capacity / self.active)

    def _advance(self, now: float) -> None:
        if self.active and now > self.now:
            step = (now - self.now) * self._rate()
            self.clock += step
            self.served += step * self.active
        self.now = now

    def _mark(self) -> None:
        self.history_times.append(self.now)
        self.history_clock.append(self.clock)

    def start(self, now: float, worker: int, amount: float) -> None:
        """Make a flow active; all members share the rate from now on.

        Parameters
        ----------
        now, worker, amount
            When [s], whose flow, and what it has to send [B], as of `Share.start`.
        """
        self._advance(now)
        self._mark()
        self.begin[worker] = (self.clock, len(self.history_clock) - 1)
        heapq.heappush(self.goals, (self.clock + amount, worker))
        self.active += 1

    def extend(self, worker: int, amount: float) -> None:
        heapq.heappush(self.goals, (self.clock + amount, worker))

    def next_time(self) -> float:
        if not self.goals:
            return INFINITY
        return self.now + max(self.goals[0][0] - self.clock, 0.0) / self._rate()

    def finish(self, now: float) -> int:
        self._advance(now)
        goal, worker = heapq.heappop(self.goals)
        # rounding must not let clocks drift apart
        self.clock = max(self.clock, goal)
        self._mark()
        return worker

    def leave(self, worker: int) -> None:
        self.active -= 1
        del self.begin[worker]
        if not self.active:
            # nobody will ask about what is over
            self.history_times.clear()
            self.history_clock.clear()
            self.clock = 0.0

    def times(self, worker: int, amounts: Floats) -> Floats:
        clock, index = self.begin[worker]
        return np.interp(clock + amounts, self.history_clock[index:], self.history_times[index:])


class FirstCome(Share):
    """The flow that became active first gets all it can take, then the next.

    Some flows run at their limit, at most one gets what is left, the others wait; so what a flow
    gets changes at most twice, and only then is anything computed.
    """

    def __init__(self, capacity: float, limit: float) -> None:
        super().__init__(capacity, limit)
        self.places = int(capacity / limit * (1.0 + 1e-12))
        rest = capacity - self.places * limit
        self.rest = rest if rest > 1e-9 * capacity else 0.0
        self.full = 0
        self.partial: int | None = None
        self.waiting: deque[int] = deque()
        self.rates: dict[int, float] = {}
        self.since: dict[int, float] = {}
        self.remaining: dict[int, float] = {}
        self.sent: dict[int, tuple[list[float], list[float]]] = {}
        self.ends: list[tuple[float, int]] = []
        self.end_of: dict[int, float] = {}

    def _give(self, worker: int, rate: float) -> None:
        """Serve a flow at another rate from now on."""
        if worker in self.rates:
            self._settle(worker)
        else:
            self.sent[worker] = ([self.now], [0.0])
        self.rates[worker], self.since[worker] = rate, self.now
        self._plan(worker)

    def _plan(self, worker: int) -> None:
        end = self.now + self.remaining[worker] / self.rates[worker]
        self.end_of[worker] = end
        heapq.heappush(self.ends, (end, worker))

    def _settle(self, worker: int) -> None:
        """Count what a flow has sent since its rate changed."""
        amount = min((self.now - self.since[worker]) * self.rates[worker], self.remaining[worker])
        self._count(worker, amount)

    def _count(self, worker: int, amount: float) -> None:
        self.remaining[worker] -= amount
        self.served += amount
        self.since[worker] = self.now
        times, sent = self.sent[worker]
        times.append(self.now)
        sent.append(sent[-1] + amount)

    def _serve(self) -> None:
        """Fill the places that are free."""
        if self.full < self.places and self.partial is not None:
            self._give(self.partial, self.limit)
            self.full, self.partial = self.full + 1, None
        while self.full < self.places and self.waiting:
            self._give(self.waiting.popleft(), self.limit)
            self.full += 1
        if self.rest and self.partial is None and self.waiting:
            self.partial = self.waiting.popleft()
            self._give(self.partial, self.rest)

    def start(self, now: float, worker: int, amount: float) -> None:
        """Let a flow wait for its turn.

        Parameters
        ----------
        now, worker, amount
            When [s], whose flow, and what it has to send [B], as of `Share.start`.
        """
        self.now = now
        self.remaining[worker] = amount
        self.waiting.append(worker)
        self._serve()

    def extend(self, worker: int, amount: float) -> None:
        self.remaining[worker] = amount
        self._plan(worker)

    def next_time(self) -> float:
        while self.ends and self.end_of.get(self.ends[0][1]) != self.ends[0][0]:
            heapq.heappop(self.ends)  # its rate has changed since
        return self.ends[0][0] if self.ends else INFINITY

    def finish(self, now: float) -> int:
        self.now = now
        _, worker = heapq.heappop(self.ends)
        del self.end_of[worker]
        self._count(worker, self.remaining[worker])
        return worker

    def leave(self, worker: int) -> None:
        if worker == self.partial:
            self.partial = None
        else:
            self.full -= 1
        del self.rates[worker], self.since[worker], self.remaining[worker], self.sent[worker]
        self._serve()

    def times(self, worker: int, amounts: Floats) -> Floats:
        times, sent = self.sent[worker]
        return np.interp(amounts, sent, times)
