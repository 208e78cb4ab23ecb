"""How to search, as apart from what is asked: nothing here changes what a given plan costs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from costmodels.units import format_seconds
from search.problem.notes import Note

Watch: TypeAlias = Callable[[str, float, float], None]


class Overtaken(Exception):
    """What fits is slower than a plan of another kind.

    Parameters
    ----------
    bound
        What no split that fits takes less than. [s]
    seconds
        The fastest assignment that was met and fits, on the timeline; None where the bound is
        above the other plan already. [s]
    """

    def __init__(self, bound: float, seconds: float | None = None) -> None:
        super().__init__(bound, seconds)
        self.bound, self.seconds = bound, seconds
        least = format_seconds(bound)
        self.note = (
            Note.of("single-stage-bounded", bound=least)
            if seconds is None
            else Note.of("single-stage-overtaken", estimate=format_seconds(seconds), bound=least)
        )


class SearchOptions(Struct, frozen=True, kw_only=True):
    """How a plan is searched.

    Parameters
    ----------
    search
        Solver: "auto" or a name in `search.SOLVERS`.
    seed
        Seed of solvers that need one.
    time_limit
        When to stop with the best plan so far, or None for no limit. [s]
    cap
        Candidates that a layer may keep for the search; by default what makes about
        `planner.planning.prepare.NUM_CANDIDATES` in all. [items]
    num_best
        How many best distinct assignments of the search are simulated. [items]
    tune_trials
        Settings of bucket size and all-reduce algorithm to try, each with a search of its own;
        without any, a few bucket sizes are tried on the plan found. [items]
    bucket_bytes, all_reduce
        Size of gradient buckets, and the algorithm of their all-reduces, if they were given: then
        they are not tuned. [B]
    least_memory
        Search for the plan of least peak memory instead of the fastest one.
    doubts
        Whether to find out if the plan rests on what tables do not say, by searching again.
    watch
        Called with the phase, and the best step and the bound so far [s], when one of them changes.
    rival
        The step of the best plan of another kind, asked for where the limit on memory binds: where
        what fits is slower by more than the timeline is off, or known to be slower by a bound, the
        search ends with `Overtaken`. [s]
    limit
        The step of a plan that is known: others only matter where they are faster. Where what fits
        is slower by more than the timeline is off, or known to be slower by a bound, the search
        ends with `Overtaken`. [s]
    dump_problem
        Where to write the additive problem whose optimum bounds the plan's step from below, in the
        form of `search.files.contest`; of those solved for the plan, the one with the best bound.
    """

    search: str = "auto"
    seed: int = 0
    time_limit: float | None = None
    cap: int | None = None
    num_best: int = 4
    tune_trials: int = 0
    bucket_bytes: float | None = None
    least_memory: bool = False
    all_reduce: str | None = None
    doubts: bool = True
    watch: Watch | None = None
    rival: Callable[[], float] | None = None
    limit: float = math.inf
    dump_problem: str | os.PathLike[str] | None = None

    def tell(self, phase: str, step: float = math.inf, bound: float = 0.0) -> None:
        """Tell whoever watches what goes on.

        Parameters
        ----------
        phase
            What is being done.
        step, bound
            The best step so far, +inf without one, and what no step is below. [s]
        """
        if self.watch is not None:
            # a step that others must be below is known
            self.watch(phase, min(step, self.limit), bound)
