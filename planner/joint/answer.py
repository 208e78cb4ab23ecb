"""The answer to a question over the whole joint space: pipelines beside the splits of one stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from costmodels.simulation import load_runtime
from costmodels.strategy.blocks import is_transformer
from costmodels.units import format_bytes, format_seconds
from planner.errors import ConflictError, InfeasibleError
from planner.joint.search import JointResult, JointSearch
from planner.joint.wishes import NO_WISHES, Wishes
from planner.notes import words
from planner.plan import Finalist, Plan, SearchSummary
from planner.planning.answer import Answers
from planner.planning.infeasible import stopped_error
from planner.planning.optimize import plan_for
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep, UsualTrial, named, usual_degrees, usual_trials
from planner.planning.staged_plan import plan_of_stages
from planner.planning.summary import PROVEN_GAP
from planner.request.parts import Degrees
from planner.request.setting import DEFAULT_RUNTIME, Setting
from search.problem.deadline import Deadline
from search.problem.notes import Note

# The single stage of a network with more layers is not searched layer by layer: that takes longer
# than the rest of the answer. [items]
MOST_LAYERS = 500
# Part of the time limit that the search over global choices may take.
SHARE = 0.5


def joint_plan(
    setting: Setting,
    options: SearchOptions,
    deadline: Deadline | None = None,
    known: Answers | None = None,
    wishes: Wishes = NO_WISHES,
) -> Plan:
    """The fastest plan that fits in memory, of one stage or of several.

    Transformers are searched in the whole joint space. Other networks are where something is held
    fixed or ruled out. Where nothing is, no usual way to train is faster than the answer.

    Parameters
    ----------
    setting
        The question.
    options
        How to search.
    deadline
        When the plan must be there; by default after the time limit from now.
    known
        Answers to the same question for fewer devices.
    wishes
        What is held fixed or ruled out.

    Raises
    ------
    InputError
        When nothing is left of the space by what is held fixed.
    InfeasibleError
        When no plan that fits was found, whether or not that is proven.
    """
    deadline = deadline or Deadline(options.time_limit)
    one_stage = options.least_memory or options.dump_problem is not None or setting.gpus == 1
    searched = wishes.any or is_transformer(setting.graph)
    if wishes.splits_alone or (not wishes.any and one_stage) or not searched:
        return plan_for(setting, options, deadline, known)
    if one_stage and setting.gpus > 1:
        raise ConflictError(
            "--least-memory and --dump-problem are of the splits of one stage, of which --keep and "
            "--forbid must leave nothing else; forbid pipeline,accumulation,sharding,recompute"
        )
    setting.check_reserve()
    options.tell("estimating pipelines")
    search = JointSearch(
        setting=setting,
        runtime=load_runtime(DEFAULT_RUNTIME),
        options=options,
        deadline=deadline.part(SHARE) if _few_layers(setting, wishes) else deadline,
        wishes=wishes,
    )
    found = search.run()
    # who interrupts does not wait for comparisons either
    until = Deadline(0.0) if found.stopped_by == "interrupt" else deadline
    usual: tuple[UsualTrial, ...] = ()
    try:
        usual = usual_trials(setting, search.runtime, until, _usual(setting, found))
    except KeyboardInterrupt:
        found = replace(found, stopped_by="interrupt")
    if not wishes.any:
        found = _with_usual(found, usual)
    single = None
    if wishes.leaves_splits and _worth_splitting(setting, found):
        try:
            single = plan_for(setting, options, deadline, known)
            cut_short = single.search.stopped_by
        except InfeasibleError as error:
            # that no split fits says nothing of micro-batches, sharding and recomputation
            cut_short = error.stopped_by
        found = replace(found, stopped_by=found.stopped_by or cut_short)
    best = found.best
    if single is not None and (best is None or single.step_time_s <= best.seconds):
        note = words(
            Note.of(
                "pipelines-estimated",
                choices=found.num_choices,
                simulated=len(found.simulated),
                bound=format_seconds(found.bound),
            )
        )
        # the fastest of several stages is as good a plan as those of one
        stopped = replace(single.search, stopped_by=found.stopped_by)
        return _with_note(replace(single, search=stopped), note)
    if best is None:
        raise infeasible(setting, found)
    return plan_of_stages(
        best,
        summary(found, best),
        notes=search_notes(found, best, single),
        baselines=tuple(one.baseline for one in usual),
        finalists=_finalists(found, best),
    )


def _with_usual(found: JointResult, usual: Sequence[UsualTrial]) -> JointResult:
    """What was found, or a usual way to train where that is faster than its estimate let expect."""
    steps = tuple(one.step for one in usual if one.step is not None)
    rivals = [one for one in (found.best, *steps) if one is not None and one.fits]
    best = min(rivals, key=lambda one: one.seconds, default=None)
    return replace(found, best=best, simulated=(*found.simulated, *steps))


def _few_layers(setting: Setting, wishes: Wishes) -> bool:
    """Whether the splits of one stage may be searched as well."""
    return wishes.leaves_splits and len(setting.graph.compute_layers) <= MOST_LAYERS


def _usual(setting: Setting, found: JointResult) -> dict[str, Degrees]:
    """The usual ways to train; Megatron's with as many stages as it is expected to fit in.

    Narayanan et al. 2021 (section 5.4.1) cut tensors within a host, and the rest by stages until
    the network fits; attention is computed again (Korthikanti et al. 2022).
    """
    usual = usual_degrees(setting)
    *others, megatron = usual
    inside = replace(usual[megatron], micro_batch_size=None, zero=None)
    fitting = [
        one.choice.pp
        for one in found.estimates
        if one.memory <= setting.cluster.device.memory
        and one.choice.inside == inside
        and (one.choice.zero, one.choice.chunks, one.choice.samples) == (1, 1, 1)
    ]
    known = {name: usual[name] for name in others}
    return known | named("megatron", replace(usual[megatron], pp=min(fitting, default=1)))


def _with_note(plan: Plan, note: str) -> Plan:
    return replace(plan, fallbacks=(*plan.fallbacks, note))


def _worth_splitting(setting: Setting, found: JointResult) -> bool:
    """Whether the splits of one stage may hold a faster plan, and are few enough to search."""
    if found.stopped_by == "interrupt" or len(setting.graph.compute_layers) > MOST_LAYERS:
        return False
    return found.best is None or found.single_bound < found.best.seconds


def _undercut(found: JointResult, best: StagedStep) -> bool:
    """Whether a step is below what should bound it by more than rounding: then it is no bound."""
    return found.bound > (1.0 + PROVEN_GAP) * best.seconds


def summary(found: JointResult, best: StagedStep) -> SearchSummary:
    """How a plan was found, and how good it is known to be.

    The bound holds for all plans, whatever they need of memory.
    """
    bound = 0.0 if _undercut(found, best) else min(found.bound, best.seconds)
    gap = (best.seconds - bound) / best.seconds
    return SearchSummary(
        solver="estimates of all choices, the best simulated",
        status="optimal" if gap <= PROVEN_GAP else "feasible",
        lower_bound_s=bound,
        proven_optimal=gap <= PROVEN_GAP,
        gap=gap,
        num_sensible=0,
        num_candidates=0,
        cap=0,
        num_costed=len(found.simulated),
        stopped_by=found.stopped_by,
        num_choices=found.num_choices,
    )


def search_notes(
    found: JointResult, best: StagedStep, single: Plan | None = None
) -> tuple[Note, ...]:
    """What is worth knowing of the search.

    Parameters
    ----------
    found, best
        What it came to.
    single
        The plan of one stage, where that was searched.
    """
    notes = [Note.of("splits-by-degrees")]
    if _undercut(found, best):
        notes.append(Note.of("bound-withdrawn", bound=format_seconds(found.bound)))
    layers = len(best.placed.graph.compute_layers)
    if single is None and layers > MOST_LAYERS and found.single_bound < best.seconds:
        notes.append(Note.of("single-stage-too-large", layers=layers, most=MOST_LAYERS))
    elif single is None and found.single_bound >= best.seconds:
        notes.append(Note.of("single-stage-slower", bound=format_seconds(found.single_bound)))
    if found.left_out:
        notes.append(
            Note.of("degrees-left-out", count=len(found.left_out), first=found.left_out[0])
        )
    if found.stopped_by:
        notes.append(Note.of("search-stopped", reason=found.stopped_by))
    return tuple(notes)


def _finalists(found: JointResult, best: StagedStep) -> tuple[Finalist, ...]:
    rows = sorted((one for one in found.simulated if one.fits), key=lambda one: one.seconds)
    return tuple(
        Finalist(
            step_time_s=one.seconds,
            peak_memory_bytes=one.peak_memory,
            chosen=one is best,
        )
        for one in rows
    )


def infeasible(setting: Setting, found: JointResult) -> InfeasibleError:
    """That nothing fits, and whether that is proven: every weight is somewhere, with its state."""
    if found.stopped_by and not found.simulated:
        return stopped_error(found.stopped_by)
    device = setting.cluster.device
    least = least_held(setting) / setting.gpus + device.reserved_memory
    proven = least > device.memory
    tightest = min((one.peak_memory for one in found.simulated), default=math.inf)
    short = max(least if proven else tightest, least) - device.memory
    smallest = (
        f"the smallest of {len(found.simulated)} simulated needs {format_bytes(tightest)} a GPU"
        if found.simulated
        else "none could be simulated"
    )
    verdict = (
        f"no plan fits in memory: weights, gradients and optimizer state alone are "
        f"{format_bytes(least)} a GPU with what the framework reserves"
        if proven
        else f"no plan that fits was found among {found.num_choices:,} ways to train, though it is "
        f"not proven that there is none: {smallest}"
    )
    return InfeasibleError(
        f"{verdict}, and {device.name} has {format_bytes(device.memory)}; use more GPUs or a "
        "smaller batch",
        missing_bytes=max(short, 0.0),
        layer="",
        proven=proven,
        stopped_by="" if proven else found.stopped_by,
    )


def least_held(setting: Setting) -> float:
    """What all devices hold together at least of weights, gradients and optimizer state. [B]

    Whatever the runtime that a way to train runs under, whose precision recipes differ.
    """
    runtimes = (load_runtime(name) for name in (DEFAULT_RUNTIME, "zero1", "fsdp"))
    each = min(setting.under(one).machine.training.parameter_size for one in runtimes)
    return float(setting.graph.parameters) * each
