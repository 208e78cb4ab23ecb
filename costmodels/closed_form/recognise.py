"""Which one strategy a plan is, from the degrees of its layers.

Closed forms know a strategy for the whole network (Kahira et al. 2021, section III): samples are
split alike in all layers, and besides them at most one thing is, equally many ways wherever it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from costmodels.closed_form.passes import distribution_of, needs_input_gradient
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import SPATIAL_DIMS, Graph, Layer

STRATEGIES = (
    "serial",
    "data",
    "spatial",
    "filter",
    "channel",
    "data+filter",
    "data+spatial",
)
_ADVICE = "use the planner's own step model for such plans"


class RecognisedStrategy(Struct, frozen=True, kw_only=True):
    """A plan as one strategy.

    Parameters
    ----------
    name
        One of `STRATEGIES`.
    samples
        Ways that samples are split at each level. [ways]
    others
        Ways at each level of what is split besides. [ways]
    split
        Names of the layers in which it is.
    """

    name: str
    samples: tuple[int, ...]
    others: tuple[int, ...]
    split: frozenset[str]

    @property
    def kind(self) -> str:
        """What is split besides samples: "filter", "channel", "spatial", or "" for nothing."""
        last = self.name.rpartition("+")[2]
        return "" if last in ("serial", "data") else last

    @property
    def num_groups(self) -> int:
        """Groups that work on different samples, p1. [items]"""
        return math.prod(self.samples)

    @property
    def group_size(self) -> int:
        """Ranks that share samples, p2. [items]"""
        return math.prod(self.others)


def _kind_of(layer: Layer, distribution: Distribution) -> str:
    """What a layer is split by besides samples."""
    others = set(distribution.degrees) - {"sample"}
    if not others:
        return ""
    if others <= set(SPATIAL_DIMS):
        return "spatial"
    if others == {"filter"} or (others == {"channel"} and layer.multiplies_weight):
        return others.pop()
    raise InputError.rule(
        f"layer '{layer.name}'",
        "be split by sample and at most one of filter, channel or space",
        f"split as {distribution}",
        _ADVICE,
    )


def _other_ways(distribution: Distribution) -> tuple[int, ...]:
    rows = [ways for dim, ways in distribution.degrees.items() if dim != "sample"]
    return tuple(math.prod(level) for level in zip(*rows, strict=True)) if rows else ()


def _could_split(graph: Graph, layer: Layer, kind: str) -> bool:
    """Whether the strategy would split a layer that the plan leaves whole.

    Channel parallelism starts at the second layer, as images have few channels (section VII.B).
    """
    if kind == "spatial":
        return any(layer.dims[d] > 1 for d in SPATIAL_DIMS if d in layer.splittable)
    if kind == "channel" and not needs_input_gradient(graph, layer):
        return False
    return layer.multiplies_weight and kind in layer.splittable


def _hybrid_name(num_groups: int, kind: str) -> str:
    if not kind:
        return "data" if num_groups > 1 else "serial"
    return f"data+{kind}" if num_groups > 1 else kind


def recognise(graph: Graph, distributions: Mapping[str, Distribution]) -> RecognisedStrategy:
    """The strategy of a plan.

    Spatial parallelism may gather its samples once and go on with whole ones, as the paper's runs
    do (section VII.B).

    Raises
    ------
    InputError
        When the plan mixes strategies, or is a hybrid that Table III has no form for; the message
        names the layer.
    """
    first = graph.compute_layers[0]
    common = distribution_of(distributions, first)
    samples = common.degrees.get("sample", (1,) * len(common.shape))
    kind, others, lead = "", (1,) * len(common.shape), first
    split: dict[str, int] = {}
    for place, layer in enumerate(graph.compute_layers):
        distribution = distribution_of(distributions, layer)
        if distribution.degrees.get("sample", (1,) * len(samples)) != samples:
            raise InputError.rule(
                f"layer '{layer.name}'",
                f"split samples as '{first.name}' does",
                f"split as {distribution}, not as {common}",
                _ADVICE,
            )
        own = _kind_of(layer, distribution)
        if own and not kind:
            kind, others, lead = own, _other_ways(distribution), layer
        if own and (own, _other_ways(distribution)) != (kind, others):
            raise InputError.rule(
                f"layer '{layer.name}'",
                f"be split as '{lead.name}' is",
                f"split as {distribution}, not as {distributions[lead.name]}",
                _ADVICE,
            )
        if own:
            split[layer.name] = place
    for place, layer in enumerate(graph.compute_layers if kind else ()):
        gathered = kind == "spatial" and place > max(split.values())
        if layer.name not in split and not gathered and _could_split(graph, layer, kind):
            raise InputError.rule(
                f"layer '{layer.name}'",
                f"be split by {kind} as '{lead.name}' is",
                f"split as {distributions[layer.name]}",
                _ADVICE,
            )
    name = _hybrid_name(math.prod(samples), kind)
    used, devices = math.prod(samples) * math.prod(others), math.prod(common.shape)
    if name not in STRATEGIES or used != devices:
        what = f"is {name}" if name not in STRATEGIES else f"uses {used} of {devices} devices"
        raise InputError(
            f"layer '{lead.name}': the plan must be one of {', '.join(STRATEGIES)} on all "
            f"devices but {what}; {_ADVICE}"
        )
    return RecognisedStrategy(name=name, samples=samples, others=others, split=frozenset(split))
