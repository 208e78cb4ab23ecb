"""What choices leave open: what is computed again, shards, and where stages are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.joint.estimate import Estimate
from planner.joint.fewer_again import with_fewer_again
from planner.joint.fitting import with_fitting_cuts
from planner.joint.hybrid import with_fewer_shards
from planner.joint.ranking import Ranking
from planner.joint.unequal import with_unequal_stages
from search.problem.deadline import Deadline


def with_refinements(
    found: Sequence[Estimate],
    ranking: Ranking,
    *,
    partly: bool,
    hybrid: bool,
    limit: float = math.inf,
    deadline: Deadline | None = None,
) -> list[Estimate]:
    """Estimates with those of refined choices, the fastest first.

    Parameters
    ----------
    found
        Those of choices, the fastest first.
    ranking
        Of these choices.
    partly, hybrid
        Whether some blocks may be computed again, and weights cut over fewer ranks than hold them.
    limit
        What fits anyhow takes so long. [s]
    deadline
        When to stop; that of the ranking by default.
    """
    estimates, refuted = ranking.estimates, ranking.refuted
    rows, until = list(found), deadline or ranking.deadline
    if partly:
        rows = with_fewer_again(estimates, rows, refuted, limit, until)
    rows = with_fitting_cuts(estimates, rows, partly, refuted=refuted, limit=limit, deadline=until)
    if hybrid:
        rows = with_fewer_shards(estimates, rows, partly=partly, deadline=until)
    rows = with_unequal_stages(estimates, rows, until)
    ranking.cut_short |= until.passed
    return rows
