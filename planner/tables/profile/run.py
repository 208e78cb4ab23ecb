"""Measures what a question rests on, the most important first, and says how far it got.

What is measured moves the plan: the question is planned again with the times of its plan, until
nothing that its plan rests on is left to be measured. Then come the shapes of its rivals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from msgspec import Struct

from costmodels.compute import CostTable
from costmodels.units import format_seconds
from planner.request.request import Request
from planner.request.setting import resolve
from planner.tables.profile.needs import Need, Needs, needs_of
from planner.tables.profile.passes import calls_of
from planner.tables.profile.place import (
    WARM_UP_SECONDS,
    MeasuredPlace,
    check_precision,
    free_memory,
    use_precision,
    warm_up,
)
from planner.tables.profile.store import MeasuredProfile
from planner.tables.profile.timing import Timing, measuring_time, time_call

Tell = Callable[[str], None]
# Between two words on how far it is. [s]
WORD_SECONDS: Final = 0.5
# How often a question is planned at most: measured times move the plan ever less. [items]
ROUNDS: Final = 4


class Progress(Struct, frozen=True, kw_only=True):
    """How far a profile is.

    Parameters
    ----------
    shapes, of
        Shapes that are measured, out of how many. [items]
    left_out
        Shapes that could not be measured. [items]
    covered
        Part of the time of the plan's computation that is measured, by what was measured.
    seconds_left
        About how long the rest takes. [s]
    """

    shapes: int
    of: int
    left_out: int
    covered: float
    seconds_left: float


class _Pace:
    """How much slower this device is than modelled, by operation and on the whole."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, int]] = {}

    def learn(self, operation: str, ratio: float) -> None:
        for name in (operation, ""):
            total, count = self._sums.get(name, (0.0, 0))
            self._sums[name] = total + math.log(max(ratio, 1e-12)), count + 1

    def of(self, operation: str) -> float:
        total, count = self._sums.get(operation) or self._sums.get("", (0.0, 1))
        return math.exp(total / count)


class ProfileRun:
    """Measures the shapes of a question.

    Parameters
    ----------
    needs
        What the question rests on.
    profile
        What is known already; takes what is measured.
    place
        The device.
    """

    def __init__(self, needs: Needs, profile: MeasuredProfile, place: MeasuredPlace) -> None:
        self.needs, self.profile, self.place = needs, profile, place
        self._pace = _Pace()
        for need in needs.needs:
            for direction, modelled in need.modelled.items():
                known = profile.times.get((need.shape, needs.precision, direction))
                if known is not None:
                    self._pace.learn(need.shape.operation, known.seconds / modelled)

    def measure(self, tell: Tell, end: float = math.inf, *, plan_alone: bool = False) -> int:
        """Measure what is missing, the most important first; how many shapes that were. [items]

        Parameters
        ----------
        tell
            Told how far it is.
        end
            When to stop, by `time.monotonic`; a shape that would take longer is left for another
            time. [s]
        plan_alone
            Whether only what the plan computes is measured.
        """
        dtype, next_word, count = use_precision(self.needs.precision), 0.0, 0
        for need in self.needs.needs:
            if plan_alone and not need.in_plan:
                continue
            if self._missing(need) and time.monotonic() + self._time_of(need) <= end:
                if time.monotonic() >= next_word:
                    tell(self._words())
                    next_word = time.monotonic() + WORD_SECONDS
                self._measure(need, dtype)
                self.profile.save()
                count += 1
        return count

    def progress(self) -> Progress:
        """How far it is."""
        needs = self.needs.needs
        missing = [need for need in needs if self._missing(need)]
        failed = [n for n in needs if (n.shape, self.needs.precision) in self.profile.left_out]
        seconds, covered = self.needs.unmeasurable, 0.0
        for need in needs:
            done = (need.shape, self.needs.precision, next(iter(need.modelled)))
            covered += need.in_plan * (done in self.profile.times)
            seconds += need.in_plan
        return Progress(
            shapes=len(needs) - len(missing) - len(failed),
            of=len(needs),
            left_out=len(failed),
            covered=covered / max(seconds, 1e-30),
            seconds_left=sum(map(self._time_of, missing)),
        )

    def _missing(self, need: Need) -> bool:
        precision = self.needs.precision
        if (need.shape, precision) in self.profile.left_out:
            return False
        return any((need.shape, precision, way) not in self.profile.times for way in need.modelled)

    def _time_of(self, need: Need) -> float:
        pace = self._pace.of(need.shape.operation)
        return sum(measuring_time(pace * seconds) for seconds in need.modelled.values())

    def _measure(self, need: Need, dtype: object) -> None:
        import torch

        precision, measured = self.needs.precision, {}
        calls: dict[str, Callable[[], object]] = {}
        try:
            with torch.no_grad():
                calls = calls_of(torch, need.shape, dtype, self.place.device)
                for direction in need.modelled:
                    measured[direction] = time_call(calls[direction], self.place.batch)
        except (RuntimeError, MemoryError) as error:
            # too large for the memory, or nothing that the library runs on this device
            reason = (str(error).strip().splitlines() or ["out of memory"])[0]
            self.profile.left_out[need.shape, precision] = reason[:200]
            return
        finally:
            calls.clear()
            free_memory(self.place)
        self._keep(need, measured)

    def _keep(self, need: Need, measured: dict[str, Timing]) -> None:
        for direction, timing in measured.items():
            self.profile.times[need.shape, self.needs.precision, direction] = timing
            ratio = timing.seconds / need.modelled[direction]
            self._pace.learn(need.shape.operation, ratio)

    def _words(self) -> str:
        now = self.progress()
        left = format_seconds(now.seconds_left)
        return f"{now.shapes:,} of {now.of:,} shapes, {now.covered:.0%} of the plan, {left} left"


def profile_question(
    request: Request,
    profile: MeasuredProfile,
    place: MeasuredPlace,
    tell: Tell,
    budget: float = math.inf,
) -> ProfileRun:
    """Measure what a question rests on.

    Parameters
    ----------
    request
        The question.
    profile
        What is known already; takes what is measured, and is saved time by time.
    place
        The device.
    tell
        Told how far it is.
    budget
        When to stop, from now. [s]

    Raises
    ------
    InputError
        When the question cannot be asked, or the device does not compute in its precision.
    InfeasibleError
        When no plan fits in memory.
    """
    end = time.monotonic() + budget
    check_precision(place, resolve(request).machine.compute.usual)
    warm_up(place, min(WARM_UP_SECONDS, budget / 10.0))

    def planned() -> ProfileRun:
        tell("planning")
        return ProfileRun(needs_of(_with_times(request, profile)), profile, place)

    for _ in range(ROUNDS):
        run = planned()
        count = run.measure(tell, end, plan_alone=True)
        if not count:
            break
    count += run.measure(tell, end)
    # what was measured moves the plan: what is said of it must be of the one that the table makes
    return planned() if count else run


def _with_times(request: Request, profile: MeasuredProfile) -> Request:
    """The question with what is known of it."""
    if not profile.times:
        return request
    table = CostTable.of_text(profile.text(), "the profile")
    return replace(request, tables=(table, *request.tables))


def reasons(profile: MeasuredProfile, most: int) -> Sequence[str]:
    """Why shapes could not be measured, a few of them.

    Parameters
    ----------
    profile
        What was measured.
    most
        How many to name. [items]
    """
    distinct = dict.fromkeys(
        f"{shape.operation}: {reason}" for (shape, _), reason in profile.left_out.items()
    )
    return list(distinct)[:most]
