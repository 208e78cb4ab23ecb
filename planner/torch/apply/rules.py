"""What an operator does on blocks: which layout its result has, and with which arguments it runs.

A rule gets the arguments of an operator by name, where tensors are `Held`, and gives a `Call`: the
same operator on blocks, or what stands for it. What no rule describes runs as it is where every
rank has all, or where samples alone are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from planner.torch.apply.views import (
    LayoutError,
    Part,
    Parts,
    ViewLayout,
    local_extents,
    normal,
    regrouped,
    ways,
    whole,
)
from planner.torch.nodes import shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node

Given: TypeAlias = "Mapping[str, Any]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The part of a tensor of which a rank has all that lies where a layout says."""

    of: Held
    layout: ViewLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An operator on blocks.

    Parameters
    ----------
    run
        The operator.
    given
        Its arguments, in which tensors are `Held` or `Block`.
    layout
        How its result lies; several of an operator with several results.
    """

    run: Callable[..., Any]
    given: Given
    layout: ViewLayout | tuple[ViewLayout, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
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


Rule: TypeAlias = "Callable[[Place, Any, Mapping[str, Any]], Call]"
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
        return pointwise
    return as_it_is


def as_it_is(place: Place, node: Node, given: Given) -> Call:
    """An operator of which nothing is known."""
    tensors = tensors_of(given)
    shape = shape_of(node)
    run: Any = node.target
    if all(one.layout.is_whole for one in tensors):
        value = node.meta.get("val")
        if isinstance(value, list | tuple):
            shapes = tuple(whole(getattr(one, "shape", ())) for one in value)
            return Call(run=run, given=given, layout=shapes)
        return Call(run=run, given=given, layout=whole(shape))
    cut = [one for one in tensors if not one.layout.is_whole]
    first = cut[0].layout.dims[0] if cut[0].layout.dims else ()
    samples = first[0].extent if first else 0
    alike = all(
        one.layout.dims and one.layout.dims[0] == first and not one.layout.partial for one in cut
    )
    inside = all(not part.axes for one in cut for dim in one.layout.dims[1:] for part in dim)
    if not alike or not inside or not shape or shape[0] != samples or len(first) != 1:
        raise LayoutError("it is not known on blocks other than of samples")
    found = whole(shape)
    return Call(run=run, given=given, layout=replace(found, dims=(first, *found.dims[1:])))


# Operators that may be applied to summands one by one.
_LINEAR = frozenset({"mul", "div", "neg", "to", "_to_copy", "type_as", "clone", "add", "sub"})


@rule("masked_fill", "where", "dropout_mask")
def pointwise(place: Place, node: Node, given: Given) -> Call:
    """An operator on each number by itself, where dims of one position are repeated."""
    shape = shape_of(node)
    tensors = tensors_of(given)
    dims: list[Parts] = []
    for back in range(len(shape), 0, -1):
        cuts = [
            one.layout.dims[-back]
            for one in tensors
            if len(one.layout.dims) >= back and any(p.axes for p in one.layout.dims[-back])
        ]
        dims.append(cuts[0] if cuts else whole(shape[-back:][:1]).dims[0])
    sums = {one.layout.partial for one in tensors}
    name = node.target.__name__.split(".")[0]
    summands = frozenset().union(*sums)
    if summands and not _keeps_sums(name, given, tensors):
        raise LayoutError("it is no operator on summands")
    layout = ViewLayout(tuple(dims), summands)
    return Call(
        run=node.target,
        given={key: _fitted(one, layout) for key, one in given.items()},
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


def _fitted(one: Any, layout: ViewLayout) -> Any:
    """An argument in the blocks of a result: what every rank has all of is cut."""
    if isinstance(one, list | tuple):
        return [_fitted(each, layout) for each in one]
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
    return Block(of=one, layout=ViewLayout(wanted))


@rule(
    "contiguous",
    "clone",
    "alias",
    "detach",
    "to",
    "_to_copy",
    "lift_fresh_copy",
    "float",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
    "dropout_none",
)
def _same(place: Place, node: Node, given: Given) -> Call:
    (held,) = tensors_of(given)[:1]
    return Call(run=node.target, given=given, layout=held.layout)


@rule("type_as")
def _typed(place: Place, node: Node, given: Given) -> Call:
    layout = given["self"].layout
    return Call(run=node.target, given=given, layout=layout)


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(tuple(shape))


@rule("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as")
def _reshaped(place: Place, node: Node, given: Given) -> Call:
    held = given["self"]
    parts = [part for dim in held.layout.dims for part in dim]
    dims = regrouped(parts, shape_of(node), place.sizes)
    layout = ViewLayout(dims, held.layout.partial)
    return Call(
        run=_reshape,
        given={"x": held, "shape": layout.local_shape(place.sizes)},
        layout=layout,
    )


def _expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.expand(tuple(shape))


@rule("expand", "expand_as")
def _expanded(place: Place, node: Node, given: Given) -> Call:
    held = given["self"]
    shape = shape_of(node)
    before = held.layout.dims
    first = len(shape) - len(before)
    dims = tuple(
        normal([Part(extent)]) if n < first or before[n - first] == () else before[n - first]
        for n, extent in enumerate(shape)
    )
    layout = ViewLayout(dims, held.layout.partial)
    return Call(
        run=_expand,
        given={"x": held, "shape": layout.local_shape(place.sizes)},
        layout=layout,
    )


@rule("transpose", "permute", "t", "swapaxes")
def _turned(place: Place, node: Node, given: Given) -> Call:
    held = given["self"]
    rank = len(held.layout.dims)
    order = list(range(rank))
    if "dims" in given:
        order = [dim % rank for dim in given["dims"]]
    elif "dim0" in given:
        one, other = given["dim0"] % rank, given["dim1"] % rank
        order[one], order[other] = order[other], order[one]
    else:
        order = order[::-1]
    dims = tuple(held.layout.dims[dim] for dim in order)
    return Call(run=node.target, given=given, layout=ViewLayout(dims, held.layout.partial))


def _uncut(held: Held, dims: Sequence[int]) -> None:
    for dim in dims:
        if any(part.axes for part in held.layout.dims[dim]):
            raise LayoutError(f"it is over dim {dim}, which is cut")
    if held.layout.partial:
        raise LayoutError("it is no operator on summands")


@rule("mean", "sum", "var", "amax", "amin", "argmax", "any", "all", "logsumexp")
def _reduced(place: Place, node: Node, given: Given) -> Call:
    held = given["self"]
    rank = len(held.layout.dims)
    over = given.get("dim")
    dims = list(range(rank)) if over in (None, []) else over
    dims = [dim % rank for dim in ([dims] if isinstance(dims, int) else dims)]
    _uncut(held, dims)
    kept = [
        () if dim in dims else parts
        for dim, parts in enumerate(held.layout.dims)
        if given.get("keepdim") or dim not in dims
    ]
    return Call(run=node.target, given=given, layout=ViewLayout(tuple(kept)))


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "tril", "triu", "flip")
def _along(place: Place, node: Node, given: Given) -> Call:
    held = given["self"]
    rank = len(held.layout.dims)
    dim = given.get("dim", given.get("dims", [-1, -2]))
    _uncut(held, [one % rank for one in ([dim] if isinstance(dim, int) else dim)])
    return Call(run=node.target, given=given, layout=held.layout)


@rule("layer_norm", "rms_norm")
def _normed(place: Place, node: Node, given: Given) -> Call:
    held = given["input"]
    rank = len(held.layout.dims)
    _uncut(held, range(rank - len(given["normalized_shape"]), rank))
    return Call(run=node.target, given=given, layout=held.layout)


@rule("cat", "concat", "stack")
def _joined(place: Place, node: Node, given: Given) -> Call:
    tensors = given["tensors"]
    shape = shape_of(node)
    stacked = "stack" in str(node.target)
    dim = given.get("dim", 0) % len(shape)
    dims: list[Parts] = []
    for number, extent in enumerate(shape):
        if number == dim:
            dims.append(whole([extent]).dims[0])
            continue
        place_in = number - (1 if stacked and number > dim else 0)
        have = [one.layout.dims[place_in] for one in tensors]
        dims.append(next((one for one in have if any(p.axes for p in one)), have[0]))
    parts = []
    for one in tensors:
        own = list(dims) if not stacked else [d for n, d in enumerate(dims) if n != dim]
        if not stacked:
            own[dim] = one.layout.dims[dim]
            _uncut(one, [dim])
        wanted = ViewLayout(tuple(own))
        parts.append(one if wanted == one.layout else cut_constant(one, wanted))
    return Call(run=node.target, given={**given, "tensors": parts}, layout=ViewLayout(tuple(dims)))


def cut_constant(one: Held, layout: ViewLayout) -> Block:
    if not one.is_constant or not one.layout.is_whole:
        raise LayoutError("what it reads lies in other blocks")
    return Block(of=one, layout=layout)


@rule("slice", "narrow", "select")
def _sliced(place: Place, node: Node, given: Given) -> Call:
    held = given["self"]
    dim = given["dim"] % len(held.layout.dims)
    extent = held.layout.shape[dim]
    picks = "index" in given
    start = given["index"] if picks else given.get("start") or 0
    start = start + extent if start < 0 else start
    count = 1 if picks else given.get("length", 0)
    if not picks and not count:
        end = given.get("end")
        end = extent if end is None else min(end + extent if end < 0 else end, extent)
        if given.get("step", 1) != 1:
            raise LayoutError("it takes positions that are no neighbours")
        count = max(end - start, 0)
    if count == extent and not picks:
        return Call(run=_itself, given={"x": held}, layout=held.layout)
    first, size, parts = _taken(held.layout.dims[dim], start, count, place)
    dims = held.layout.dims
    dims = (*dims[:dim], *([] if picks else [parts]), *dims[dim + 1 :])
    given = {"x": held, "dim": dim, "start": first, "count": size, "picks": picks}
    return Call(run=_narrowed, given=given, layout=ViewLayout(dims, held.layout.partial))


def _itself(x: Tensor) -> Tensor:
    return x


def _narrowed(x: Tensor, dim: int, start: int, count: int, picks: bool) -> Tensor:
    return x.select(dim, start) if picks else x.narrow(dim, start, count)


def _taken(parts: Parts, start: int, count: int, place: Place) -> tuple[int, int, Parts]:
    """Some positions of a dim, in a block: the first, how many, and what parts they are.

    Parameters
    ----------
    parts
        The dim.
    start, count
        Positions of the whole. [items]
    place
        The ranks.
    """
    outer = parts[0]
    inner = parts[1:]
    width = 1
    for part in inner:
        width *= part.extent
    if outer.axes:
        raise LayoutError("it takes some positions of a dim that is cut")
    if start % width or count % width:
        if any(part.axes for part in inner):
            raise LayoutError("it takes a part of a block")
        return start, count, whole([count]).dims[0]
    local = 1
    for size in local_extents(inner, place.sizes):
        local *= size
    kept = normal([Part(count // width), *inner])
    return start // width * local, count // width * local, kept


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "unbind", "tensor_split")
def _split(place: Place, node: Node, given: Given) -> Call:
    held = given["self"]
    dim = given.get("dim", 0) % len(held.layout.dims)
    picks = "unbind" in str(node.target)
    sizes = [1 if picks else int(one.shape[dim]) for one in node.meta["val"]]
    starts, layouts, at = [], [], 0
    dims = held.layout.dims
    for size in sizes:
        first, count, parts = _taken(dims[dim], at, size, place)
        starts.append((first, count))
        kept = (*dims[:dim], *([] if picks else [parts]), *dims[dim + 1 :])
        layouts.append(ViewLayout(kept, held.layout.partial))
        at += size
    given = {"x": held, "dim": dim, "places": tuple(starts), "picks": picks}
    return Call(run=_pieces, given=given, layout=tuple(layouts))


def _pieces(
    x: Tensor, dim: int, places: Sequence[tuple[int, int]], picks: bool
) -> tuple[Tensor, ...]:
    return tuple(_narrowed(x, dim, start, count, picks) for start, count in places)
