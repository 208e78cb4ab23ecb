"""Answers to requests: what the functions of `planner.api` and the commands do."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from costmodels.strategy.blocks import is_stack_on_tokens, is_transformer
from planner.errors import InfeasibleError, detached
from planner.joint.answer import joint_plan
from planner.joint.by_stage import fastest_of_stages
from planner.joint.plans import left_idle, stopped_plan
from planner.joint.wishes import Wishes, parse_forbid, parse_keep
from planner.plan import Plan
from planner.planning.answer import Answers
from planner.planning.infeasible import stopped_error
from planner.planning.options import SearchOptions, Watch
from planner.planning.summary import bounded
from planner.request.frameworks import FRAMEWORKS
from planner.request.inputs.question import BUCKET_BYTES, GLOBAL_BATCH_SIZE
from planner.request.request import Request
from planner.request.setting import Setting, find_cluster, find_network, gpu_counts, resolve
from search.problem.deadline import Deadline

# Part of a time limit that a search gets where all of it has passed before it begins.
SHORTEST = 0.01


def optimize_request(
    request: Request, watch: Watch | None = None, *, spent: float = 0, known: Answers | None = None
) -> Plan:
    """Answer a request for the fastest plan; what `optimize` does.

    Parameters
    ----------
    request
        The question.
    watch
        Told the phase, and the best step and the bound so far. [s]
    spent, known
        What has passed of the time limit already [s], and answers for fewer GPUs, to add this to.
    """
    deadline = Deadline(request.time_limit).earlier(spent)
    given = request.bucket_bytes
    options = SearchOptions(
        search=request.search,
        seed=request.seed,
        time_limit=request.time_limit,
        cap=request.cap,
        num_best=request.num_best,
        tune_trials=request.tune_trials,
        bucket_bytes=None if given is None else BUCKET_BYTES.quantity(given),
        least_memory=request.least_memory,
        all_reduce=request.all_reduce,
        watch=watch,
        dump_problem=request.dump_problem,
    )
    if request.runtime is None and request.framework is not None:
        request = dataclasses.replace(request, runtime=FRAMEWORKS[request.framework].runtime)
    setting = resolve(request)
    wishes = wishes_of(request, setting)
    wishes.check(setting.machine.training)

    def under(runtime: str) -> Setting:
        other = dataclasses.replace(request, runtime=runtime, global_batch_size=setting.batch)
        return replace(resolve(other), defaults=setting.defaults)

    return fastest_of_stages(
        setting,
        wishes,
        deadline,
        lambda part, wished, until: joint_plan(part, options, until, known, wished),
        under,
    )


def wishes_of(request: Request, setting: Setting) -> Wishes:
    """What a request holds fixed or rules out of a question."""
    return Wishes(
        keep=parse_keep(request.keep or ""),
        forbid=parse_forbid(request.forbid or ""),
        framework=request.framework,
        attends=is_transformer(setting.graph),
        on_tokens=is_stack_on_tokens(
            {layer.name: layer.kind for layer in setting.graph.compute_layers}
        ),
        optimizer=setting.machine.training.optimizer,
    )


def scale_request(
    request: Request, watch: Watch | None = None, *, spent: float = 0
) -> Iterator[Plan | InfeasibleError]:
    """Answer a request for the best plan at each number of GPUs; what `scale` does.

    A time limit is that of all of them: each gets its share of what those before it left.

    Parameters
    ----------
    request
        The question.
    watch, spent
        As of `optimize_request`.
    """
    cluster = find_cluster(request.cluster)
    counts = gpu_counts(request, cluster)
    if request.cluster is not None:
        request = dataclasses.replace(request, cluster=cluster)
    # files are read once, and not for each number of GPUs
    request = dataclasses.replace(request, source=find_network(request), counts=counts)
    setting = resolve(dataclasses.replace(request, gpus=counts[0]))
    return _plans_of_sizes(request, counts, setting, watch, spent=spent)


def _plans_of_sizes(
    request: Request,
    counts: Sequence[int],
    first: Setting,
    watch: Watch | None,
    *,
    spent: float,
) -> Iterator[Plan | InfeasibleError]:
    """As `scale_request`; whoever asks for the answers may take time between them.

    Parameters
    ----------
    request, counts, watch, spent
        The question, its numbers of GPUs, and as of `scale_request`.
    first
        The question for the first of them.
    """
    known: Answers = {}
    smaller: Plan | None = None
    whole = math.inf if request.time_limit is None else request.time_limit
    for place, count in enumerate(counts):
        if spent >= whole and place:
            yield _or_smaller(stopped_error("time limit"), smaller, count)
            continue
        began = time.monotonic()
        if request.time_limit is not None:
            # the first is asked in any case, for what can be had at once
            share = max(whole - spent, SHORTEST * whole) / (len(counts) - place)
            request = dataclasses.replace(request, time_limit=share)
        size = first.batch if request.strong else max(first.batch * count // first.gpus, 1)
        sized = dataclasses.replace(request, gpus=count, global_batch_size=size)
        try:
            answer: Plan | InfeasibleError = optimize_request(sized, watch, known=known)
        except InfeasibleError as error:
            answer = detached(error)
        answer = _or_smaller(answer, smaller, count)
        spent += time.monotonic() - began
        if request.strong and not first.cluster.groups and isinstance(answer, Plan):
            smaller = answer
        if request.global_batch_size is None and isinstance(answer, Plan):
            chosen = GLOBAL_BATCH_SIZE.chose(batch=size, per_gpu=size / count)
            answer = dataclasses.replace(answer, defaults=(*answer.defaults, chosen))
        yield answer
        if was_interrupted(answer):
            return


def _or_smaller(
    answer: Plan | InfeasibleError, smaller: Plan | None, gpus: int
) -> Plan | InfeasibleError:
    """The answer, or where there was no time for one the plan of fewer GPUs, the others idle.

    Parameters
    ----------
    answer, gpus
        The answer, and for how many GPUs it is. [items]
    smaller
        The plan for fewer of them, None where there is none of the same batch.
    """
    stopped = isinstance(answer, InfeasibleError) and answer.stopped_by == "time limit"
    if smaller is None or not stopped or smaller.gpus >= gpus:
        return answer
    # what no plan for fewer takes less than is no bound for more
    plan = left_idle(bounded(smaller, 0.0), gpus - smaller.gpus, answer)
    return stopped_plan(plan, "time limit")


def was_interrupted(answer: Plan | InfeasibleError) -> bool:
    """Whether an interrupt ended the search for an answer, so that no other is wanted."""
    stopped = answer.stopped_by if isinstance(answer, InfeasibleError) else answer.search.stopped_by
    return stopped == "interrupt"
