"""What comparing a plan with one process found, and how it is judged."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from costmodels.distribution import Distribution, one_candidate
from costmodels.graph import SPATIAL_DIMS, Graph, Layer
from planner.plan.sharding import Sharding
from planner.plan.weights import weight_tensors
from planner.torch.verify.charged import Key
from planner.torch.verify.lacking import shuffle_sizes

# How far ranks may be from one process, as a part of the largest gradient or weight: the rounding
# of five norms and two softmaxes that sum in another order came to 2.9e-12.
TOLERANCE = 1e-11

CUT_BIAS = "a bias is held by all that hold its filters, and charged as cut by channels"


class SizeDifference(Struct, frozen=True, kw_only=True):
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


class Verification(Struct, frozen=True, kw_only=True):
    """What comparing a plan with one process found.

    Parameters
    ----------
    model, ranks, batch, image
        What was run: the network, on how many ranks, at how many samples, of which axes. [items]
    exercised
        Kinds of splits that were run, each with the number of layers.
    left_out
        Splits of the plan that were not run, since there was no room for most of them.
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
    sharding: Sharding,
    received: Mapping[Key, float],
    charged: Mapping[Key, float],
) -> Iterator[SizeDifference]:
    """Messages of another size than charged, with what is known of why.

    Parameters
    ----------
    graph, splits, sharding
        The network, the split of every layer, and where its tensors lie.
    received, charged
        Numbers. [items]
    """
    known = _Convolutional(graph=graph, splits=splits, sharding=sharding, charged=charged)
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
            reason=known.reason(key, found, said),
        )


class _Convolutional(Struct, frozen=True, kw_only=True):
    """Why messages of layers that are split in space are not of the size that is charged.

    A reason allows one size, or the sizes between two bounds.

    Parameters
    ----------
    graph, splits, sharding, charged
        As of `differences`.
    """

    graph: Graph
    splits: Mapping[str, Distribution]
    sharding: Sharding
    charged: Mapping[Key, float]

    def reason(self, key: Key, found: float, said: float) -> str:
        """Why a message is of another size than charged, empty where it should not be.

        Parameters
        ----------
        key
            The message.
        found, said
            Numbers received and charged. [items]
        """
        for (low, high), why in self._sizes(key, said):
            if low * (1 - 1e-6) <= found <= high * (1 + 1e-6):
                return why
        return ""

    def _sizes(self, key: Key, said: float) -> Iterator[tuple[tuple[float, float], str]]:
        """Bounds on sizes that are right by design, and why.

        Parameters
        ----------
        key, said
            The message, and numbers charged. [items]
        """
        place, cause, backward = key
        source, _, reader = place.partition(" -> ")
        layer = self.graph.layers.get(reader or source)
        if layer is None:
            return
        if cause == "shuffle":
            for size in shuffle_sizes(self.graph, self.sharding, source, reader, backward=backward):
                yield (size, size), "no collective does it: what blocks lack is sent"
        split = self.splits[layer.name]
        if cause == "loss" and not backward:
            parts = math.prod(split.degree(dim) for dim in layer.dims if dim != "channel")
            size = 2 * (parts - 1) / parts
            yield (size, size), "the mean of the loss is one number, which is not charged"
        if cause == "statistics" and layer.kind == "loss":
            size = 0.0 if backward else 1.5 * said
            yield (size, size), "the largest feature, the sum and the right one are summed once"
        if cause == "statistics" and layer.kind == "batch_norm" and layer.statistics is None:
            yield (0.0, self._norm_sums(layer)), "instance and group norm are charged as batch norm"
        if cause == "gradient" and layer.multiplies_weight:
            ways = split.degree("channel")
            members = self._members(layer)
            bias = layer.dims.get("filter", 0) / split.degree("filter")
            size = said + 2 * (members - 1) / members * bias * (1 - 1 / ways)
            yield (said, size) if self._is_uneven(layer) else (size, size), CUT_BIAS
        if cause == "gradient" and layer.kind == "batch_norm" and not layer.held_parameters:
            members = self._members(layer, ("channel",))
            vector = layer.dims["channel"] / split.degree("channel")
            for size in (2 * (members - 1) / members * count * vector for count in (1, 2)):
                yield (size, size), "a norm that is used again sums its gradients once more"
        if cause == "gradient" and layer.shares_weight_with:
            whole = float(next(tensor.size for _, tensor in weight_tensors(layer)))
            part = math.prod(split.degree(dim) for dim in layer.weight_dims)
            size = said + whole * (1 - 1 / part)
            why = "blocks of a shared weight differ, and get what they lack of its sum"
            yield (size, size), why
        if cause == "halo":
            yield from self._halos(layer, backward, said)
        elif cause != "shuffle" and self._is_uneven(layer):
            yield (said * self._smallest(layer), said), "blocks are uneven, the largest is charged"

    def _is_uneven(self, layer: Layer) -> bool:
        split = self.splits[layer.name]
        return any(extent % split.degree(dim) for dim, extent in layer.dims.items())

    def _smallest(self, layer: Layer) -> float:
        """The smallest block of a layer, as a part of the largest."""
        split = self.splits[layer.name]
        rows = [(extent, split.degree(dim)) for dim, extent in layer.dims.items()]
        return math.prod((n // ways) / -(-n // ways) for n, ways in rows)

    def _members(self, layer: Layer, dims: Collection[str] | None = None) -> float:
        """Ranks that sum the gradient of a layer. [items]

        `dims` are those of its weight, where the layer does not say them itself.
        """
        one = one_candidate(self.splits[layer.name], layer.dims)
        kept = layer.weight_dims if dims is None else dims
        return float(one.group(set(one.dims) - set(kept)).prod())

    def _norm_sums(self, layer: Layer) -> float:
        """Sums and sums of squares of each sample and channel, over the ranks that cut space."""
        split = self.splits[layer.name]
        one = one_candidate(split, layer.dims)
        numbers = float(one.local("sample", layer.dims["sample"])[0])
        numbers *= float(one.local("channel", layer.dims["channel"])[0])
        members = math.prod(split.degree(dim) for dim in SPATIAL_DIMS)
        return 2 * 2 * numbers * (members - 1) / members

    def _halos(
        self, layer: Layer, backward: bool, said: float
    ) -> Iterator[tuple[tuple[float, float], str]]:
        """As `_sizes`, of halos.

        Parameters
        ----------
        layer, backward, said
            The layer, the pass, and numbers charged. [items]
        """
        border = self._border(layer, uneven=layer.kind != "upsample")
        if layer.kind in ("pool", "upsample") and backward:
            forward = self.charged.get((layer.name, "halo", False), 0.0)
            why = "gradients of what was read go back, and not those of what was written"
            yield (forward * self._smallest(layer), forward + border), why
        elif layer.kind == "upsample":
            yield (0.0, border), "linear enlargement reads a neighbour, which is not charged"
        if self._is_uneven(layer):
            low = said * self._smallest(layer)
            yield (low, said + border), "blocks are uneven, and may read one position more"

    def _border(self, layer: Layer, *, uneven: bool) -> float:
        """A position at each border of a block of the larger of input and output. [items]

        Parameters
        ----------
        layer
            The layer.
        uneven
            Whether only where blocks are uneven.
        """
        split = self.splits[layer.name]
        one = one_candidate(split, layer.dims)
        tensors = (layer.inputs[0], layer.output)
        cut: dict[str | None, int] = {
            axis.dim: min(split.degree(axis.dim) - 1, 2)
            for tensor in tensors
            for axis in tensor.axes
            if axis.dim in SPATIAL_DIMS and (not uneven or axis.extent % split.degree(axis.dim) > 0)
        }
        found = []
        for tensor in tensors:
            extents = [(float(one.axis_extent(axis)[0]), axis.dim) for axis in tensor.axes]
            inner = math.prod(extent for extent, _ in extents)
            found.append(math.prod(extent + cut.get(dim, 0) for extent, dim in extents) - inner)
        return max(found)
