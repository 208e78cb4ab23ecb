"""Ways to train that may be faster than the best splits of one stage, where those are known.

Bounds by computation alone leave few of them; of those the best estimates are simulated. What is
looked at does not depend on how much memory there is, so that more of it finds no slower plan.
"""

from __future__ import annotations

import itertools

from costmodels.simulation import load_runtime
from planner.joint.computation import PipelineBounds
from planner.joint.estimate import Estimate, Estimates
from planner.joint.ranking import MARGIN, Ranking
from planner.joint.search import BOUND_SHARE, ESTIMATE_SHARE, JointResult, JointSearch
from planner.planning.staged import StagedStep, tried, usual_degrees
from planner.request.named_degrees import usual_runtime


def faster_ways(search: JointSearch) -> JointResult:
    """What is faster than the rival of a search, and bounds all ways to train where anything is.

    Parameters
    ----------
    search
        The search, which has a rival.
    """
    search.estimates = Estimates(search.setting, search.runtime)
    floors = PipelineBounds(search.setting, search.estimates.plain.reduced)
    ranked: list[Estimate] = []
    best: StagedStep | None = None
    bound = anyhow = 0.0
    stopped = ""
    try:
        ranked = _estimates(search, floors)
        search.simulate(ranked, bound)
        _try_usual(search, floors)
        if search.best is not None and search.best.seconds < search.rival:
            best = search.best
            early = search.deadline.part(BOUND_SHARE)
            anyhow = floors.least(early)
            bound = min(anyhow, best.seconds)
    except KeyboardInterrupt:
        stopped = "interrupt"
    if (search.deadline.passed or search.cut_short) and not stopped:
        stopped = "time limit"
    return JointResult(
        best=best,
        simulated=tuple(search.simulated),
        bound=bound,
        any_split=anyhow,
        single_bound=0.0,
        num_choices=search.num_choices,
        num_wished=search.num_wished,
        estimates=tuple(ranked),
        left_out=tuple(dict.fromkeys(search.left_out)),
        stopped_by=stopped,
    )


def _estimates(search: JointSearch, floors: PipelineBounds) -> list[Estimate]:
    """Estimates of the choices that may be faster than the rival, the fastest first.

    With more tensor parallelism they are made only where those with less came near it.

    Parameters
    ----------
    search, floors
        The search, and what no step of a choice takes less than.
    """
    capacity, least = search.setting.cluster.device.memory, search.rival * (1.0 + MARGIN)
    ranked: list[Estimate] = []
    by_degree = sorted(search.fitting_choices(), key=lambda one: (one.inside.tp, -one.samples))
    for _, some in itertools.groupby(by_degree, key=lambda one: one.inside.tp):
        if search.deadline.passed:
            search.cut_short = True
            break
        # what a part of some samples takes comes with what all of them take
        rows = [(floors.floor(one), one) for one in some if not one.is_split_alone]
        ranking = Ranking(
            estimates=search.estimates,
            deadline=search.deadline.part(ESTIMATE_SHARE),
            capacity=capacity,
            left_out=search.left_out,
        )
        near = sorted((row for row in rows if row[0] < search.rival), key=lambda row: row[0])
        found, _ = ranking.of(near, False)
        search.cut_short |= ranking.cut_short
        ranked += found
        if found and min(one.seconds for one in found) > least:
            break
    return sorted(ranked, key=lambda one: one.seconds)


def _try_usual(search: JointSearch, floors: PipelineBounds) -> None:
    """Simulate the usual ways to train that may be faster, under their frameworks' runtimes.

    Parameters
    ----------
    search, floors
        As of `_estimates`.
    """
    setting = search.setting
    for name, degrees in usual_degrees(setting).items():
        other = usual_runtime(name, degrees)
        tp, count = degrees.tp or 1, setting.batch * (degrees.tp or 1) // setting.gpus
        if other is None or search.deadline.passed or not count or setting.gpus % tp:
            continue
        each = floors.micro_batch(tp, degrees.micro_batch_size or count)
        if floors.pipelined(each, 1, 1, count) >= search.fastest:
            continue
        found, _ = tried(setting, degrees, load_runtime(other))
        if found is not None:
            search.keep(found)
