"""What a step takes after its last backward pass where hosts update, or keep, weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.exchanges import Gradients
from planner.joint.offload import Copies, HostRates
from planner.joint.stages import StageCosts

Floats = NDArray[np.float64]


def copied_update(
    choice: Choice,
    stages: StageCosts,
    copies: Copies,
    host: HostRates,
    gradients: Gradients,
    last: Floats,
) -> Floats:
    """What copies and updates of the hosts add after the last backward pass of each group. [s]

    Gradients leave in their order as they are summed up, those of the first unit of layers at last.
    What is updated comes back while the next unit is updated.

    Parameters
    ----------
    choice, stages
        The choice, and what its stages cost.
    copies, host
        What is copied, and what that takes.
    gradients
        How they are reduced.
    last
        Passes that make gradients, of each stage on one micro-batch. [s]
    """
    first = list(stages.starts[: choice.pp])
    out, back, updated = (
        stages.of_stages(size).sum(axis=0)
        for size in (copies.update_out, copies.update_in, copies.updated)
    )
    last_out, last_back = (
        stages.units.at_firsts(size)[first] * host.copy
        for size in (copies.update_out, copies.update_in)
    )
    # updated weights leave after the update, gradients before it
    early = stages.weights.sums_early(gradients) & ("optimizer" in choice.offload)
    # a chunk is through so many passes of the later ones before the end
    rounds = min(choice.pp, choice.micro_batches) if choice.chunks > 1 else 1
    leaving = np.maximum(out * host.copy - early * rounds * last.sum(axis=0), last_out)
    updating = updated * host.update + back * host.shared
    added: Floats = leaving + np.maximum(back * host.copy, updating + last_back)
    return added
