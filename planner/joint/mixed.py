"""The answer on a cluster of several kinds of hosts.

Four ways to use it are compared, by simulation: every device works at the pace of the slowest, with
even shares; pipelines whose stages lie inside of one group each; replicas with shares of samples as
each group is fast; and some groups alone, the others idle.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from costmodels.strategy.blocks import is_transformer
from costmodels.units import format_bytes, format_items, format_seconds
from planner.errors import ContradictionError, InfeasibleError, detached
from planner.joint.choices import RECOMPUTATIONS
from planner.joint.hosts import combinations, evenly, on_groups
from planner.joint.interrupted import run_or_hurry
from planner.joint.pipelines import GroupedPipelines
from planner.joint.ranking import MEMORY_MARGIN
from planner.joint.replicas import Replicas
from planner.joint.result import JointResult
from planner.joint.runtimes import searched_runtime, splits_by_layer
from planner.joint.search import JointSearch
from planner.joint.verdict import least_held, usual_of
from planner.joint.wishes import Wishes
from planner.joint.work import least_step
from planner.notes import words
from planner.plan import Plan, SearchSummary
from planner.planning.optimize import plan_for
from planner.planning.options import Overtaken, SearchOptions
from planner.planning.staged import StagedStep, tried
from planner.planning.staged_plan import plan_of_stages
from planner.planning.summary import PROVEN_GAP
from planner.planning.usual import UsualTrial, usual_trials
from planner.request.parts import Degrees
from planner.request.setting import Setting
from search.problem.deadline import Deadline
from search.problem.notes import Note

# Part of the time limit that the search with even shares may take.
SHARE = 0.5
# Part of what time is left that several groups at work together may take, before groups alone: a
# judgement, with which llama3-70b on 64 H100 and 32 A100 steps no slower for more time than 0.2 s.
TOGETHER = 0.7
# Ways to split layers that are shared out unevenly: the fastest with even shares. [items]
MOST_SPLITS = 8
# Pipelines over groups that are simulated, of those expected to be the fastest. [items]
MOST_SIMULATED = 4
# A pipeline that is expected to be slower than the best so far by more is not simulated.
MARGIN = 0.05


class MixedSearch(Struct, kw_only=True, eq=False):
    """The search for one question on several groups of hosts.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    deadline
        When the plan must be there.
    wishes
        What is held fixed or ruled out.
    on_one_kind
        The answer to a question on hosts of one kind.
    """

    setting: Setting
    options: SearchOptions
    deadline: Deadline
    wishes: Wishes
    on_one_kind: Callable[[Setting], Plan]
    best: Plan | StagedStep | None = None
    bound: float = 0.0
    num_choices: int = 0
    num_simulated: int = 0
    num_grouped: int = 0
    tightest: float = math.inf
    refused: ContradictionError | None = None
    estimates: JointResult | None = None
    stopped_by: str = ""

    @property
    def seconds(self) -> float:
        """The best step so far. [s]"""
        if self.best is None:
            return math.inf
        return self.best.step_time_s if isinstance(self.best, Plan) else self.best.seconds

    def run(self) -> Plan:
        """The fastest plan.

        Raises
        ------
        InfeasibleError
            When none that fits was found.
        ContradictionError
            When what is held fixed leaves nothing on any of the groups.
        """
        self.setting.check_reserve()
        self.bound = least_step(self.setting)
        try:
            self._look_at_groups()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.stopped_by = "interrupt"
        if self.best is None:
            refused = self.refused if self.tightest == math.inf else None
            raise refused or self._infeasible()
        return self._plan()

    def _look_at_groups(self) -> None:
        """Every combination of groups, as long as there is time."""
        for names in combinations(self.setting):
            if self.stopped_by == "interrupt":
                break
            if self.deadline.passed and self.best is not None:
                self.stopped_by = "time limit"
                break
            part = on_groups(self.setting, names)
            # the work alone may take as long on what is left
            if part is not self.setting and least_step(part) >= self.seconds:
                continue
            if part.cluster.groups:
                self._together(part)
            else:
                self._keep(self._planned(part, self.on_one_kind))

    def _keep(self, found: Plan | StagedStep | None) -> None:
        """Take what is faster than the best so far, and fits."""
        if found is None:
            return
        self.num_simulated += 1
        if isinstance(found, StagedStep):
            self.tightest = min(self.tightest, found.short)
            if not found.fits:
                return
        seconds = found.step_time_s if isinstance(found, Plan) else found.seconds
        if seconds < self.seconds:
            self.best = found
            self.options.tell("simulating", seconds, self.bound)

    def _planned(self, part: Setting, ask: Callable[[Setting], Plan]) -> Plan | None:
        """A plan for some of the groups, where there is one that fits."""
        try:
            plan = ask(part)
        except InfeasibleError as error:
            self.tightest = min(self.tightest, error.missing_bytes)
            self.stopped_by = self.stopped_by or error.stopped_by
            return None
        except Overtaken:
            return None
        except ContradictionError as error:
            # what is kept may be of several groups alone
            self.refused = self.refused or detached(error)
            return None
        self.stopped_by = self.stopped_by or plan.search.stopped_by
        self.num_choices += plan.search.num_choices
        return plan

    def _together(self, part: Setting) -> None:
        """All ways in which several groups work on one step."""
        runtime, deadline = searched_runtime(self.setting), self.deadline.part(TOGETHER)
        # no framework is told uneven shares
        uneven = self.wishes.framework is None
        attends, binds = is_transformer(part.graph), True
        by_layer = splits_by_layer(part) and self.wishes.leaves_splits
        to_search = by_layer
        if not attends and not self.wishes.any and by_layer:
            single = self._planned(part, self._splits)
            self._keep(single)
            binds, to_search = single is None or single.search.memory_binds, False
        if not attends and not binds:
            self._shared_out(Replicas(part, runtime, self.wishes), [Degrees()], deadline)
            return
        search = JointSearch(
            setting=evenly(part),
            runtime=runtime,
            options=self.options,
            deadline=deadline.part(SHARE),
            wishes=self.wishes,
            # the next best splits are shared out unevenly, too
            passes_over=False,
        )
        found = run_or_hurry(search)
        self.stopped_by = self.stopped_by or found.stopped_by
        self.num_choices += found.num_choices
        self.refused = found.refused or self.refused
        self.num_simulated += len(found.simulated)
        self.tightest = min(
            [self.tightest, *(one.short for one in found.simulated), *found.misfits]
        )
        if found.best is not None and found.best.degrees is not None:
            self._keep(tried(part, found.best.degrees, found.best.runtime)[0])
        if part is self.setting:
            self.estimates = found
        if self.stopped_by == "interrupt":
            return
        splits = fastest_splits(found, part.cluster.device.memory, attends=attends)
        if uneven:
            self._shared_out(Replicas(part, runtime, self.wishes), splits, deadline)
            self._shared_out(GroupedPipelines(part, runtime, self.wishes), splits, deadline)
        if to_search and found.single_bound < self.seconds and not self.deadline.passed:
            self._keep(self._planned(part, self._splits))

    def _splits(self, part: Setting) -> Plan:
        """The splits of one stage, layer by layer, at the pace of the slowest device."""
        options = replace(self.options, limit=min(self.options.limit, self.seconds))
        return plan_for(self.wishes.with_splits_left(part), options, self.deadline)

    def _shared_out(
        self, ways: GroupedPipelines | Replicas, splits: Sequence[Degrees], deadline: Deadline
    ) -> None:
        """Try what is shared out unevenly over groups, the most promising first.

        Parameters
        ----------
        ways, splits
            How it is shared out, and how layers are split.
        deadline
            When to stop.
        """
        rows = ways.estimated(splits, deadline, self.seconds * (1.0 + MARGIN))
        self.num_grouped += ways.num_looked_at
        self.num_choices += ways.num_looked_at
        for expected, simulated in rows[:MOST_SIMULATED]:
            if expected > self.seconds * (1.0 + MARGIN) or deadline.passed:
                break
            self._keep(simulated())

    def _plan(self) -> Plan:
        """The best as a plan, with the bound of all."""
        best, seconds = self.best, self.seconds
        assert best is not None, "a plan is made of something"
        bound = min(self.bound, seconds)
        gap = (seconds - bound) / seconds
        notes = self._notes()
        certificate: dict[str, Any] = {
            "lower_bound_s": bound,
            "gap": gap,
            "proven_optimal": gap <= PROVEN_GAP,
            "status": "optimal" if gap <= PROVEN_GAP else "feasible",
            "stopped_by": self.stopped_by,
            "num_choices": self.num_choices,
        }
        gpus = best.gpus if isinstance(best, Plan) else best.placed.setting.gpus
        idle = self.setting.gpus - gpus
        if isinstance(best, Plan):
            said = tuple(words(note) for note in notes)
            search = replace(best.search, **certificate)
            return dataclasses.replace(
                best, search=search, fallbacks=(*best.fallbacks, *said), idle_gpus=idle
            )
        plan = plan_of_stages(
            best,
            SearchSummary(
                solver="estimates of all choices, the best simulated",
                num_sensible=0,
                num_candidates=0,
                cap=0,
                num_costed=self.num_simulated,
                **certificate,
            ),
            notes=notes,
            baselines=tuple(one.baseline for one in self._usual()),
        )
        return dataclasses.replace(plan, idle_gpus=idle)

    def _usual(self) -> Sequence[UsualTrial]:
        """The usual ways to train on all of the hosts, of which none is faster than the plan."""
        runtime = searched_runtime(self.setting)
        until = Deadline(0.0) if self.stopped_by == "interrupt" else self.deadline
        return usual_trials(
            self.setting,
            runtime,
            until,
            usual_of(self.setting, self.estimates),
            under_one=self.setting.asked_runtime is not None,
        )

    def _notes(self) -> list[Note]:
        cluster = self.setting.cluster
        rows = ", ".join(
            f"{format_items(group.hosts, 'host')} {group.name} of {group.device.name}"
            for group in cluster.groups
        )
        notes = [
            Note.of(
                "mixed-hosts",
                groups=rows,
                uneven=self.num_grouped,
                bound=format_seconds(self.bound),
            )
        ]
        if self.stopped_by:
            notes.append(Note.of("search-stopped", reason=self.stopped_by))
        return notes

    def _infeasible(self) -> InfeasibleError:
        """That nothing fits, and whether that is proven: weights must lie somewhere."""
        setting = self.setting
        room = sum(
            group.hosts * setting.cluster.devices_per_host * group.device.usable_memory
            for group in setting.cluster.groups
        )
        least = least_held(setting)
        proven = least > room
        verdict = (
            f"no plan fits in memory: weights, gradients and optimizer state alone are "
            f"{format_bytes(least)}, and all GPUs together have {format_bytes(room)} for them"
            if proven
            else "no plan that fits was found on any of the groups of hosts, though it is not "
            f"proven that there is none: {format_bytes(self.tightest)} a GPU are missing"
        )
        return InfeasibleError(
            f"{verdict}; use more GPUs or a smaller batch",
            missing_bytes=(least - room) / setting.gpus if proven else self.tightest,
            layer="",
            proven=proven,
            stopped_by="" if proven else self.stopped_by,
        )


def fastest_splits(found: JointResult, capacity: float, *, attends: bool) -> list[Degrees]:
    """The ways to split layers that are fastest with even shares, with all that is kept or not.

    Those with which something fits come first.

    Parameters
    ----------
    found
        The search with even shares.
    capacity
        The memory of a device. [B]
    attends
        Whether attention can be computed again by itself.
    """
    most = capacity * (1.0 + MEMORY_MARGIN)
    splits: dict[Degrees, None] = {}
    for one in sorted(found.estimates, key=lambda one: (one.memory > most, one.seconds)):
        splits.setdefault(dataclasses.replace(one.choice.inside, recompute="none"))
        if len(splits) == MOST_SPLITS:
            break
    splits.setdefault(Degrees())
    again = RECOMPUTATIONS if attends else ("none", "full")
    return [dataclasses.replace(split, recompute=what) for split in splits for what in again]
