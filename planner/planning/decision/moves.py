"""What is simulated: what estimates like best, and what moves make of the fastest of it.

Finalists are all usual strategies, the best of the search, those of each promising
pattern, and what moves of runs of layers make of the best of them. Estimates choose which of them
to simulate.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from msgspec import Struct

from planner.planning.decision.estimate import StepEstimates
from planner.planning.decision.finalists import Patterns
from planner.planning.decision.finals import SIMPLER_WITHIN, Finals
from planner.planning.decision.local_search import made_to_fit, neighbours, simplified
from planner.planning.decision.other_starts import lighter_than, with_reductions_counted
from planner.planning.decision.room import Room
from planner.planning.decision.simulator import Choices, SimulatedChoices
from planner.planning.options import SearchOptions
from planner.planning.search_plan import OFF
from planner.planning.tuning import Attempt

# Estimates of assignments that are unlike each other are off by so much more for one of them.
UNSURE = 0.03
# A plan that is no further above its bound is near enough: what is aimed at where all-reduces do
# not dominate a step.
NEAR_ENOUGH = 0.02
# Moves gain no more from assignments unlike the fastest, or on a plan that is known: from some that
# were 8 % slower they led to what was 2 % faster. [parts]
WORTH_MOVING = 0.1
# Devices mostly repeat the work of others where more of the computation is done more than once.
MOSTLY = 0.5
# What judging moves takes, in times that costing one assignment takes.
MOVES = 60.0
# Assignments between the simplest that the estimates allow and the fastest that are simulated.
SIMPLER_TRIALS = 2


class Moves(Struct, kw_only=True, eq=False):
    """Simulates what may be the fastest, and what moves make of the fastest of it.

    Parameters
    ----------
    finals
        What was simulated so far.
    patterns
        Of the formulation.
    attempt
        The search.
    options
        How many of the search and of the patterns to simulate, and the step of a plan that is
        known.
    estimates
        Judge moves.
    room
        The memory that assignments have.
    whole, pool
        Assignments of one pattern, and all from which runs are taken.
    """

    finals: Finals
    patterns: Patterns
    attempt: Attempt
    options: SearchOptions
    estimates: StepEstimates
    room: Room
    whole: frozenset[Choices]
    pool: list[Choices]

    @classmethod
    def of(
        cls, finals: Finals, patterns: Patterns, attempt: Attempt, options: SearchOptions
    ) -> Moves:
        """The moves of a search.

        Parameters
        ----------
        finals, patterns, attempt, options
            As of the class.
        """
        formulation = finals.simulator.formulation
        ranked = [costed.choices for costed in attempt.result.ranked]
        alike = patterns.assignments(patterns.most_promising)
        return cls(
            finals=finals,
            patterns=patterns,
            attempt=attempt,
            options=options,
            estimates=StepEstimates(formulation),
            room=Room(formulation=formulation),
            whole=frozenset(alike),
            pool=list(dict.fromkeys([*ranked, *alike])),
        )

    def simulate_finalists(self) -> None:
        """Simulate what may be the fastest, then what moves make of the fastest of it."""
        finals, num_best = self.finals, self.options.num_best
        finals.simulate(dict.fromkeys(self.attempt.starts))
        judged = self.estimates.least(np.array(self.pool), finals.buckets)
        order = np.argsort(judged, kind="stable")
        finals.simulate(self.pool[n] for n in order[:num_best])
        # plans of one split are further from the rest than these from each other, and so are
        # estimates
        unsure = judged.min() * (1.0 + UNSURE)
        near: dict[float, Choices] = {}
        for n in order:
            if judged[n] <= unsure and self.pool[n] in self.whole:
                near.setdefault(round(judged[n] / unsure, 6), self.pool[n])  # several are the same
        finals.simulate(list(near.values())[:num_best])
        gain = OFF if self.attempt.result.memory_binds else WORTH_MOVING
        if num_best < 2 or finals.fastest.seconds > self.options.limit * (1.0 + gain):
            return
        self._make_fit()
        # moves do not lead from one kind to the other
        self._settle(self._of_the_other_kind())

    def simulate_others(self) -> None:
        """Simulate what moves make of what is unlike the fastest, if that is far from its bound.

        Moves do not lead from one to the other.
        """
        finals, result = self.finals, self.attempt.result
        if not finals.fits or not finals.time.allows(MOVES) or self.options.num_best < 2:
            return
        best = finals.fastest
        if best.seconds > self.options.limit * (1.0 + WORTH_MOVING):
            return
        if best.seconds * (1.0 - NEAR_ENOUGH) <= result.incumbent.bound:
            return
        deadline = finals.time.deadline
        lighter = lighter_than(best.choices, best.seconds, result, self.room, deadline)
        counted = with_reductions_counted(finals.simulator.formulation, deadline)
        # which are far from the fastest before they are moved
        moved = [self._moved(start, best)[0] for start in counted]
        starts = list(dict.fromkeys([*lighter, *moved]))
        if starts:
            self._settle(starts)

    def _settle(self, starts: list[Choices]) -> None:
        """Simulate what moves make of the fastest and of others, and what is simpler than that.

        Parameters
        ----------
        starts
            The others, of which those that are far from the fastest are left out.
        """
        finals, known = self.finals, self.options.limit * (1.0 + WORTH_MOVING)
        for turn in range(self.options.num_best):
            if not self._climb() or (not turn and starts and not self._climb_from(starts)):
                return
            climbed = finals.fastest
            if climbed.seconds > known:
                return  # none is chosen, however simple
            estimate = partial(self.estimates.steps, bucket_bytes=climbed.bucket_bytes)
            simpler = simplified(estimate, self.patterns, climbed.choices, SIMPLER_WITHIN)
            finals.simulate(simpler[-1 : -1 - SIMPLER_TRIALS : -1])
            self._tune_simpler()
            if finals.fastest is climbed:
                return  # else a simpler one is the fastest under its own buckets: go on from there

    def _climb_from(self, starts: list[Choices]) -> bool:
        """Simulate what moves make of some assignments, and of the fastest of all then.

        Returns
        -------
        Whether time allowed it.
        """
        finals = self.finals
        for start in starts:
            if not finals.time.allows(MOVES):
                return False
            finals.simulate([start])
            slowest = finals.fastest.seconds * (1.0 + WORTH_MOVING)
            trial = finals.best_of.get(start)
            if trial is not None and trial.seconds <= slowest and not self._climb(1, {start}):
                return False
        return self._climb()

    def _climb(self, rounds: int | None = None, among: set[Choices] | None = None) -> bool:
        """Simulate what moves make of the fastest, until it stays the fastest.

        Parameters
        ----------
        rounds
            The most moves from one fastest to the next; by default as many as are asked for.
            [items]
        among
            Those of which the fastest is meant, to which what is simulated is added; all by
            default.

        Returns
        -------
        Whether time allowed it.
        """
        finals = self.finals
        for _ in range(rounds or self.options.num_best):
            finals.tune(finals.fastest_of(among))
            if not finals.time.allows(MOVES):
                return False
            base = finals.fastest_of(among)
            # the buckets of what exchanges nothing are not those that suit a move
            size = base.bucket_bytes if base.received > 0.0 else None
            moved = self._moved(base.choices, base, size)
            finals.simulate(moved, size)
            if among is not None:
                among.update(moved)
            if finals.fastest_of(among) is base:
                break
        return True

    def _moved(
        self, start: Choices, like: SimulatedChoices, size: float | None = None
    ) -> list[Choices]:
        """What moves lead to from an assignment by estimates, the best first; itself if nowhere.

        Parameters
        ----------
        start
            The assignment.
        like
            One that was simulated, by which others hold as much beyond what sums say.
        size
            Of buckets; those that suit each by default. [B]
        """
        finals = self.finals
        beyond = None
        if finals.misfits and finals.simulator.fits(like):
            beyond = partial(self.room.beyond, off=self.room.off(like))
        judge = partial(self.estimates.least, sizes=finals.buckets if size is None else (size,))
        return neighbours(judge, self.patterns, start, self.pool, beyond) or [start]

    def _make_fit(self) -> None:
        """Simulate what the fastest that do not fit become with as little else as lets them fit.

        Runs may be taken from those that do not fit as well.
        """
        finals = self.finals
        least = finals.fastest.seconds if finals.fits else np.inf
        faster = [one for one in finals.misfits if one.seconds < least]
        passed: set[Choices] = set()
        has_time = partial(finals.time.allows, MOVES)
        for one in faster[: self.options.num_best]:
            estimate = partial(self.estimates.steps, bucket_bytes=one.bucket_bytes)
            beyond = partial(self.room.beyond, off=self.room.off(one))
            moves = estimate, self.patterns, one.choices, self.pool, beyond
            other = made_to_fit(*moves, passed, has_time)
            if other is not None:
                finals.simulate([other], one.bucket_bytes)
        self.pool += [one.choices for one in faster]

    def _of_the_other_kind(self) -> list[Choices]:
        """The best that uses all devices where the best of all does not, or the other way round.

        Nothing where there is none that is nearly as fast.
        """
        finals, best = self.finals, self.finals.fastest
        near = [one for one in finals.ranked if one.seconds <= best.seconds * (1.0 + UNSURE)]
        kinds = [self.patterns.replicated(one.choices) > MOSTLY for one in near]
        others = [one.choices for one, kind in zip(near, kinds, strict=True) if kind != kinds[0]]
        return others[:1] if finals.simulator.fits(best) else []

    def _tune_simpler(self) -> None:
        """Tune the simplest of those that would be close enough to the fastest with others."""
        finals, patterns = self.finals, self.patterns
        within = (1.0 + 2.0 * SIMPLER_WITHIN) * finals.fastest.seconds
        changes = patterns.changes(finals.fastest.choices)
        simpler = [
            (patterns.changes(trial.choices), trial.seconds, n, trial)
            for n, trial in enumerate(finals.ranked)
            if trial.seconds <= within and patterns.changes(trial.choices) < changes
        ]
        for *_, trial in sorted(simpler)[:SIMPLER_TRIALS]:
            finals.tune(trial)
