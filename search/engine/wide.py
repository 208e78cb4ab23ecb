"""The search engine for large cores: always the best assignment so far, and a bound.

Models: rounds of jobs that run side by side. One lane moves prices (`search.core.pricing`), the
others dive for assignments near them (`search.core.dives`) or polish the best one known; then all
compare notes. What worked is tried again more often. When reduced costs leave a small core, CP-SAT
closes the gap. Assumes: jobs share nothing while they run and their results are taken in a fixed
order, so that the same seed and the same work give the same answer, on any number of cores.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from search.core.core import Core, Found
from search.core.dives import Dive, Finding, dive, first_fit, look, median_regret, polished
from search.core.fixing import what_is_alive
from search.core.messages import Messages
from search.core.pricing import Pricing
from search.core.tree_moves import TreeSearch
from search.cpsat.lazy_rows import solve_core
from search.problem.deadline import Deadline

Watch = Callable[[float, float], None]

# One unit of work is about a second: entries of tables visited.
WORK_UNIT = 2.5e8
# Those below were found by trial on the contest's four published problems.
# A round, in moves of prices and in looks at the core.
PRICE_STEPS, LOOKS = 40, 130.0
# After so many rounds without progress CP-SAT may try, and without any limit the search ends.
IDLE_ROUNDS = 6
MAX_LANES = 8
# Pairs of candidates that CP-SAT can be expected to finish.
EXACT_PAIRS = 60_000
# With so many times more before pairs are looked at one by one, that is not worth the time.
HOPELESS = 20
# The first share of the remaining time that CP-SAT gets; it doubles every time.
EXACT_SHARE = 0.4
CLOSED = 1e-9


def search_core(core: Core, *, deadline: Deadline, seed: int, watch: Watch) -> Found:
    """Search until optimality is proven, or time, work or ideas are up.

    Parameters
    ----------
    core
        What presolve left; at least one node.
    deadline
        When to stop.
    seed
        Seed of what is random.
    watch
        Called with the best cost and the bound whenever either is better.
    """
    search = Search(core=core, deadline=deadline, seed=seed, watch=watch)
    path = "prices > dives"
    notes: tuple[str, ...] = ()
    share = EXACT_SHARE
    while True:
        search.run()
        if search.closed or search.stopped_by:
            break
        before = search.cost, search.bound
        if note := close_gap(search, share):
            path, notes = "prices > dives > cp-sat", (note,)
        share = min(1.0, 2 * share)
        endless = deadline.remaining == math.inf and deadline.work is None
        if search.closed or search.halted:
            break
        if endless and (search.cost, search.bound) == before:
            break
    return Found(
        choices=search.choices,
        cost=search.cost,
        bound=search.bound,
        path=path,
        stopped_by=search.stopped_by,
        notes=notes,
    )


@dataclass(slots=True, kw_only=True)
class Search:
    """What is known so far.

    Parameters
    ----------
    core
        The core.
    deadline
        When to stop.
    seed
        Seed of what is random.
    watch
        Called with (choices, bound) whenever either is better.
    """

    core: Core
    deadline: Deadline
    seed: int
    watch: Watch
    choices: np.ndarray | None = None
    cost: float = math.inf
    bound: float = -math.inf
    stopped_by: str = ""
    spent: float = 0.0
    lanes: int = 2
    dives: int = 0
    level: float = 0.9
    heat: float = 1.0
    pricing: Pricing = field(init=False)
    rng: np.random.Generator = field(init=False)
    halted: bool = False

    def __post_init__(self) -> None:
        self.pricing = Pricing(self.core)
        self.rng = np.random.default_rng(self.seed)
        # Only a limit on time makes answers depend on the machine anyway.
        if self.deadline.remaining < math.inf and self.deadline.work is None:
            self.lanes = min(MAX_LANES, max(2, os.cpu_count() or 2))

    @property
    def closed(self) -> bool:
        """Whether nothing is left to prove."""
        if self.cost == math.inf:
            return self.bound == math.inf
        return self.bound >= self.cost - CLOSED * abs(self.cost)

    def stop(self) -> bool:
        """Whether jobs should hand in what they have."""
        return self.halted or self.deadline.passed

    def learn(self, choices: np.ndarray | None, bound: float) -> None:
        """Take over what CP-SAT finds on its way."""
        cost = math.inf if choices is None else self.core.cost(choices)
        self.offer(Finding(choices=choices, cost=cost, bound=bound))

    def offer(self, finding: Finding) -> bool:
        """Take over what is better; whether anything was."""
        better = False
        if finding.choices is not None and finding.cost < self.cost:
            self.choices, self.cost, better = finding.choices, finding.cost, True
        if finding.bound > self.bound:
            better = better or finding.bound > self.bound + 1e-6 * abs(self.bound)
            self.bound = finding.bound
        if better:
            self.watch(self.cost, self.bound)
        return better

    def run(self) -> None:
        """Search until the gap is closed, time or work is up, or rounds bring nothing new."""
        idle = 0
        self.pricing.resume()
        with ThreadPoolExecutor(max_workers=self.lanes) as pool:
            try:
                while not self.closed and idle < IDLE_ROUNDS:
                    if self.deadline.passed:
                        self.stopped_by = "time limit"
                        return
                    if self.deadline.work is not None and self.spent >= self.deadline.work:
                        self.stopped_by = "work limit"
                        return
                    jobs = self._jobs()
                    findings = list(pool.map(lambda job: job(), jobs))
                    progress = [self._learn(what, found) for what, found in findings]
                    idle = 0 if any(progress) else idle + 1
                    self.spent += LOOKS * look(self.core) / WORK_UNIT
            except KeyboardInterrupt:
                self.halted = True
                self.stopped_by = "interrupt"

    def _jobs(self) -> list[Callable[[], tuple[Dive | None, Finding]]]:
        """What to do in the next round."""
        jobs: list[Callable[[], tuple[Dive | None, Finding]]] = []
        if self.dives == 0:
            self.dives = 1
            return [self._move_prices, lambda: (None, first_fit(self.core, self.seed, self.stop))]
        if not self.pricing.settled:
            jobs.append(self._move_prices)
        while len(jobs) < self.lanes:
            jobs.append(self._next_dive())
        return jobs

    def _move_prices(self) -> tuple[Dive | None, Finding]:
        pricing = self.pricing
        for _ in range(PRICE_STEPS):
            if self.stop() or pricing.settled:
                break
            pricing.step(self.cost)
        return None, Finding(bound=pricing.bound, prices=pricing.best_prices)

    def _next_dive(self) -> Callable[[], tuple[Dive | None, Finding]]:
        """A dive near what worked, or one that polishes the best assignment."""
        rng, core = self.rng, self.core
        self.dives += 1
        seed = int(rng.integers(2**31 - 2))
        longest = round(core.num_nodes ** rng.uniform(0.4, 1.0))
        heat = self.heat * 10.0 ** rng.uniform(-1.0, 0.7)
        if self.dives % 3 == 1:
            level = float(rng.uniform(0.3, 1.1))
        else:
            level = self.level * float(np.exp(rng.normal(0.0, 0.1)))
        what = Dive(level=level, heat=heat, longest=max(1, longest), seed=seed)
        regret = median_regret(core, self.pricing.best_reduced)
        if self.choices is not None and self.dives % 3 == 0:
            search = TreeSearch(core, self.choices, self.pricing.best_prices * level, seed)

            def polish() -> tuple[Dive | None, Finding]:
                found = polished(core, search, regret, what, self.stop)
                cost = math.inf if found is None else core.cost(found)
                return None, Finding(choices=found, cost=cost)

            return polish
        messages = Messages(core)
        messages.values[:] = self.pricing.messages.values
        pricing = self.pricing
        sources = (pricing.best_prices, pricing.prices, pricing.mean_prices)
        prices = sources[int(rng.integers(3))].copy()
        return lambda: (what, dive(core, messages, prices, what, self.stop))

    def _learn(self, what: Dive | None, finding: Finding) -> bool:
        """Take over a finding, and what led to it."""
        if what is not None and finding.cost < self.cost:
            self.level, self.heat = what.level, what.heat
        if finding.bound > self.pricing.bound and finding.prices is not None:
            self.pricing.bound = finding.bound
            self.pricing.best_prices = finding.prices
            self.pricing.prices = finding.prices
        return self.offer(finding)


def close_gap(search: Search, share: float) -> str:
    """Let CP-SAT finish on the candidates and pairs that a cheaper assignment could contain.

    Parameters
    ----------
    search
        What is known so far; it takes over what CP-SAT finds.
    share
        How much of the remaining time or work may be spent.

    Returns
    -------
    A sentence on what was left to CP-SAT, or an empty one where that was too much.
    """
    core, deadline = search.core, search.deadline
    room = search.cost - search.pricing.bound
    if pairs_left(core, search.pricing.best_reduced <= room) > HOPELESS * EXACT_PAIRS:
        return ""
    prices = search.pricing.best_prices
    alive = what_is_alive(core, prices, search.cost)
    search.offer(Finding(bound=min(alive.bound, search.cost)))
    if search.closed or alive.num_pairs > EXACT_PAIRS:
        return ""
    left = None if deadline.remaining == math.inf else share * deadline.remaining
    work = None if deadline.work is None else share * max(0.0, deadline.work - search.spent)
    answer = solve_core(
        core,
        hint=search.choices,
        deadline=Deadline(left, work),
        seed=search.seed,
        known_bound=search.bound,
        prices=prices,
        watch=search.learn,
    )
    search.offer(Finding(choices=answer.choices, cost=answer.cost, bound=answer.bound))
    search.spent += 0.0 if work is None else work
    if answer.stopped_by == "interrupt":
        search.halted, search.stopped_by = True, "interrupt"
    left_over, everything = int(alive.candidates.sum()), core.costs.size
    return f"Prices left {left_over} of {everything} candidates to CP-SAT."


def pairs_left(core: Core, alive: np.ndarray) -> int:
    """How many pairs of candidates there are among those marked."""
    graph = core.graph
    left = np.add.reduceat(alive.astype(np.int64), graph.offsets[:-1])
    owners = np.repeat(np.arange(core.num_nodes), np.diff(graph.starts))
    return int((left[owners] * left[graph.neighbours]).sum()) // 2
