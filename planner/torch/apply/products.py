"""Rules of products, of tables that are looked up, of attention, recurrence and dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Function
from torch.nn import functional

from planner.torch.apply.rules import (
    Call,
    Given,
    Held,
    OwnBlock,
    RankPlace,
    as_it_is,
    rule,
    tensors_of,
)
from planner.torch.apply.shaping import block_of_constant
from planner.torch.apply.views import LayoutError, Parts, ViewLayout, uncut, ways
from planner.torch.nodes import shape_of

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import Node


class _Share(Function):
    """A bias of which each summand gets an equal share: its gradient is that of all of it."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, members: int) -> Tensor:
        return bias / members

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return gradients[0], None


def _cutting_axes(parts: Parts) -> tuple[int, ...]:
    return tuple(axis for part in parts for axis in part.axes)


def _contract(one: Parts, other: Parts) -> frozenset[int]:
    """Axes that leave summands of a product over a dim of two tensors."""
    if one != other:
        raise LayoutError("what it multiplies is cut in other blocks")
    return frozenset(_cutting_axes(one))


def _no_sums(*tensors: Held) -> None:
    if any(one.layout.partial for one in tensors):
        raise LayoutError("it multiplies summands")


def _local_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, members: int, turned: bool
) -> Tensor:
    if bias is not None and members > 1:
        bias = _Share.apply(bias, members)
    return functional.linear(x, weight.t() if turned else weight, bias)


def _weight_product(
    place: RankPlace, x: Held, weight: Held, bias: Held | None, turned: bool
) -> Call:
    """A product with a weight over the last dim.

    Parameters
    ----------
    place
        The ranks.
    x, weight, bias
        The tensors.
    turned
        Whether the weight has its inputs first.
    """
    _no_sums(x, weight)
    rows, columns = weight.layout.dims[::-1] if turned else weight.layout.dims
    sums = _contract(x.layout.dims[-1], columns)
    if bias is not None and bias.layout.dims[-1] != rows:
        raise LayoutError("its bias is cut otherwise than its weight")
    used = {axis for dim in x.layout.dims[:-1] for axis in _cutting_axes(dim)}
    if used & set(_cutting_axes(rows)):
        raise LayoutError("an axis cuts its samples and its weight")
    layout = ViewLayout((*x.layout.dims[:-1], rows), sums)
    given = {
        "x": x,
        "weight": weight,
        "bias": bias,
        "members": ways(sums, place.sizes),
        "turned": turned,
    }
    return Call(run=_local_linear, given=given, layout=layout)


@rule("linear")
def _linear_rule(place: RankPlace, node: Node, given: Given) -> Call:
    return _weight_product(place, given["input"], given["weight"], given["bias"], turned=False)


def _local_convolution(
    run: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    members: int,
    options: Mapping[str, Any],
) -> Tensor:
    if bias is not None and members > 1:
        bias = _Share.apply(bias, members)
    return run(x, weight, bias, **options)


@rule("conv1d", "conv2d", "conv3d")
def _convolution_rule(place: RankPlace, node: Node, given: Given) -> Call:
    """A convolution by samples, filters, channels, or whole groups of these."""
    x, weight, bias = given["input"], given["weight"], given["bias"]
    _no_sums(x, weight)
    if len(x.layout.dims) != len(weight.layout.dims):
        raise LayoutError("it reads a single sample")
    samples, channels, *space = x.layout.dims
    rows, columns, *kernel = weight.layout.dims
    if any(_cutting_axes(dim) for dim in (*space, *kernel)):
        raise LayoutError("its space is cut")
    groups = given["groups"]
    if groups > 1:
        if _cutting_axes(channels) != _cutting_axes(rows) or _cutting_axes(columns):
            raise LayoutError("its groups are cut otherwise than what it reads")
        if groups % ways(_cutting_axes(rows), place.sizes):
            raise LayoutError("a group of its channels is cut")
        groups //= ways(_cutting_axes(rows), place.sizes)
        sums: frozenset[int] = frozenset()
    else:
        sums = _contract(channels, columns)
        if set(_cutting_axes(rows)) & set(_cutting_axes(channels)):
            raise LayoutError("an axis cuts its channels and its filters")
    if bias is not None and bias.layout.dims[0] != rows:
        raise LayoutError("its bias is cut otherwise than its weight")
    if set(_cutting_axes(samples)) & set(_cutting_axes(rows)):
        raise LayoutError("an axis cuts its samples and its weight")
    options = {name: given[name] for name in ("stride", "padding", "dilation")}
    call = {
        "run": node.target,
        "x": x,
        "weight": weight,
        "bias": bias,
        "members": ways(sums, place.sizes),
        "options": {**options, "groups": groups},
    }
    layout = ViewLayout((samples, rows, *uncut(shape_of(node)[2:]).dims), sums)
    return Call(run=_local_convolution, given=call, layout=layout)


@rule("addmm")
def _addmm(place: RankPlace, node: Node, given: Given) -> Call:
    if given["beta"] != 1 or given["alpha"] != 1 or not given["mat2"].is_constant:
        raise LayoutError("it scales what it adds")
    return _weight_product(place, given["mat1"], given["mat2"], given["self"], turned=True)


@rule("mm", "matmul", "bmm")
def _matmul_rule(place: RankPlace, node: Node, given: Given) -> Call:
    one, other = given["self"], given.get("other", given.get("mat2"))
    if other.is_constant and len(other.layout.dims) == 2:
        return _weight_product(place, one, other, None, turned=True)
    _no_sums(one, other)
    left, right = one.layout.dims, other.layout.dims
    if len(left) != len(right) or len(left) < 2 or left[:-2] != right[:-2]:
        raise LayoutError("it multiplies tensors of unlike dims")
    sums = _contract(left[-1], right[-2])
    layout = ViewLayout((*left[:-1], right[-1]), sums)
    return Call(run=torch.matmul, given={"input": one, "other": other}, layout=layout)


def _looked_up(weight: Tensor, indices: Tensor, first: int, padding_idx: int, cut: bool) -> Tensor:
    """Rows of a table, of which a rank has those from one on: zeros for all others."""
    # the row of padding has no gradient, where this rank has it
    untrained = padding_idx - first if first <= padding_idx < first + weight.shape[0] else None
    if not cut:
        return functional.embedding(indices, weight, untrained)
    local = indices - first
    missing = (local < 0) | (local >= weight.shape[0])
    rows = functional.embedding(local.masked_fill(missing, 0), weight, untrained)
    return rows.masked_fill(missing.unsqueeze(-1), 0.0)


@rule("embedding")
def _embedding_rule(place: RankPlace, node: Node, given: Given) -> Call:
    weight, indices = given["weight"], given["indices"]
    _no_sums(weight, indices)
    rows, features = weight.layout.dims
    cut = _cutting_axes(rows)
    if len(rows) > 1 or set(cut) & indices.layout.cutting:
        raise LayoutError("an axis cuts its rows and what it looks up")
    size = weight.layout.shape[0] // ways(cut, place.sizes)
    layout = ViewLayout((*indices.layout.dims, features), frozenset(cut))
    call = {
        "weight": weight,
        "indices": indices,
        "first": place.index(cut) * size,
        "padding_idx": given.get("padding_idx", -1),
        "cut": bool(cut),
    }
    return Call(run=_looked_up, given=call, layout=layout)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    first: int | None,
    options: Mapping[str, Any],
) -> Tensor:
    if first is not None:
        # later positions are hidden from a block of queries that does not start at the first one
        at = torch.arange(first, first + query.shape[-2], device=query.device).unsqueeze(-1)
        attn_mask = at >= torch.arange(key.shape[-2], device=query.device)
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, **options
    )


@rule("scaled_dot_product_attention")
def _attention_rule(place: RankPlace, node: Node, given: Given) -> Call:
    query, key, value = given["query"], given["key"], given["value"]
    _no_sums(query, key, value)
    rows = query.layout.dims
    for one in (key, value):
        if one.layout.dims[:-3] != rows[:-3] or any(
            _cutting_axes(dim) for dim in one.layout.dims[-2:]
        ):
            raise LayoutError("its keys lie in other blocks than its queries, or are not whole")
    heads, pairs = (one.layout.dims[-3] for one in (query, key))
    # a single head of keys is read by all queries wherever those lie
    if (
        heads != pairs
        and pairs
        and (_cutting_axes(heads) != _cutting_axes(pairs) or not given.get("enable_gqa"))
    ):
        raise LayoutError("its keys have other heads than its queries")
    if _cutting_axes(rows[-1]):
        raise LayoutError("its heads are cut")
    mask = given.get("attn_mask")
    if isinstance(mask, Held):
        size = len(mask.layout.dims)
        wanted = (*rows[:-1], key.layout.dims[-2])[-size:]
        fitted = tuple(
            () if have == () else need for have, need in zip(mask.layout.dims, wanted, strict=True)
        )
        mask = mask if fitted == mask.layout.dims else block_of_constant(mask, ViewLayout(fitted))
    tokens = _cutting_axes(rows[-2])
    extent = query.layout.shape[-2]
    first = None
    options = {"dropout_p": given["dropout_p"], "is_causal": given["is_causal"]}
    options |= {"scale": given["scale"], "enable_gqa": given["enable_gqa"]}
    if given["is_causal"] and tokens:
        first = place.index(tokens) * (extent // ways(tokens, place.sizes))
        options["is_causal"] = False
    if given["dropout_p"]:
        raise LayoutError(
            "it drops weights of attention at random, which runs under no split",
            "set the dropout of that attention to 0 (dropout of nn.MultiheadAttention, "
            "self_attn.dropout of nn.TransformerEncoderLayer), and plan again",
        )
    call = {
        "query": query,
        "key": key,
        "value": value,
        "attn_mask": mask,
        "first": first,
        "options": options,
    }
    return Call(run=_attention, given=call, layout=ViewLayout((*rows[:-1], value.layout.dims[-1])))


class Dropout:
    """Numbers that are dropped alike on all ranks that have the same block.

    Parameters
    ----------
    number
        Which dropout of the module it is.
    block
        Which block the rank has.
    """

    def __init__(self, number: int, block: int) -> None:
        self.seed = number * 1_000_003 + block

    def __call__(self, input: Tensor, p: float, train: bool) -> Tensor:
        if not train or not p:
            return input
        # the same state on all ranks, which draw as often: every step drops others
        state = int(torch.randint(2**31, ()).item())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(state + self.seed)
            kept = torch.rand(input.shape).to(input.device) >= p
        return input * kept.to(input.dtype) / (1 - p)


@rule("dropout", "native_dropout")
def _dropout_rule(place: RankPlace, node: Node, given: Given) -> Call:
    held = given.get("input", given.get("self"))
    if "native" in str(node.target):
        raise LayoutError("it returns what it dropped")
    number = [one.name for one in node.graph.nodes].index(node.name)
    cut = sorted(held.layout.cutting)
    run = Dropout(number, place.index(cut))
    call = {"input": held, "p": given["p"], "train": given["train"]}
    return Call(run=run, given=call, layout=held.layout)


@rule("lstm", "gru", "rnn_tanh", "rnn_relu")
def _recurrent(place: RankPlace, node: Node, given: Given) -> Call:
    """A recurrent layer on its samples: its states have them in their second dim."""
    if "input" not in given:
        return as_it_is(place, node, given)  # samples of unlike lengths
    dim = 0 if given["batch_first"] else 1
    held, states = given["input"], given["hx"]
    samples, kept = held.layout.dims[dim], dict(given)
    others = [parts for n, parts in enumerate(held.layout.dims) if n != dim]
    if held.layout.partial or any(part.axes for parts in others for part in parts):
        raise LayoutError("it is not known on blocks other than of samples")
    if any(not one.layout.is_whole for one in tensors_of(given["params"])):
        raise LayoutError("its weights are cut")

    def block(one: Held) -> Held | OwnBlock:
        wanted = ViewLayout((one.layout.dims[0], samples, *one.layout.dims[2:]))
        return one if wanted == one.layout else block_of_constant(one, wanted)

    alone = isinstance(states, Held)
    kept["hx"] = block(states) if alone else [block(one) for one in states]
    layouts = []
    for number, one in enumerate(node.meta["val"]):
        dims = list(uncut(one.shape).dims)
        dims[1 if number else dim] = samples
        layouts.append(ViewLayout(tuple(dims)))
    return Call(run=node.target, given=kept, layout=tuple(layouts))
