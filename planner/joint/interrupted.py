"""The search over all global choices for who may stop it before anything was simulated."""

from __future__ import annotations

from msgspec.structs import replace

from planner.joint.result import JointResult
from planner.joint.search import JointSearch
from search.problem.deadline import Deadline

# What a search that is interrupted before it has any plan may take for one: half of what a time
# limit may be passed by. [s]
MOST_AFTER_INTERRUPT = 0.5


def run_or_hurry(search: JointSearch) -> JointResult:
    """What a search comes to; interrupted without a plan, what it would find in a moment.

    What is costed by then is known to the second search.
    """
    found = search.run()
    if found.stopped_by != "interrupt" or found.best is not None or search.splits.any:
        return found
    hurried = JointSearch(
        setting=search.setting,
        runtime=search.runtime,
        options=search.options,
        deadline=Deadline(MOST_AFTER_INTERRUPT),
        wishes=search.wishes,
        passes_over=search.passes_over,
        like=found,
    )
    return replace(hurried.run(), stopped_by="interrupt")
