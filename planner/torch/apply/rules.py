"""What an operator does on blocks: which layout its result has, and with which arguments it runs.

A rule gets the arguments of an operator by name, where tensors are `Held`, and gives a `Call`: the
same operator on blocks, or what stands for it. What no rule describes runs as it is where every
rank has all, or where samples alone are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from msgspec import Struct
from msgspec.structs import replace

from planner.torch.apply.views import (
    LayoutError,
    Parts,
    ViewLayout,
    uncut,
    ways,
)
from planner.torch.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node

Given: TypeAlias = "Mapping[str, Any]"


class Held(Struct, frozen=True, kw_only=True):
    """A tensor that a rank has when an operator runs.

    Parameters
    ----------
    key
        Where it is found.
    layout
        How it lies.
    is_constant
        Whether it does not depend on samples, so that each rank may take a part of it.
    """

    key: object
    layout: ViewLayout
    is_constant: bool = False


class OwnBlock(Struct, frozen=True, kw_only=True):
    """The part of a tensor of which a rank has all that lies where a layout says."""

    of: Held
    layout: ViewLayout


class Call(Struct, frozen=True, kw_only=True):
    """An operator on blocks.

    Parameters
    ----------
    run
        The operator.
    given
        Its arguments, in which tensors are `Held` or `OwnBlock`.
    layout
        How its result lies; several of an operator with several results.
    """

    run: Callable[..., Any]
    given: Given
    layout: ViewLayout | tuple[ViewLayout, ...]


class RankPlace(Struct, frozen=True, kw_only=True):
    """The ranks that an operator runs on, as far as rules need to know them.

    Parameters
    ----------
    sizes
        Members of the axes of their mesh. [items]
    coordinates
        Where this rank lies, along each axis.
    """

    sizes: tuple[int, ...]
    coordinates: tuple[int, ...]

    def index(self, axes: Sequence[int]) -> int:
        """Which block of several axes is that of this rank."""
        found = 0
        for axis in axes:
            found = found * self.sizes[axis] + self.coordinates[axis]
        return found

    def block(self, x: Tensor, layout: ViewLayout) -> Tensor:
        """The rank's part of a tensor of which it has all."""
        extents = [part.extent for dim in layout.dims for part in dim]
        x = x.reshape(extents)
        parts = [part for dim in layout.dims for part in dim]
        for dim, part in enumerate(parts):
            size = part.extent // ways(part.axes, self.sizes)
            x = x.narrow(dim, self.index(part.axes) * size, size)
        return x.reshape(layout.local_shape(self.sizes))


Rule: TypeAlias = "Callable[[RankPlace, Any, Mapping[str, Any]], Call]"
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def tensors_of(given: object) -> list[Held]:
    """All tensors among arguments."""
    if isinstance(given, Held):
        return [given]
    if isinstance(given, Mapping):
        return [one for each in given.values() for one in tensors_of(each)]
    if isinstance(given, list | tuple):
        return [one for each in given for one in tensors_of(each)]
    return []


def find_rule(node: Node, name: str) -> Rule:
    """The rule of an operator."""
    if name in RULES:
        return RULES[name]
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return pointwise_call
    return as_it_is


# Operators whose constants may have a position for each sample.
_BY_SAMPLE = frozenset({"index", "index_put", "gather", "scatter", "baddbmm"})


def as_it_is(place: RankPlace, node: Node, given: Given) -> Call:
    """An operator of which nothing is known.

    Parameters
    ----------
    place, node, given
        The ranks, the operator, and its arguments by name.
    """
    tensors = tensors_of(given)
    shape = shape_of(node)
    run: Any = node.target
    if all(one.layout.is_whole for one in tensors):
        value = node.meta.get("val")
        if isinstance(value, list | tuple):
            shapes = tuple(uncut(getattr(one, "shape", ())) for one in value)
            return Call(run=run, given=given, layout=shapes)
        return Call(run=run, given=given, layout=uncut(shape))
    cut = [one for one in tensors if not one.layout.is_whole]
    if any(one.is_constant for one in cut):
        raise LayoutError("it is not known on blocks of weights")
    first = cut[0].layout.dims[0] if cut[0].layout.dims else ()
    samples = first[0].extent if first else 0
    alike = all(
        one.layout.dims and one.layout.dims[0] == first and not one.layout.partial for one in cut
    )
    inside = all(not part.axes for one in cut for dim in one.layout.dims[1:] for part in dim)
    if not alike or not inside or not shape or shape[0] != samples or len(first) != 1:
        raise LayoutError("it is not known on blocks other than of samples")
    others = [one for one in tensors if one.layout.is_whole and len(one.layout.dims) > 0]
    if operator_of(node) in _BY_SAMPLE and any(one.layout.shape[0] == samples for one in others):
        raise LayoutError("it reads a constant that has a number for each sample of all ranks")
    found = uncut(shape)
    return Call(run=run, given=given, layout=replace(found, dims=(first, *found.dims[1:])))


# Operators that may be applied to summands one by one.
_LINEAR = frozenset({"mul", "div", "neg", "to", "_to_copy", "type_as", "clone", "add", "sub"})


@rule("masked_fill", "where", "dropout_mask")
def pointwise_call(place: RankPlace, node: Node, given: Given) -> Call:
    """An operator on each number by itself, where dims of one position are repeated.

    Parameters
    ----------
    place, node, given
        The ranks, the operator, and its arguments by name.
    """
    shape = shape_of(node)
    tensors = tensors_of(given)
    dims: list[Parts] = []
    for back in range(len(shape), 0, -1):
        cuts = [
            one.layout.dims[-back]
            for one in tensors
            if len(one.layout.dims) >= back and any(p.axes for p in one.layout.dims[-back])
        ]
        dims.append(cuts[0] if cuts else uncut(shape[-back:][:1]).dims[0])
    sums = {one.layout.partial for one in tensors}
    name = node.target.__name__.split(".")[0]
    summands = frozenset().union(*sums)
    if summands and not _keeps_sums(name, given, tensors):
        raise LayoutError("it is no operator on summands")
    layout = ViewLayout(tuple(dims), summands)
    return Call(
        run=node.target,
        given={key: _in_blocks_of(one, layout) for key, one in given.items()},
        layout=layout,
    )


def _keeps_sums(name: str, given: Given, tensors: Sequence[Held]) -> bool:
    """Whether an operator of sums is the sum of operators."""
    if name in ("add", "sub"):
        same = len({one.layout.partial for one in tensors}) == 1 and len(tensors) == 2
        return same
    summed = [one for one in tensors if one.layout.partial]
    if name == "div" and summed[0] is not given.get("self"):
        return False
    return name in _LINEAR and len(summed) == 1


def _in_blocks_of(one: Any, layout: ViewLayout) -> Any:
    """An argument in the blocks of a result: what every rank has all of is cut."""
    if isinstance(one, list | tuple):
        return [_in_blocks_of(each, layout) for each in one]
    if not isinstance(one, Held):
        return one
    rank = len(one.layout.dims)
    wanted = tuple(
        () if have == () else need
        for have, need in zip(
            one.layout.dims, layout.dims[len(layout.dims) - rank :] if rank else (), strict=True
        )
    )
    if wanted == one.layout.dims:
        return one
    if not one.is_constant or not one.layout.is_whole:
        raise LayoutError("what it reads lies in other blocks")
    return OwnBlock(of=one, layout=ViewLayout(wanted))
