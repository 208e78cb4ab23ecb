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
from typing import NamedTuple

import numpy as np

from search.core.core import Core
from search.core.dives import Dive, dive, first_fit, median_regret, polished, scan_work
from search.core.fixing import what_is_alive
from search.core.jit import MOST_COMPILING, compile_time
from search.core.messages import LOOPS, Messages
from search.core.pricing import PricedBound, Pricing
from search.core.tree_moves import TreeSearch
from search.core.tree_steps import move_on
from search.cpsat.lazy_rows import solve_core
from search.problem.deadline import Deadline
from search.problem.incumbent import Incumbent
from search.problem.notes import Note

# One unit of work is about a second: entries of tables visited.
WORK_UNIT = 2.5e8
# Those below were found by trial on the contest's four published problems.
# A round, in moves of prices and in scans of the core.
PRICE_STEPS, SCANS = 40, 130.0
# After so many rounds without progress CP-SAT may try, and without any limit the search ends.
IDLE_ROUNDS = 6
# Lanes where only work is limited, and the most of them: more dives at once bring little new.
MIN_LANES, MAX_LANES = 2, 8
# The level and the heat of the first dives, until one of them finds something better.
FIRST_LEVEL, FIRST_HEAT = 0.9, 1.0
# Of so many dives one goes far from what worked, and one polishes the best assignment.
KINDS = 3
# Levels of dives that go far; near ones are spread by so much, in logarithms.
FAR_LEVELS, NEAR_SPREAD = (0.3, 1.1), 0.1
# Logarithms of the longest tree, to the base of the number of nodes, and of the heat, to that of
# ten and above the heat that worked.
TREE_EXPONENTS, HEAT_EXPONENTS = (0.4, 1.0), (-1.0, 0.7)
# Pairs of candidates that CP-SAT can be expected to finish.
EXACT_PAIRS = 60_000
# With so many times more before pairs are looked at one by one, that is not worth the time.
HOPELESS = 20
# The first share of the remaining time that CP-SAT gets; it doubles every time.
EXACT_SHARE = 0.4


class JobResult(NamedTuple):
    """What one job of a round brings back.

    Parameters
    ----------
    dive
        The dive that it was, if it was one.
    choices
        An assignment that fits, if one was found.
    proof
        A bound and its prices, if one was proven.
    """

    dive: Dive | None = None
    choices: np.ndarray | None = None
    proof: PricedBound | None = None


Job = Callable[[], JobResult]


def search_core(core: Core, known: Incumbent[np.ndarray], *, deadline: Deadline, seed: int) -> None:
    """Search until optimality is proven, or time, work or ideas are up.

    Parameters
    ----------
    core
        What presolve left; at least one node.
    known
        What is known already; it takes over what is found.
    deadline
        When to stop.
    seed
        Seed of what is random.
    """
    known.path = "prices > dives"
    if deadline.remaining < math.inf and deadline.remaining < compile_time(move_on, *LOOPS):
        # nobody can stop a compiler
        known.add_note(Note.of("no-time-to-compile", seconds=MOST_COMPILING))
        known.stopped_by = "time limit"
        return
    search = RoundSearch(core=core, known=known, deadline=deadline, seed=seed)
    notes = list(known.notes)
    share = EXACT_SHARE
    while True:
        search.run()
        if known.closed or known.stopped_by:
            break
        before = known.cost, known.bound
        note = close_gap(search, share)
        if note is not None:
            known.path, known.notes = "prices > dives > cp-sat", [*notes, note]
        share = min(1.0, 2 * share)
        endless = deadline.remaining == math.inf and deadline.work is None
        if known.closed or search.halted:
            break
        if endless and (known.cost, known.bound) == before:
            break


@dataclass(slots=True, kw_only=True)
class RoundSearch:
    """Rounds of jobs on a core.

    Parameters
    ----------
    core
        The core.
    known
        What is known so far.
    deadline
        When to stop.
    seed
        Seed of what is random.
    spent
        Work done so far, see `Deadline`.
    lanes
        How many jobs run side by side.
    dives
        How many dives were begun.
    level, heat
        Those of the dive that last found something better.
    halted
        Whether jobs should hand in what they have.
    """

    core: Core
    known: Incumbent[np.ndarray]
    deadline: Deadline
    seed: int
    spent: float = 0.0
    lanes: int = MIN_LANES
    dives: int = 0
    level: float = FIRST_LEVEL
    heat: float = FIRST_HEAT
    halted: bool = False
    pricing: Pricing = field(init=False)
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.pricing = Pricing(self.core)
        self.rng = np.random.default_rng(self.seed)
        # Only a limit on time makes answers depend on the machine anyway.
        if self.deadline.remaining < math.inf and self.deadline.work is None:
            self.lanes = min(MAX_LANES, max(MIN_LANES, os.cpu_count() or MIN_LANES))

    def stop(self) -> bool:
        """Whether jobs should hand in what they have."""
        return self.halted or self.deadline.passed

    def run(self) -> None:
        """Search until the gap is closed, time or work is up, or rounds bring nothing new."""
        idle = 0
        self.pricing.resume()
        known = self.known
        with ThreadPoolExecutor(max_workers=self.lanes) as pool:
            try:
                while not known.closed and idle < IDLE_ROUNDS:
                    if self.deadline.passed:
                        known.stopped_by = "time limit"
                        return
                    if self.deadline.work is not None and self.spent >= self.deadline.work:
                        known.stopped_by = "work limit"
                        return
                    results = list(pool.map(lambda job: job(), self._jobs()))
                    progress = [self._learn(result) for result in results]
                    idle = 0 if any(progress) else idle + 1
                    self.spent += SCANS * scan_work(self.core) / WORK_UNIT
            except KeyboardInterrupt:
                self.halted = True
                known.stopped_by = "interrupt"

    def _jobs(self) -> list[Job]:
        """What to do in the next round."""
        jobs: list[Job] = []
        if self.dives == 0:
            self.dives = 1
            return [
                self._move_prices,
                lambda: JobResult(choices=first_fit(self.core, self.seed, self.stop)),
            ]
        if not self.pricing.settled:
            jobs.append(self._move_prices)
        while len(jobs) < self.lanes:
            jobs.append(self._next_dive())
        return jobs

    def _move_prices(self) -> JobResult:
        pricing = self.pricing
        for _ in range(PRICE_STEPS):
            if self.stop() or pricing.settled:
                break
            pricing.step(self.known.cost)
        return JobResult(proof=PricedBound(pricing.bound, pricing.best_prices))

    def _next_dive(self) -> Job:
        """A dive near what worked, or one that polishes the best assignment."""
        rng, core, pricing = self.rng, self.core, self.pricing
        self.dives += 1
        seed = int(rng.integers(2**31 - 2))
        longest = round(core.num_nodes ** rng.uniform(*TREE_EXPONENTS))
        heat = self.heat * 10.0 ** rng.uniform(*HEAT_EXPONENTS)
        if self.dives % KINDS == 1:
            level = float(rng.uniform(*FAR_LEVELS))
        else:
            level = self.level * float(np.exp(rng.normal(0.0, NEAR_SPREAD)))
        what = Dive(level=level, heat=heat, longest=max(1, longest), seed=seed)
        regret = median_regret(core, pricing.best_reduced)
        if self.known.choices is not None and self.dives % KINDS == 0:
            search = TreeSearch(core, self.known.choices, pricing.best_prices * level, seed)
            return lambda: JobResult(choices=polished(core, search, regret, what, self.stop))
        messages = Messages(core)
        messages.values[:] = pricing.messages.values
        sources = (pricing.best_prices, pricing.prices, pricing.mean_prices)
        prices = sources[int(rng.integers(len(sources)))].copy()
        return lambda: JobResult(what, *dive(core, messages, prices, what, self.stop))

    def _learn(self, result: JobResult) -> bool:
        """Take over what a job found, and what led to it; whether that was progress."""
        known, pricing, proof = self.known, self.pricing, result.proof
        better = raised = False
        if result.choices is not None:
            better = known.offer(result.choices, self.core.cost(result.choices))
        if better and result.dive is not None:
            self.level, self.heat = result.dive.level, result.dive.heat
        if proof is not None:
            if proof.bound > pricing.bound:
                pricing.bound, pricing.best_prices = proof
                pricing.prices = proof.prices
            # The first bound of all is only where rounds begin.
            began = known.bound > -math.inf
            raised = known.raise_bound(proof.bound) and began
        return better or raised


def close_gap(search: RoundSearch, share: float) -> Note | None:
    """Let CP-SAT finish on the candidates and pairs that a cheaper assignment could contain.

    Parameters
    ----------
    search
        What is known so far; it takes over what CP-SAT finds.
    share
        How much of the remaining time or work may be spent.

    Returns
    -------
    What was left to CP-SAT, or None where that was too much.
    """
    core, deadline, known = search.core, search.deadline, search.known
    room = known.cost - search.pricing.bound
    if pairs_left(core, search.pricing.best_reduced <= room) > HOPELESS * EXACT_PAIRS:
        return None
    prices = search.pricing.best_prices
    alive = what_is_alive(core, prices, known.cost)
    known.raise_bound(min(alive.bound, known.cost))
    if known.closed or alive.num_pairs > EXACT_PAIRS:
        return None
    left = None if deadline.remaining == math.inf else share * deadline.remaining
    work = None if deadline.work is None else share * max(0.0, deadline.work - search.spent)
    solve_core(core, known=known, deadline=Deadline(left, work), seed=search.seed, prices=prices)
    search.spent += 0.0 if work is None else work
    if known.stopped_by == "interrupt":
        search.halted = True
    else:
        known.stopped_by = ""  # A share that is used up does not end the search.
    return Note.of("left-to-cp-sat", left=int(alive.candidates.sum()), candidates=core.costs.size)


def pairs_left(core: Core, alive: np.ndarray) -> int:
    """How many pairs of candidates there are among those marked."""
    graph = core.graph
    left = np.add.reduceat(alive.astype(np.int64), graph.offsets[:-1])
    return int((left[graph.owners] * left[graph.neighbours]).sum()) // 2
