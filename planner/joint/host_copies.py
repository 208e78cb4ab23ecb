"""What a step takes for copies to and from the memory of the hosts, and what waits there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.joint.choices import Choice
from planner.joint.exchanges import Gradients
from planner.joint.offload import UNITS, Copies, HostRates
from planner.joint.passes import activations
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


def beside_copies(
    choice: Choice, stages: StageCosts, copies: Copies, host: HostRates
) -> tuple[Floats, Floats]:
    """Both passes of each stage where each unit waits for what is copied beside it. [s]

    Parameters
    ----------
    choice, stages, copies, host
        As of `copied_update`.
    """
    units = stages.units
    rows = (units.at_firsts(stages.inside.forward), units.at_firsts(stages.inside.backward))
    if choice.zero == 3:
        rows = stages.with_gathers_by_unit(choice)
    moved = (
        host.both_ways(copies.forward_out, copies.forward_in),
        host.both_ways(np.zeros(1), copies.backward_in),
    )
    ahead = stages.launched_forward
    slower = []
    for unit, copying, launched in zip(rows, moved, (ahead, stages.launched - ahead), strict=True):
        copied = units.at_firsts(copying)
        # at the end of a pass a device waits for what its host has yet to launch
        late = np.maximum(launched - stages.of_stages(unit), 0.0)
        slower.append(stages.of_stages(np.maximum(unit, copied)) + late)
    return slower[0], slower[1]


def beside_passes(choice: Choice, stages: StageCosts) -> Floats:
    """What passes of each group hold where what they leave waits in the hosts. [B]

    Parameters
    ----------
    choice, stages
        The choice, and what its stages cost.
    """
    inside, units = stages.inside, stages.units
    # the loss and what is before it stay: their backward passes follow at once, but where all
    # micro-batches go forwards first, as of several chunks that are as many as groups
    stay = units.firsts[-min(UNITS, len(units.firsts))]
    forward_first = choice.chunks > 1 and choice.pp == choice.micro_batches
    flying = choice.micro_batches if forward_first else int(choice.flying[-1])
    beside = inside.beside
    if choice.zero > 2:
        beside = beside + stages.weights.gathered_beside()
    rows = np.where(np.arange(len(beside)) < stay, beside, 0.0)
    # some are on their way out, and of pipelines others on their way back meanwhile
    ways = 2 if choice.pp > 1 else 1
    moved = ways * UNITS * float(units.sums(inside.kept)[:-UNITS].max(initial=0.0))
    most: Floats = np.maximum.reduceat(rows, stages.starts).reshape(-1, choice.pp).max(axis=0)
    most = most + moved
    kept = inside.held_before[stay:] - inside.held_before[stay]
    most[-1] = max(most[-1], (flying - 1) * kept[-1] + float((kept[:-1] + beside[stay:]).max()))
    return most


def weights_in_use(choice: Choice, stages: StageCosts) -> Floats:
    """What each group holds at most of weights that wait in the hosts otherwise. [B]

    Those of a unit of layers, and of the next one on its way.

    Parameters
    ----------
    choice, stages
        The choice, and what its stages cost.
    """
    sizes = stages.units.sums(stages.inside.weights)
    rows = np.zeros(len(stages.inside.weights))
    rows[stages.units.firsts] = sizes + np.append(sizes[1:], 0.0)
    found: Floats = np.maximum.reduceat(rows, stages.starts).reshape(-1, choice.pp).max(axis=0)
    return found


def held_in_host(choice: Choice, stages: StageCosts, copies: Copies, host: HostRates) -> float:
    """What waits in the memory of the fullest host. [B]

    Parameters
    ----------
    choice, stages, copies, host
        As of `copied_update`.
    """
    held = np.zeros(choice.pp)
    if "activations" in choice.offload:
        held = held + activations(choice, stages.kept, stages.waiting, np.zeros_like(stages.kept))
    held = held + stages.of_stages(copies.forward_in).sum(axis=0)
    if "optimizer" in choice.offload:
        weights = stages.weights
        rows = (weights.state + weights.gradients) / (weights.ranks if choice.zero else 1.0)
        held = held + rows.sum(axis=0)
    alone = choice.dp * choice.inside.tp * choice.inside.cp >= host.devices
    return float(held.max() if alone else held.mean()) * host.devices
