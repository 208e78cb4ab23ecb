"""What no step takes less than that has one stage, whose layers are split and sharded in any way.

Where state or weights are cut over replicas, sums of gradients are scattered, which is the first
half of an all-reduce at least; what is gathered of weights counts as nothing. So the terms of a
step (`planner.planning.space.step_terms`) hold with half of every all-reduce.
"""

from __future__ import annotations

from costmodels.simulation import Runtime
from planner.joint.runtimes import choice_runtime
from planner.planning.bounds.additive_search import AdditiveSearch
from planner.planning.bounds.best_bound import maximise_bound
from planner.planning.bounds.certificate import certify
from planner.planning.prepare import default_cap
from planner.planning.space.formulate import formulate
from planner.planning.space.profile import Profile
from planner.request.setting import Setting
from planner.simulation.run import waiting_time
from search.problem.deadline import Deadline, OutOfTime

# The part of an all-reduce that its first half takes, where all take the cheapest algorithm.
SCATTERED = 0.5


def least_sharded(setting: Setting, runtime: Runtime, deadline: Deadline) -> float:
    """What no step of one stage takes less than, without micro-batches, whatever ZeRO cuts. [s]

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which steps are simulated that cut no weights.
    deadline
        After which it is 0.
    """
    runtimes = {one.name: one for one in (choice_runtime(runtime, zero) for zero in (0, 3))}
    try:
        return min(_least_under(setting.under(one), deadline) for one in runtimes.values())
    except OutOfTime:
        return 0.0


def _least_under(setting: Setting, deadline: Deadline) -> float:
    """The same under the runtime of a question."""
    training, topology = setting.machine.training, setting.machine.topology
    formulation = formulate(
        setting.graph,
        setting.cluster,
        setting.machine,
        cap=default_cap(setting),
        bucket_bytes=setting.graph.parameters * training.gradient_size,
        deadline=deadline,
    )
    search = AdditiveSearch(formulation=formulation, method="auto", seed=0, deadline=deadline)
    # nothing is known of a half where the whole was measured, or has an algorithm of its own
    known = training.all_reduce == "auto" and not topology.curves
    part = SCATTERED if known else 0.0
    profile = Profile.of(maximise_bound(search).weights)._replace(exchanged=part)
    # what bounds steps with whole all-reduces bounds none with half of them
    search.incumbent.bound = 0.0
    search.solve(profile)
    if search.incumbent.stopped_by == "interrupt":
        raise KeyboardInterrupt
    # each updates a part where state is cut, and all of it is at most what a replica updates
    spaces = (formulation.spaces[layer.name] for layer in formulation.layers)
    updates = sum(float(space.costs.update.max()) for space in spaces)
    waiting = 1.0 + waiting_time(1.0, setting.gpus)
    return max(certify(search, profile, widen=False) - waiting * updates, 0.0)
