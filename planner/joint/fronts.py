"""Fronts: plans of which none is both faster and smaller, in memory or in GPUs, than another."""

from __future__ import annotations

import dataclasses

from msgspec.structs import replace

from costmodels.cluster import Cluster
from costmodels.errors import InputError
from planner.errors import ConflictError, InfeasibleError
from planner.joint.answer import joint_plan
from planner.joint.between import UNIT, filled
from planner.joint.pareto import front
from planner.joint.plans import stopped_plan
from planner.joint.requests import scale_request, wishes_of
from planner.joint.with_own_splits import may_differ
from planner.plan import Plan
from planner.planning.options import SearchOptions, Watch
from planner.request.request import Request
from planner.request.setting import Setting, find_cluster, gpu_counts, resolve
from search.problem.deadline import Deadline

# Part of a time limit after which the fastest plan, whatever it holds, is to be there.
SHARE = 0.5
# Of less time all of it goes into that plan. [s]
FEW_SECONDS = 2.0


def pareto_request(request: Request, watch: Watch | None = None, *, spent: float = 0) -> list[Plan]:
    """Answer a request for a front; what `pareto` does.

    Parameters
    ----------
    request
        The question.
    watch, spent
        As of `optimize_request`.
    """
    if request.against == "gpus":
        return gpus_front(request, watch, spent=spent)
    counts = gpu_counts(request, find_cluster(request.cluster))
    if len(counts) > 1:
        raise ConflictError(
            f"a front of step time against memory is of one number of GPUs but there are "
            f"{len(counts)}; name one, or add --against gpus"
        )
    options = SearchOptions(time_limit=request.time_limit, watch=watch)
    deadline = Deadline(request.time_limit).earlier(spent)
    setting = resolve(dataclasses.replace(request, gpus=counts[0]))
    setting.check_reserve()
    if setting.cluster.groups:
        names = ", ".join(group.name for group in setting.cluster.groups)
        raise InputError(
            "a front of step time against memory must be of hosts of one kind but "
            f"{setting.cluster.name} has several, {names}; use the GPUs of one group, or --against "
            "gpus"
        )
    wishes, fastest = wishes_of(request, setting), None
    try:
        first = deadline if deadline.remaining < FEW_SECONDS else deadline.part(SHARE)
        fastest = joint_plan(setting, options, first, wishes=wishes)
    except InfeasibleError as error:
        if error.proven or error.stopped_by == "interrupt":
            raise
    if fastest is not None and fastest.search.stopped_by == "interrupt":
        return [fastest]
    try:
        points = front(setting, options, deadline, wishes, fastest)
    except KeyboardInterrupt:
        if fastest is None:
            raise
        return [stopped_plan(fastest, "interrupt")]
    if fastest is None or points[0].search.stopped_by or not may_differ(setting, wishes):
        return points

    def answer(limit: float) -> Plan:
        return _answer_under(limit, request, setting, options, deadline)

    return filled(points, answer, setting.cluster.device.reserved_memory, deadline)


def _answer_under(
    limit: float, request: Request, setting: Setting, options: SearchOptions, deadline: Deadline
) -> Plan:
    """The answer to a question with so much memory of a GPU.

    Parameters
    ----------
    limit
        The memory. [B]
    request, setting
        The question, as it is asked and with every default filled in.
    options, deadline
        How to search, and when the answer must be there.

    Raises
    ------
    InfeasibleError
        When no plan that fits was found.
    """
    asked = dataclasses.replace(
        request, gpus=setting.gpus, memory=limit, global_batch_size=setting.batch
    )
    said = (
        f"memory of {limit / UNIT:.0f} MiB a GPU, a point of a front: what 'planner optimize "
        f"--memory {limit / UNIT:.0f}MiB' finds"
    )
    under = replace(resolve(asked), defaults=(*setting.defaults, said))
    return joint_plan(under, options, deadline, wishes=wishes_of(asked, under))


def gpus_front(request: Request, watch: Watch | None = None, *, spent: float = 0) -> list[Plan]:
    """The fastest plan for each number of GPUs of which no smaller number is as fast.

    A global batch, where one is given, is that of all numbers of GPUs; else it grows with them.

    Parameters
    ----------
    request
        The question, with several numbers of GPUs, or the most.
    watch, spent
        As of `optimize_request`; a time limit is shared out as by `scale`.

    Returns
    -------
    list of Plan
        The fastest first, each with fewer GPUs than the one before.

    Raises
    ------
    InputError
        When an input cannot be used.
    InfeasibleError
        When no plan that fits was found for any number of GPUs.
    """
    cluster = find_cluster(request.cluster)
    counts = sorted(set(_asked_counts(request, cluster)))
    asked = dataclasses.replace(
        request,
        counts=tuple(counts),
        strong=request.global_batch_size is not None,
    )
    points: list[Plan] = []
    failure: InfeasibleError | None = None
    try:
        for answer in scale_request(asked, watch, spent=spent):
            if isinstance(answer, InfeasibleError):
                # that fewer GPUs do not hold a network says nothing of more
                failure = answer
            elif not points or answer.throughput > points[-1].throughput:
                points.append(answer)
    except KeyboardInterrupt:
        if not points:
            raise
    if not points:
        assert failure is not None, "without a plan there is a reason"
        raise failure
    if failure is not None and failure.stopped_by == "time limit":
        search = replace(points[-1].search, stopped_by=failure.stopped_by)
        points[-1] = dataclasses.replace(points[-1], search=search)
    return points[::-1]


def _asked_counts(request: Request, cluster: Cluster) -> tuple[int, ...]:
    """The numbers of GPUs; of one number also its half, that one's half, and so on."""
    counts = gpu_counts(request, cluster)
    if len(counts) > 1:
        return counts
    halves = [counts[0]]
    while halves[-1] % 2 == 0:
        halves.append(halves[-1] // 2)
    return tuple(count for count in halves if cluster.can_use(count))
