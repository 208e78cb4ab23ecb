"""What comparing a plan with one process found, and how it is judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from costmodels.distribution import Distribution
from costmodels.graph import Graph
from planner.torch.verify.charged import Key, is_by_messages

# How far ranks may be from one process, as a part of the largest gradient or weight.
TOLERANCE = 1e-12

CUT_BIAS = "a bias is held by all that hold its filters, and charged as cut by channels"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeDifference:
    """Messages whose size is not what the cost models charge.

    Parameters
    ----------
    place, cause, backward
        The layer or the two layers, what it is for, and in which pass.
    received, charged
        Numbers that the busiest rank received, and what is charged. [items]
    reason
        Why that is so by design; empty where it should not be.
    """

    place: str
    cause: str
    backward: bool
    received: float
    charged: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What comparing a plan with one process found.

    Parameters
    ----------
    model, ranks, batch, image
        What was run: the network, on how many ranks, at how many samples, of which axes. [items]
    exercised
        Kinds of splits that were run, each with the number of layers.
    left_out
        Splits of the plan for which there was no room.
    losses, gradients
        Largest difference of each step, and with it the largest gradient.
    weights
        The same of the weights after all steps.
    worst
        The parameter whose gradient differs most.
    shapes
        Blocks of another shape than the plan says.
    checked
        Blocks whose shapes were compared. [items]
    messages
        Kinds of messages by cause and pass: how many, and numbers received. [items]
    differences
        Messages of another size than charged.
    """

    model: str
    ranks: int
    batch: int
    image: Mapping[str, int]
    exercised: Mapping[str, int]
    left_out: tuple[str, ...]
    losses: tuple[float, ...]
    gradients: tuple[tuple[float, float], ...]
    weights: tuple[float, float]
    worst: str
    shapes: tuple[tuple[str, str, str], ...]
    checked: int
    messages: Mapping[str, tuple[int, float]]
    differences: tuple[SizeDifference, ...]

    @property
    def faults(self) -> list[str]:
        """What is wrong, a sentence each; none where the plan holds."""
        found = []
        for step, (apart, largest) in enumerate(self.gradients):
            if _is_far(apart, largest):
                found.append(
                    f"the gradients of step {step + 1} must equal those of one process within "
                    f"{TOLERANCE:g} of the largest ({largest:.3g}) but differ by {apart:.3g}, "
                    f"most in {self.worst}"
                )
        for step, apart in enumerate(self.losses):
            if _is_far(apart, max(1.0, *(row[1] for row in self.gradients))):
                found.append(f"the loss of step {step + 1} differs by {apart:.3g}")
        apart, largest = self.weights
        if _is_far(apart, max(largest, *(row[1] for row in self.gradients))):
            found.append(f"the weights after the last step differ by {apart:.3g}")
        found += [f"{place} is of shape {is_} and not {said}" for place, is_, said in self.shapes]
        for one in self.differences:
            if not one.reason:
                found.append(
                    f"{one.place}: {one.cause} {'backward' if one.backward else 'forward'} "
                    f"receives {one.received:g} numbers where {one.charged:g} are charged"
                )
        return found

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


def _is_far(apart: float, largest: float) -> bool:
    """Whether a difference is too large beside the largest number; one that is no number is."""
    return not math.isfinite(apart) or apart > TOLERANCE * largest


def is_same_size(one: float, other: float) -> bool:
    """Whether two numbers of items are the same, but for rounding."""
    return abs(one - other) <= 1e-6 * max(one, other)


def differences(
    graph: Graph,
    splits: Mapping[str, Distribution],
    received: Mapping[Key, float],
    charged: Mapping[Key, float],
) -> Iterator[SizeDifference]:
    """Messages of another size than charged, with what is known of why.

    Parameters
    ----------
    graph, splits
        The network, and the split of every layer.
    received, charged
        Numbers. [items]
    """
    for key in sorted({*received, *charged}):
        found, said = received.get(key, 0.0), charged.get(key, 0.0)
        if is_same_size(found, said):
            continue
        place, cause, backward = key
        yield SizeDifference(
            place=place,
            cause=cause,
            backward=backward,
            received=found,
            charged=said,
            reason=_reason(graph, splits, key, found, said),
        )


def _reason(
    graph: Graph, splits: Mapping[str, Distribution], key: Key, found: float, said: float
) -> str:
    """Why a message is of another size than charged, empty where it should not be.

    Parameters
    ----------
    graph, splits
        As of `differences`.
    key
        The message.
    found, said
        Numbers received and charged. [items]
    """
    place, cause, backward = key
    if cause == "loss":
        return "the mean of the loss is one number, which is not charged"
    layer = graph.layers.get(place.split(" -> ")[-1])
    if layer is None:
        return ""
    source = place.split(" -> ")[0]
    if cause == "shuffle" and source == "input":
        return "samples are loaded where they are needed, and not charged"
    if cause == "shuffle" and is_by_messages(graph, splits, source, layer.name):
        return "no collective does it: a host is charged once for what several of its ranks need"
    uneven = any(
        extent % splits[name].degree(dim)
        for name in {source, layer.name} & set(splits)
        for dim, extent in graph.layers[name].dims.items()
    )
    if cause == "halo" and layer.kind in ("pool", "upsample") and backward:
        return "gradients of the rows that were read go back, and not those of what was written"
    if cause == "halo" and layer.kind == "upsample":
        return "linear enlargement reads a neighbour, which is not charged"
    cut = splits[layer.name].degree("channel") > 1
    if cause == "gradient" and layer.multiplies_weight and cut and found > said:
        return CUT_BIAS
    if cause == "statistics" and layer.kind == "loss":
        return "the largest feature, the sum and the right one are summed once, and not twice two"
    if cause == "statistics" and layer.kind == "batch_norm" and layer.statistics is None:
        return "instance and group norm are charged as batch norm, which sums nothing"
    if uneven and found <= said:
        return "blocks are uneven, and the largest is charged"
    if uneven:
        return "blocks are uneven, and what straddles their borders is not charged"
    return ""
