"""From a question to a plan: search, tune, decide by simulation, and say how good the plan is."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from costmodels.distribution import Distribution
from costmodels.step.training import Training
from planner.notes import AnyNote, words
from planner.output import check_writable
from planner.plan import Plan, SearchSummary, given_solver
from planner.planning.assemble import assemble_plan
from planner.planning.bounds.additive_search import time_left
from planner.planning.decision.decide import IDLE_WITHIN, Decision, decide
from planner.planning.decision.fewer import better_of, fewer_devices
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.infeasible import infeasible_error, stopped_error
from planner.planning.memory.rows import SMALLEST_BUCKET
from planner.planning.options import SearchOptions
from planner.planning.prepare import (
    UsualStrategies,
    formulate_given,
    prepare,
    usual_strategies,
)
from planner.planning.problem_files import write_problem
from planner.planning.search_plan import search_plan
from planner.planning.sensitivity import marked
from planner.planning.space.costing import cost
from planner.planning.summary import least_memory_notes, summarise, summary_notes
from planner.planning.tuning import Attempt, tune_step
from planner.request.setting import Setting
from planner.request.usual_strategies import Infeasible
from search.problem.deadline import Deadline, OutOfTime
from search.problem.interrupts import held_back
from search.problem.notes import Note


def plan_for(setting: Setting, options: SearchOptions, deadline: Deadline | None = None) -> Plan:
    """Find the fastest plan that fits in memory.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    deadline
        When the plan must be there; by default after the time limit from now.

    Raises
    ------
    InputError
        When the problem cannot be written where it is asked for.
    InfeasibleError
        When no plan that fits was found, whether or not that is proven.
    """
    if options.dump_problem is not None:
        check_writable(options.dump_problem)  # now, and not after the search
    deadline = deadline or Deadline(options.time_limit)
    left = deadline.remaining
    try:
        found, decision = _answer(setting, options, deadline)
    except OutOfTime:
        raise stopped_error("time limit") from None
    took = 0.0 if options.time_limit is None else left - deadline.remaining
    if decision is None:
        raise infeasible_error(setting, found.result)
    usual = usual_strategies(setting)
    trained = decision.formulation.machine.training

    def search_again(other: Setting, strategies: UsualStrategies) -> Attempt:
        quick = replace(options, num_best=1, watch=None)
        return attempt(other, trained, quick, usual=strategies, deadline=deadline)

    if not options.least_memory:
        decision = marked(
            decision, setting, search_again, usual=usual, deadline=deadline, took=took
        )
    with held_back() as interrupted:
        plan = _assembled(setting, options, found, decision, deadline)
    return _interrupted(plan) if interrupted.is_set() else plan


def _assembled(
    setting: Setting,
    options: SearchOptions,
    found: Attempt,
    decision: Decision,
    deadline: Deadline,
) -> Plan:
    """The plan, and the problem where it is asked for.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    found
        The search.
    decision
        The assignment that becomes the plan.
    deadline
        When the plan must be there.
    """
    simulator = PlanSimulator(decision.formulation)
    step = simulator.planned_step(decision.best.choices)
    summary = summarise(found, decision, step.seconds)
    if options.dump_problem is not None:
        # none was kept where the first was interrupted
        problem = found.result.problem or decision.formulation.problem()
        write_problem(options.dump_problem, problem, f"{setting.model.name} on {setting.gpus} GPUs")
    usual = usual_strategies(setting)
    usable = (name for name, rows in usual.items() if not isinstance(rows, Infeasible))
    starts = zip(usable, found.starts, strict=False)
    return assemble_plan(
        setting,
        simulator,
        decision.best,
        step,
        summary,
        usual=usual,
        notes=(
            *found.notes,
            *decision.notes,
            *found.result.incumbent.notes,
            *(least_memory_notes(found, step.memory.total) if options.least_memory else ()),
            *summary_notes(summary),
        ),
        finalists=decision.finalists,
        simulated_usual={n: decision.usual[c] for n, c in starts if c in decision.usual},
        deadline=deadline,
    )


def _interrupted(plan: Plan) -> Plan:
    """A plan that was interrupted when all but itself was there."""
    if plan.search.stopped_by == "interrupt":
        return plan
    note = words(Note.of("search-stopped", reason="interrupt"))
    return replace(
        plan,
        search=replace(plan.search, stopped_by="interrupt"),
        fallbacks=(*plan.fallbacks, note),
    )


def _smaller_buckets_may_fit(found: Attempt) -> bool:
    """Whether nothing fits by no more than what smaller buckets of gradients would save."""
    result, buckets = found.result, found.formulation.machine.training.bucket_bytes
    if result.best is not None or result.tightest is None or result.incumbent.stopped_by:
        return False
    saved = 2.0 * (buckets - SMALLEST_BUCKET)
    return result.tightest.memory.total - saved <= found.formulation.cluster.device.memory


def _answer(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline,
    rival: float = math.inf,
) -> tuple[Attempt, Decision | None]:
    """Search and decide, for fewer devices as well where that may be as fast.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    deadline
        When the plan must be there.
    rival
        Step of the best plan of more devices: where this one is far from it, so are those of even
        fewer. [s]

    Raises
    ------
    OutOfTime
        When there was no time to cost anything.
    """
    began = time.monotonic()
    usual = usual_strategies(setting)

    def attempt_with(training: Training, how: SearchOptions) -> Attempt:
        return attempt(setting, training, how, usual=usual, deadline=deadline)

    training = setting.machine.training
    small = replace(training, bucket_bytes=min(training.bucket_bytes, SMALLEST_BUCKET))
    if options.least_memory and options.bucket_bytes is None:
        training, options = small, replace(options, bucket_bytes=small.bucket_bytes)
    unwatched = replace(options, watch=None)
    found = attempt_with(training, options)
    if options.bucket_bytes is None and _smaller_buckets_may_fit(found):
        found = attempt_with(small, unwatched)
    known = found.result.incumbent
    if options.tune_trials and not known.stopped_by:
        options.tell("trying other settings", known.cost, known.bound)
        found = tune_step(
            lambda training: attempt_with(training, unwatched),
            found,
            options,
            time_limit=time_left(deadline),
        )
    if found.result.best is None:
        return found, None
    decision = decide(found, options, deadline)
    look_on = decision.fewer_may_do and not options.least_memory
    fewer = fewer_devices(setting) if look_on else None
    if fewer is None or decision.stopped_by or decision.seconds > IDLE_WITHIN * rival:
        return found, decision
    # a search for fewer takes about as long
    if deadline.remaining < time.monotonic() - began:
        return found, decision.noted(Note.of("no-time-for-fewer"))
    try:
        best_yet = min(rival, decision.seconds)
        _, smaller = _answer(fewer, unwatched, deadline, best_yet)
        if smaller is not None:
            decision = better_of(setting, decision, smaller, usual)
    except OutOfTime:
        decision = decision.noted(Note.of("no-time-for-fewer"))
    except KeyboardInterrupt:
        decision = replace(decision, stopped_by="interrupt")
    return found, decision


def plan_of_strategy(
    setting: Setting,
    distributions: Mapping[str, Distribution],
    name: str,
    notes: Sequence[AnyNote] = (),
) -> Plan:
    """Cost one given strategy.

    Parameters
    ----------
    setting
        The question.
    distributions
        How the strategy splits every layer.
    name
        What it is called.
    notes
        What is worth knowing of it.
    """
    usual = usual_strategies(setting)
    formulation = formulate_given(setting, distributions, usual)
    costed = cost(formulation, formulation.choices(distributions))
    summary = SearchSummary(
        solver=given_solver(name),
        status="given",
        lower_bound_s=0.0,
        proven_optimal=False,
        gap=1.0,
        num_sensible=len(formulation.layers),
        num_candidates=len(formulation.layers),
        cap=1,
        num_costed=1,
    )
    simulator = PlanSimulator(formulation)
    step = simulator.planned_step(costed.choices)
    return assemble_plan(setting, simulator, costed, step, summary, usual=usual, notes=notes)


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
        watch=partial(options.tell, "searching"),
    )
    if prepared.notes:
        known = result.incumbent
        # what holds for the usual strategies holds for no others; nor does a proof for a few splits
        proven = not (prepared.only_usual or known.infeasible)
        cut_short = replace(
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
