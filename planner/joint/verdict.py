"""What is said of a search over global choices: how good a plan is, and why there is none."""

from __future__ import annotations

import math
from dataclasses import replace

from costmodels.simulation import load_runtime
from costmodels.strategy.blocks import is_transformer
from costmodels.units import format_bytes, format_seconds
from planner.errors import InfeasibleError
from planner.joint.activations import LeastOfStages, least_of_heavy
from planner.joint.choices import Choice
from planner.joint.estimate import Estimate
from planner.joint.result import JointResult
from planner.joint.runtimes import splits_by_layer, stages_of_zero
from planner.joint.weights import LeastWeights
from planner.plan import SearchSummary
from planner.planning.infeasible import stopped_error
from planner.planning.staged import StagedStep
from planner.planning.summary import PROVEN_GAP
from planner.planning.usual import named, usual_degrees
from planner.request.frameworks import FRAMEWORKS
from planner.request.named_degrees import OWN_RUNTIMES
from planner.request.parts import Degrees
from planner.request.setting import DEFAULT_RUNTIME, Setting
from search.problem.notes import Note

# Those that ways to train run under.
RUNTIMES = (DEFAULT_RUNTIME, *OWN_RUNTIMES)


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


def search_notes(found: JointResult, best: StagedStep) -> tuple[Note, ...]:
    """What is worth knowing of the search that came to a plan."""
    gpus = best.placed.setting.gpus
    kind = "splits-by-degrees" if found.is_by_degrees else "splits-of-their-own"
    if not found.is_by_degrees and found.bound > found.any_split:
        kind = "sharded-splits-of-their-own"
    notes = [Note.of(kind, gpus=gpus, bound=format_seconds(found.any_split))]
    if found.own_splits and found.is_by_degrees:
        notes.append(Note.of("splits-of-their-own-slower", count=len(found.own_splits)))
    if _undercut(found, best):
        notes.append(Note.of("bound-withdrawn", bound=format_seconds(found.bound)))
    if found.no_splits is not None:
        notes.append(found.no_splits)
    searched = ("fsdp", *found.under)
    if found.runtime is None and best.runtime.name not in searched:
        notes.append(Note.of("usual-is-faster", runtime=best.runtime.name))
    asked = best.placed.setting.request
    if asked is not None and asked.bucket_bytes is not None and not best.runtime.tunable:
        notes.append(Note.of("buckets-of-its-own", runtime=best.runtime.name))
    if found.left_out:
        notes.append(
            Note.of("degrees-left-out", count=len(found.left_out), first=found.left_out[0])
        )
    if found.stopped_by:
        notes.append(Note.of("search-stopped", reason=found.stopped_by))
    return tuple(notes)


def left_splits(setting: Setting, found: JointResult, limit: float = math.inf) -> JointResult:
    """What a search came to, with why the splits of one stage are not to be searched, if so.

    Parameters
    ----------
    setting, found
        The question, and what the search over global choices came to.
    limit
        The step of a plan that is known. [s]
    """
    if found.runtime is not None and not splits_by_layer(setting):
        return found.without_splits(Note.of("single-stage-under", runtime=found.runtime))
    least = format_seconds(found.single_bound)
    known = limit if found.best is None else min(limit, found.best.seconds)
    if found.single_bound >= known:
        return found.without_splits(Note.of("single-stage-slower", bound=least))
    kept = LeastOfStages(setting)
    if not kept.fits_in_one_stage(1, "none"):
        share = format_bytes(kept.share(1, "none"))
        return found.without_splits(Note.of("single-stage-crowded", kept=share))
    return found


def unproven_splits(found: JointResult) -> JointResult:
    """What a search came to where no split of one stage was found that fits, without a proof."""
    least = format_seconds(found.single_bound)
    return found.without_splits(Note.of("single-stage-unknown", bound=least), found.single_bound)


def infeasible(setting: Setting, found: JointResult, layer: str = "") -> InfeasibleError:
    """That nothing fits, and whether that is proven.

    It is where weights with their state are too much for all devices together.

    Parameters
    ----------
    setting, found
        The question, and what the search came to.
    layer
        That holds the most, where no split of one stage layer by layer fits.
    """
    if found.stopped_by and not (found.every_step or found.misfits):
        return stopped_error(found.stopped_by)
    device = setting.cluster.device
    held, what = _least_on_devices(setting, found)
    least = held / setting.gpus + device.reserved_memory
    every = _least_of_choices(setting, found)
    proven = max(least, every) > device.memory
    needed = [one.capacity + one.short for one in found.every_step]
    needed += [device.memory + short for short in found.misfits]
    tightest = min(needed, default=math.inf)
    short = max(least, every if proven else tightest) - device.memory
    smallest = (
        f"the smallest of {len(needed)} simulated needs {format_bytes(tightest)} a GPU"
        if needed
        else "none could be simulated"
    )
    own = len(found.own_splits)
    beside = f" and {own:,} with splits of their own" if own else ""
    space = f"{found.num_choices:,} ways to train{beside}"
    if least > device.memory:
        verdict = (
            f"no plan fits in memory: {what} {format_bytes(least)} a GPU with what the "
            "framework reserves"
        )
    elif proven:
        verdict = (
            f"no plan fits in memory: every way to train that {_framework(setting)} has "
            f"needs {format_bytes(every)} a GPU or more"
        )
    elif found.stopped_by:
        verdict = (
            f"stopped before a plan was found, by the {found.stopped_by}: none so far of {space} "
            f"fits, though it is not proven that there is none: {smallest}"
        )
    else:
        verdict = (
            f"no plan that fits was found among {space}, though it is not proven that there is "
            f"none: {smallest}"
        )
    longer = "raise the time limit, " if found.stopped_by == "time limit" and not proven else ""
    holder = f" (layer '{layer}' holds most of it)" if layer and not proven else ""
    return InfeasibleError(
        f"{verdict}, and {device.name} has {format_bytes(device.memory)}{holder}; "
        f"{longer}{_remedy(setting, found)}use more GPUs or a smaller batch",
        missing_bytes=max(short, 0.0),
        layer="" if proven else layer,
        proven=proven,
        stopped_by="" if proven else found.stopped_by,
        bound_s=found.bound,
    )


def _least_on_devices(setting: Setting, found: JointResult) -> tuple[float, str]:
    """What all devices hold together at least, beside what their hosts have room for. [B]

    Returns
    -------
    How much that is, and of what.
    """
    held, host = least_held(setting), setting.cluster.host
    if host is None or not found.offloads:
        return held, "weights, gradients and optimizer state alone are"
    gradients = float(setting.graph.parameters) * LeastWeights(setting).least_gradient
    # usual ways to train run under other runtimes, and have nothing in the hosts
    gradients = min(gradients, held)
    hosts = -(-setting.gpus // setting.cluster.devices_per_host)
    beside = held - hosts * host.memory
    if gradients >= beside:
        return gradients, "gradients alone, with all else in the memory of the hosts, are"
    return beside, "weights, gradients and optimizer state, beside what hosts have room for, are"


def _framework(setting: Setting) -> str | None:
    """That must be able to run the plan, None where none was named."""
    return None if setting.request is None else setting.request.framework


def _least_of_choices(setting: Setting, found: JointResult) -> float:
    """What a device holds at least where a framework has replicas alone, all of which are too much;
    0 where that is not so. [B]

    On fewer devices these hold no less.
    """
    framework = _framework(setting)
    replicas = framework is not None and not FRAMEWORKS[framework].kinds
    if not replicas or found.offloads or len(found.heavy) < max(found.num_wished, 1):
        return 0.0
    stages = None if is_transformer(setting.graph) else LeastOfStages(setting)
    return min(least_of_heavy(setting, found.heavy, stages))


def _remedy(setting: Setting, found: JointResult) -> str:
    """What else would make room: the memory of hosts that are not used."""
    if found.offloads or setting.cluster.groups or _framework(setting) is not None:
        return ""
    if setting.cluster.host is None:
        return "say what its hosts hold, with a [host] table in the cluster's file, or "
    return "let some of it wait in the memory of the hosts (offload), "


def least_held(setting: Setting) -> float:
    """What all devices hold together at least of weights, gradients and optimizer state. [B]

    Whatever the runtime that a way to train runs under, whose precision recipes differ.
    """
    runtimes = map(load_runtime, RUNTIMES)
    each = min(setting.under(one).machine.training.parameter_size for one in runtimes)
    return float(setting.graph.parameters) * each


def usual_of(setting: Setting, found: JointResult | None) -> dict[str, Degrees]:
    """The usual ways to train; Megatron's with as many stages as it is expected to fit in.

    Narayanan et al. 2021 (section 5.4.1) cut tensors within a host, and the rest by stages until
    the network fits; attention is computed again (Korthikanti et al. 2022).
    """
    usual = usual_degrees(setting, stages_of_zero(setting))
    *others, megatron = usual
    cut = usual[megatron].zero
    inside = replace(usual[megatron], zero=None)

    def alike(choice: Choice) -> bool:
        one = choice.zero, choice.chunks, choice.samples
        return choice.inside == inside and one == (cut, 1, 1)

    rows: list[Estimate] = []
    if found is not None and found.costs is not None:
        rows = [one for one in found.estimates if alike(one.choice)]
        rows += [found.costs.of(choice) for choice in found.passed if alike(choice)]
    memory = setting.cluster.device.memory
    fitting = [one.choice.pp for one in rows if one.memory <= memory]
    known = {name: usual[name] for name in others}
    return known | named("megatron", replace(usual[megatron], pp=min(fitting, default=1)))
