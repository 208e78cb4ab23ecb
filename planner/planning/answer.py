"""The answer to a question: search, decide by simulation, and ask for fewer devices."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import MutableMapping
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.step.training import Training
from costmodels.strategy.blocks import is_transformer
from planner.errors import InfeasibleError
from planner.planning.bounds.additive_search import time_left
from planner.planning.decision.decide import Decision, begun_elsewhere, judge
from planner.planning.decision.fewer import (
    SmallerAnswer,
    better_of,
    least_computation,
    parts_of,
)
from planner.planning.decision.finals import SIMPLER_WITHIN
from planner.planning.decision.sharpen import sharpened
from planner.planning.infeasible import short_error
from planner.planning.options import Overtaken, SearchOptions
from planner.planning.prepare import UsualStrategies, prepare, usual_strategies
from planner.planning.search_plan import search_plan
from planner.planning.tuning import SMALLEST_BUCKET, Attempt, tune_step
from planner.request.setting import Setting
from search.problem.deadline import Deadline, OutOfTime
from search.problem.notes import Note

# Answers by global batch and number of devices, all else being equal.
Answers = MutableMapping[tuple[int, int], SmallerAnswer]


class Inquiry(Struct, frozen=True, kw_only=True):
    """How questions are answered.

    Parameters
    ----------
    options
        How to search.
    deadline
        When the plan must be there.
    known
        Answers to the same question for fewer devices.
    """

    options: SearchOptions
    deadline: Deadline
    known: Answers = field(default_factory=dict)

    def answer(self, setting: Setting, rival: float = math.inf) -> tuple[Attempt, Decision | None]:
        """Search and decide, for fewer devices as well unless it is proven to be in vain.

        Parameters
        ----------
        setting
            The question.
        rival
            Step of a plan for more devices: answers that are slower do not matter. [s]

        Raises
        ------
        OutOfTime
            When there was no time to cost anything.
        InfeasibleError
            When what the search took to fit does not when it is simulated.
        """
        began = time.monotonic()
        found = search_widely(setting, self.options, self.deadline)
        if found.result.best is None:
            return found, None
        judged = judge(found, self.options, self.deadline)
        decision = judged.decide()
        if judged.short > 0.0 and not self.options.least_memory:
            raise short_error(setting, judged.short, len(decision.finalists), decision.stopped_by)
        if self.options.least_memory or decision.stopped_by or decision.seconds == math.inf:
            return found, decision
        took = time.monotonic() - began
        try:
            judged = sharpened(judged, self.options, self.deadline, rival)
            judged = begun_elsewhere(judged, self.options)
        except KeyboardInterrupt:
            return found, replace(decision, stopped_by="interrupt")
        found, decision = judged.attempt, judged.decide()
        # what is so much slower for fewer can change no answer for this number, nor for more
        least = min(rival * (1.0 + SIMPLER_WITHIN), decision.seconds)
        smaller: SmallerAnswer | None = None
        late: list[Note] = []
        try:
            for fewer in parts_of(setting):
                other = self._smaller(fewer, found, least, took)
                if other is not None and (smaller is None or other.promised < smaller.promised):
                    smaller = other
        except OutOfTime:
            late.append(Note.of("no-time-for-fewer"))
        except KeyboardInterrupt:
            return found, replace(decision, stopped_by="interrupt")
        if smaller is not None:
            decision = better_of(setting, judged.decide(smaller.promised), smaller)
        decision = decision.noted(*late)
        if rival == math.inf and not (decision.stopped_by or late):
            self.known[setting.batch, setting.gpus] = SmallerAnswer.of(decision)
        return found, decision

    def _smaller(
        self, fewer: Setting, found: Attempt, rival: float, took: float
    ) -> SmallerAnswer | None:
        """The answer for a smaller number of devices, None where it cannot matter.

        Parameters
        ----------
        fewer
            The question for that.
        found
            What the search for more came to.
        rival
            Slower answers do not matter. [s]
        took
            Time that it took; a search for fewer takes about as long. [s]

        Raises
        ------
        OutOfTime
            When there is no time for it.
        """
        # fewer devices can do no more than all of them
        if found.result.incumbent.bound >= rival:
            return None
        known = self.known.get((fewer.batch, fewer.gpus))
        if known is not None or least_computation(fewer) >= rival:
            return known
        if self.deadline.remaining < took:
            raise OutOfTime
        limit = self.options.limit
        if is_transformer(fewer.graph):
            # of all their ways to train, fewer devices are estimated as well
            limit = min(limit, max(rival, found.step_time))
        # what their bound shows to be slower is searched no further
        quick = replace(self.options, watch=None, rival=lambda: rival, limit=limit)
        try:
            smaller, decision = replace(self, options=quick).answer(fewer, rival)
        except Overtaken:
            return None
        except InfeasibleError as error:
            decision, stopped_by = None, error.stopped_by
        else:
            stopped_by = smaller.result.incumbent.stopped_by
        if decision is None and stopped_by == "interrupt":
            raise KeyboardInterrupt
        return None if decision is None else SmallerAnswer.of(decision)


def search_widely(setting: Setting, options: SearchOptions, deadline: Deadline) -> Attempt:
    """Search for assignments, under other options of the step as well where that may help.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    deadline
        When the plan must be there.

    Raises
    ------
    OutOfTime
        When there was no time to cost anything.
    """
    usual = usual_strategies(setting)

    def attempt_with(training: Training, how: SearchOptions) -> Attempt:
        return attempt(setting, training, how, usual=usual, deadline=deadline)

    training = setting.machine.training
    small = replace(training, bucket_bytes=min(training.bucket_bytes, SMALLEST_BUCKET))
    if options.least_memory and options.bucket_bytes is None:
        training, options = small, replace(options, bucket_bytes=small.bucket_bytes)
    unwatched = replace(options, watch=None, rival=None)
    found = attempt_with(training, options)
    known = found.result.incumbent
    if options.tune_trials and not known.stopped_by:
        options.tell("trying other settings", known.cost, known.bound)
        found = tune_step(
            lambda training: attempt_with(training, unwatched),
            found,
            options,
            time_limit=time_left(deadline),
        )
    return found


def attempt(
    setting: Setting,
    training: Training,
    options: SearchOptions,
    *,
    usual: UsualStrategies,
    deadline: Deadline,
) -> Attempt:
    """Search under some options of the step.

    Parameters
    ----------
    setting
        The question.
    training
        Options of the step, instead of those of the question.
    options
        How to search.
    usual
        The usual strategies.
    deadline
        When to stop with the best so far.
    """
    options.tell("costing splits")
    trial = replace(setting, machine=replace(setting.machine, training=training))
    prepared = prepare(trial, options, usual, deadline)
    result = search_plan(
        prepared.formulation,
        starts=prepared.starts,
        method=options.search,
        num_best=options.num_best,
        seed=options.seed,
        deadline=deadline,
        least_memory=options.least_memory,
        smallest_bucket=SMALLEST_BUCKET if options.bucket_bytes is None else math.inf,
        watch=partial(options.tell, "searching"),
        rival=options.rival,
        limit=options.limit,
    )
    if prepared.notes:
        known = result.incumbent
        # what holds for the usual strategies holds for no others; nor does a proof for a few splits
        proven = not (prepared.only_usual or known.infeasible)
        cut_short = dataclasses.replace(
            known,
            stopped_by=known.stopped_by or "time limit",
            bound=known.bound if proven else 0.0,
        )
        result = replace(result, incumbent=cut_short)
    return Attempt(
        formulation=result.formulation,
        result=result,
        notes=prepared.notes,
        starts=prepared.starts,
        cap=prepared.cap,
    )
