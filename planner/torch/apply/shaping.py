"""Rules of views, of reductions, and of what joins and takes apart tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.models.traced.operators.views import TURNS, turned_order
from planner.torch.apply.rules import Call, Given, Held, OwnBlock, RankPlace, rule, tensors_of
from planner.torch.apply.views import (
    DimPart,
    LayoutError,
    Parts,
    ViewLayout,
    local_extents,
    normal,
    regrouped,
    uncut,
)
from planner.torch.nodes import operator_of, shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


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
def _same_layout(place: RankPlace, node: Node, given: Given) -> Call:
    (held,) = tensors_of(given)[:1]
    return Call(run=node.target, given=given, layout=held.layout)


@rule("type_as")
def _typed(place: RankPlace, node: Node, given: Given) -> Call:
    layout = given["self"].layout
    return Call(run=node.target, given=given, layout=layout)


def _local_reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(tuple(shape))


@rule("view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as")
def _reshaped(place: RankPlace, node: Node, given: Given) -> Call:
    held = given["self"]
    parts = [part for dim in held.layout.dims for part in dim]
    dims = regrouped(parts, shape_of(node), place.sizes)
    layout = ViewLayout(dims, held.layout.partial)
    return Call(
        run=_local_reshape,
        given={"x": held, "shape": layout.local_shape(place.sizes)},
        layout=layout,
    )


def _local_expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.expand(tuple(shape))


@rule("expand", "expand_as")
def _expand_rule(place: RankPlace, node: Node, given: Given) -> Call:
    held = given["self"]
    shape = shape_of(node)
    before = held.layout.dims
    first = len(shape) - len(before)
    dims = tuple(
        normal([DimPart(extent)]) if n < first or before[n - first] == () else before[n - first]
        for n, extent in enumerate(shape)
    )
    layout = ViewLayout(dims, held.layout.partial)
    return Call(
        run=_local_expand,
        given={"x": held, "shape": layout.local_shape(place.sizes)},
        layout=layout,
    )


@rule(*TURNS)
def _turned(place: RankPlace, node: Node, given: Given) -> Call:
    held = given["self"]
    order = turned_order(operator_of(node), given, len(held.layout.dims))
    dims = tuple(held.layout.dims[dim] for dim in order)
    return Call(run=node.target, given=given, layout=ViewLayout(dims, held.layout.partial))


def _uncut(held: Held, dims: Sequence[int]) -> None:
    for dim in dims:
        if any(part.axes for part in held.layout.dims[dim]):
            raise LayoutError(f"it is over dim {dim}, which is cut")
    if held.layout.partial:
        raise LayoutError("it is no operator on summands")


@rule("mean", "sum", "var", "amax", "amin", "argmax", "any", "all", "logsumexp")
def _reduce_rule(place: RankPlace, node: Node, given: Given) -> Call:
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


@rule(
    *("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d"),
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),
    *("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("upsample_bilinear2d", "upsample_trilinear3d", "upsample_linear1d", "upsample_bicubic2d"),
)
def _on_space(place: RankPlace, node: Node, given: Given) -> Call:
    """An operator on all positions of space, of each channel of each sample by itself."""
    held = given.get("self", given.get("input"))
    rank = len(held.layout.dims)
    kept = rank - int(operator_of(node).partition("d_with")[0].rstrip("d")[-1])  # "pool2d"
    _uncut(held, range(kept, rank))
    value = node.meta["val"]
    shapes = [one.shape for one in (value if isinstance(value, list | tuple) else [value])]
    layouts = [ViewLayout((*held.layout.dims[:kept], *uncut(one[kept:]).dims)) for one in shapes]
    layout = tuple(layouts) if isinstance(value, list | tuple) else layouts[0]
    return Call(run=node.target, given=given, layout=layout)


@rule("softmax", "_softmax", "log_softmax", "_log_softmax", "cumsum", "tril", "triu", "flip")
def _along(place: RankPlace, node: Node, given: Given) -> Call:
    held = given["self"]
    rank = len(held.layout.dims)
    dim = given.get("dim", given.get("dims", [-1, -2]))
    _uncut(held, [one % rank for one in ([dim] if isinstance(dim, int) else dim)])
    return Call(run=node.target, given=given, layout=held.layout)


@rule("topk")
def _topk_rule(place: RankPlace, node: Node, given: Given) -> Call:
    held = given["self"]
    dim = given.get("dim", -1) % len(held.layout.dims)
    _uncut(held, [dim])
    kept = uncut([given["k"]]).dims[0]
    layout = ViewLayout((*held.layout.dims[:dim], kept, *held.layout.dims[dim + 1 :]))
    return Call(run=node.target, given=given, layout=(layout, layout))


@rule("layer_norm", "rms_norm")
def _normed(place: RankPlace, node: Node, given: Given) -> Call:
    held = given["input"]
    rank = len(held.layout.dims)
    _uncut(held, range(rank - len(given["normalized_shape"]), rank))
    return Call(run=node.target, given=given, layout=held.layout)


@rule("cat", "concat", "stack")
def _join_rule(place: RankPlace, node: Node, given: Given) -> Call:
    tensors = given["tensors"]
    shape = shape_of(node)
    stacked = "stack" in str(node.target)
    dim = given.get("dim", 0) % len(shape)
    dims: list[Parts] = []
    for number, extent in enumerate(shape):
        if number == dim:
            dims.append(uncut([extent]).dims[0])
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
        parts.append(one if wanted == one.layout else block_of_constant(one, wanted))
    return Call(run=node.target, given={**given, "tensors": parts}, layout=ViewLayout(tuple(dims)))


def block_of_constant(one: Held, layout: ViewLayout) -> OwnBlock:
    if not one.is_constant or not one.layout.is_whole:
        raise LayoutError("what it reads lies in other blocks")
    return OwnBlock(of=one, layout=layout)


@rule("slice", "narrow", "select")
def _sliced(place: RankPlace, node: Node, given: Given) -> Call:
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
        step = given.get("step", 1)
        if step != 1:
            _uncut(held, [dim])
            kept = uncut([len(range(start, end, step))]).dims
            dims = (*held.layout.dims[:dim], *kept, *held.layout.dims[dim + 1 :])
            return Call(run=node.target, given=given, layout=ViewLayout(dims))
        count = max(end - start, 0)
    if count == extent and not picks:
        return Call(run=_itself, given={"x": held}, layout=held.layout)
    first, size, parts = _taken_positions(held.layout.dims[dim], start, count, place)
    dims = held.layout.dims
    dims = (*dims[:dim], *([] if picks else [parts]), *dims[dim + 1 :])
    given = {"x": held, "dim": dim, "start": first, "count": size, "picks": picks}
    return Call(run=_narrowed, given=given, layout=ViewLayout(dims, held.layout.partial))


@rule("pad", "constant_pad_nd")
def _padded_rule(place: RankPlace, node: Node, given: Given) -> Call:
    held, ends = given["self"], given["pad"]
    rank = len(held.layout.dims)
    # two ends of each dim, the last dim first
    changed = {rank - 1 - n // 2 for n, extent in enumerate(ends) if extent}
    if not changed:
        return Call(run=_itself, given={"x": held}, layout=held.layout)
    _uncut(held, sorted(changed))
    after = uncut(shape_of(node)).dims
    dims = [after[n] if n in changed else dim for n, dim in enumerate(held.layout.dims)]
    return Call(run=node.target, given=given, layout=ViewLayout(tuple(dims)))


def _itself(x: Tensor) -> Tensor:
    return x


def _narrowed(x: Tensor, dim: int, start: int, count: int, picks: bool) -> Tensor:
    return x.select(dim, start) if picks else x.narrow(dim, start, count)


def _taken_positions(
    parts: Parts, start: int, count: int, place: RankPlace
) -> tuple[int, int, Parts]:
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
        return start, count, uncut([count]).dims[0]
    local = 1
    for size in local_extents(inner, place.sizes):
        local *= size
    kept = normal([DimPart(count // width), *inner])
    return start // width * local, count // width * local, kept


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "unbind", "tensor_split")
def _split_rule(place: RankPlace, node: Node, given: Given) -> Call:
    held = given["self"]
    dim = given.get("dim", 0) % len(held.layout.dims)
    picks = "unbind" in str(node.target)
    sizes = [1 if picks else int(one.shape[dim]) for one in node.meta["val"]]
    starts, layouts, at = [], [], 0
    dims = held.layout.dims
    for size in sizes:
        first, count, parts = _taken_positions(dims[dim], at, size, place)
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
