"""From a question to a plan: search, tune, decide by simulation, and say how good the plan is."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from costmodels.distribution import Distribution
from planner.notes import AnyNote, words
from planner.output import check_writable
from planner.plan import Plan, SearchSummary, given_solver
from planner.planning.answer import Answers, Inquiry, attempt
from planner.planning.assemble import assemble_plan
from planner.planning.decision.decide import Decision
from planner.planning.decision.simulator import PlanSimulator
from planner.planning.infeasible import infeasible_error, stopped_error
from planner.planning.options import SearchOptions
from planner.planning.prepare import UsualStrategies, formulate_given, usual_strategies
from planner.planning.problem_files import write_problem
from planner.planning.sensitivity import marked
from planner.planning.space.costing import cost
from planner.planning.summary import least_memory_notes, summarise, summary_notes
from planner.planning.tuning import Attempt
from planner.request.setting import Setting
from planner.request.usual_strategies import Infeasible
from search.problem.deadline import Deadline, OutOfTime
from search.problem.interrupts import held_back
from search.problem.notes import Note


def plan_for(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline | None = None,
    known: Answers | None = None,
) -> Plan:
    """Find the fastest plan that fits in memory.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    deadline
        When the plan must be there; by default after the time limit from now.
    known
        Answers to the same question for fewer devices, to which this one is added.

    Raises
    ------
    InputError
        When the problem cannot be written where it is asked for.
    InfeasibleError
        When no plan that fits was found, whether or not that is proven.
    Overtaken
        When the plans that fit are slower than the rival or the limit of the options.
    """
    if options.dump_problem is not None:
        check_writable(options.dump_problem)  # now, and not after the search
    setting.check_reserve()
    deadline = deadline or Deadline(options.time_limit)
    left = deadline.remaining
    try:
        answers = {} if known is None else known
        inquiry = Inquiry(options=options, deadline=deadline, known=answers)
        found, decision = inquiry.answer(setting)
    except OutOfTime:
        raise stopped_error("time limit") from None
    took = 0.0 if options.time_limit is None else left - deadline.remaining
    if decision is None:
        raise infeasible_error(setting, found.result)
    usual = usual_strategies(setting)
    trained = decision.formulation.machine.training

    def search_again(other: Setting, strategies: UsualStrategies) -> Attempt:
        quick = replace(options, num_best=1, watch=None, rival=None, limit=math.inf)
        return attempt(other, trained, quick, usual=strategies, deadline=deadline)

    if options.doubts and not options.least_memory:
        decision = marked(
            decision, setting, search_again, usual=usual, deadline=deadline, took=took
        )
    with held_back() as interrupted:
        plan = _assembled(setting, options, found, decision, usual, deadline)
    return _interrupted(plan) if interrupted.is_set() else plan


def _assembled(
    setting: Setting,
    options: SearchOptions,
    found: Attempt,
    decision: Decision,
    usual: UsualStrategies,
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
    usual
        The usual strategies.
    deadline
        When the plan must be there.
    """
    simulator = PlanSimulator(decision.formulation)
    began = time.monotonic()
    step = simulator.planned_step(decision.best.choices)
    # a usual strategy takes as long, and so does what follows the last of them
    deadline = deadline.earlier(2.0 * (time.monotonic() - began))
    summary = summarise(found, decision, step.seconds)
    if options.dump_problem is not None:
        # none was kept where the first was interrupted
        problem = found.result.problem or decision.formulation.problem()
        write_problem(options.dump_problem, problem, f"{setting.model.name} on {setting.gpus} GPUs")
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
            *summary_notes(summary, found.result.incumbent.bound),
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
    return dataclasses.replace(
        plan,
        search=replace(plan.search, stopped_by="interrupt"),
        fallbacks=(*plan.fallbacks, note),
    )


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

    Raises
    ------
    InfeasibleError
        When the limit on memory is below what the framework reserves.
    """
    setting.check_reserve()
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
