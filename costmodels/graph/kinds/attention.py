"""Attention over the positions of a sequence, and what is done to queries and keys before it.

Queries, keys and values are features of tokens: heads side by side. A split by heads divides all
three; of keys and values that several heads of queries share (grouped and multi-query attention) a
split into more ways than there are heads of them repeats heads, and leaves partial sums of their
gradients. A split of the sequence divides the queries; every query needs all keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from costmodels.errors import InputError
from costmodels.graph.kinds.registry import layer_kind
from costmodels.graph.layer import Axis, Layer, Product, Tensor


class _Heads(Struct, frozen=True, kw_only=True):
    """Heads of queries, heads of keys and values, and the features of one of each."""

    queries: int
    keys: int
    width: int
    value_width: int
    shared_width: int = 0


def _divided(name: str, what: str, features: int, parts: int, of: str) -> int:
    """How many features each of some equal parts has.

    Parameters
    ----------
    name
        The layer.
    what
        Whose features they are, for messages.
    features, parts
        How many there are of both. [items]
    of
        What the parts are, for messages.
    """
    if features % parts:
        raise InputError(
            f"layer '{name}': {of} must divide the features of {what} but {parts} do not divide "
            f"{features}; choose another number of heads, or correct the layer before it"
        )
    return features // parts


def _check_heads(name: str, heads: int, kv_heads: int) -> int:
    """Heads of keys and values, after a check of both numbers. [items]"""
    kv_heads = kv_heads or heads
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise InputError(
            f"layer '{name}': the heads of keys and values must divide those of queries, both at "
            f"least 1, but {kv_heads} does not divide {heads}; choose another number of heads"
        )
    return kv_heads


def _heads(
    name: str, inputs: Sequence[Tensor], heads: int, kv_heads: int, separate: bool
) -> _Heads:
    """The heads that tensors hold: all in one, or queries, keys with values, keys of all heads.

    Parameters
    ----------
    name, inputs
        The layer, and the tensors that it reads.
    heads, kv_heads, separate
        As of `attention`.
    """
    kv_heads = _check_heads(name, heads, kv_heads)
    if separate:
        if len(inputs) != 3:
            raise InputError(
                f"layer '{name}': separate queries, keys and values must be three layers but "
                f"{len(inputs)} are read; correct its inputs"
            )
        widths = [
            _divided(name, what, x.extent("hidden"), parts, "heads")
            for what, x, parts in zip(
                ("queries", "keys", "values"), inputs, (heads, kv_heads, kv_heads), strict=True
            )
        ]
        if widths[0] != widths[1]:
            raise InputError(
                f"layer '{name}': a head of keys must be as wide as one of queries but has "
                f"{widths[1]} features and not {widths[0]}; correct the layers before it"
            )
        return _Heads(queries=heads, keys=kv_heads, width=widths[0], value_width=widths[2])
    if len(inputs) > 3:
        raise InputError(
            f"layer '{name}': attention must read one layer (queries, keys and values side by "
            "side), two (queries; keys and values) or three (what all heads add to their keys, "
            f"too) but reads {len(inputs)}; correct its inputs"
        )
    features = [x.extent("hidden") for x in inputs]
    if len(inputs) == 1:
        width = _divided(
            name, "query, key and value side by side", features[0], heads + 2 * kv_heads, "heads"
        )
        return _Heads(queries=heads, keys=kv_heads, width=width, value_width=width)
    width = _divided(name, "queries", features[0], heads, "heads")
    both = _divided(name, "keys and values", features[1], kv_heads, "heads")
    shared = features[2] if len(inputs) == 3 else 0
    value_width = both - (width - shared)
    if not 0 <= shared < width or value_width < 1:
        raise InputError(
            f"layer '{name}': a head of keys must be as wide as one of queries, {width} features, "
            f"and values need some, too, but keys and values have {both} a head and {shared} that "
            "all heads share; correct the layers before it"
        )
    return _Heads(
        queries=heads, keys=kv_heads, width=width, value_width=value_width, shared_width=shared
    )


def _view(x: Tensor, hidden: int, sequence: str | None, dim: str | None, units: int) -> Tensor:
    """A part of the features of tokens.

    Parameters
    ----------
    x
        The tensor that holds them.
    hidden
        Features. [items]
    sequence
        The dim that divides positions, if any.
    dim, units
        The dim that divides features, if any, and the parts that it leaves whole, 0 for none.
    """
    return Tensor(
        axes=(
            Axis(name="sample", extent=x.extent("sample"), dim="sample"),
            Axis(name="sequence", extent=x.extent("sequence"), dim=sequence),
            Axis(name="hidden", extent=hidden, dim=dim, units=units or None),
        )
    )


def seen_positions(queries: int, keys: int, causal: bool, window: int) -> float:
    """Keys that a query sees on average. [items]

    Parameters
    ----------
    queries, keys
        Positions of both sequences. [items]
    causal
        Whether a query sees no later position than its own.
    window
        How many positions it sees at most, its own included; 0 for all. [items]
    """
    window = min(window or keys, keys)
    if not causal:
        return float(window)
    short = min(window, queries)
    return (short * (short + 1) / 2 + (queries - short) * window) / queries


@layer_kind("attention", num_inputs=None)
def attention(
    name: str,
    inputs: Sequence[Tensor],
    *,
    heads: int,
    kv_heads: int = 0,
    causal: bool = False,
    window: int = 0,
    fused: bool = True,
    dropout: bool = False,
    position_buckets: int = 0,
    separate: bool = False,
) -> Layer:
    """Scaled dot-product attention.

    One tensor holds queries, keys and values side by side; it is then read twice. Two tensors are
    queries, and keys with values, of which the second may be of another sequence. A third one holds
    what the keys of all heads have in common (the rotary part of latent attention).

    A fused kernel keeps no scores and leaves out what a mask hides. Without it the whole square of
    scores is computed, and backward reads the probabilities again (Korthikanti et al. 2022, section
    4.1). Multiply-adds are counted as publications do: over the whole square under a causal mask,
    over the band in a window.

    Parameters
    ----------
    name, inputs
        The layer, and the tensors that it reads.
    heads
        Number of heads. [items]
    kv_heads
        Heads of keys and values, if fewer: each is shared by as many heads of queries. [items]
    causal
        Whether a query sees no later position than its own.
    window
        Positions that a query sees at most; 0 for all. [items]
    fused
        Whether one kernel computes scores and weighted values.
    dropout
        Whether probabilities are dropped, which keeps a mask where the kernel is not fused.
    position_buckets
        Distances between positions for which every head has a bias of its own. [items]
    separate
        Whether three tensors hold queries, keys and values, each by itself.
    """
    if window < 0 or position_buckets < 0:
        raise InputError(
            f"layer '{name}': window and position_buckets must be at least 0 but are {window} and "
            f"{position_buckets}; leave them out for none"
        )
    split = _heads(name, inputs, heads, kv_heads, separate)
    x, memory = inputs[0], inputs[min(1, len(inputs) - 1)]
    samples, length, keys = x.extent("sample"), x.extent("sequence"), memory.extent("sequence")
    units = split.keys if split.keys < heads else 0
    kept = [split.width - split.shared_width, split.value_width]
    views = [_view(x, heads * split.width, "sequence", "head", 0)]
    for width in kept if separate else [sum(kept)]:
        views.append(_view(memory, split.keys * width, None, "head", units))
    if split.shared_width:
        views.append(_view(inputs[2], split.shared_width, None, None, 0))
    seen = seen_positions(length, keys, causal, window) if fused else float(keys)
    counted = min(window or keys, keys)
    batch = ("sample", "head")
    squares = samples * heads * length * keys
    return Layer(
        name=name,
        kind="attention",
        operation="matmul",
        dims={"sample": samples, "sequence": length, "head": heads},
        inputs=tuple(views),
        output=_view(x, heads * split.value_width, "sequence", "head", 0),
        weight_dims=("head",) if position_buckets else (),
        parameters=position_buckets * heads,
        keeps_inputs=True,
        keeps_output=fused,
        saved_elements=0 if fused else squares * (1 + dropout),
        saved_bytes=0 if fused else squares * dropout,
        splittable=frozenset({"sample", "sequence", "head"}),
        products=(
            Product(
                batch=batch,
                rows=length,
                row_dim="sequence",
                columns=seen,
                contracted=split.width,
                macs=length * counted * split.width,
            ),
            Product(
                batch=batch,
                rows=length,
                row_dim="sequence",
                columns=split.value_width,
                contracted=seen,
                macs=length * counted * split.value_width,
            ),
        ),
        between=() if fused else ("softmax", *(("dropout",) if dropout else ())),
    )


def _on_heads(
    name: str, inputs: Sequence[Tensor], kind: str, heads: int, touched: int, parameters: int = 0
) -> Layer:
    """A layer that changes some heads of a tensor and passes on the others as they are.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    kind
        What it is.
    heads, touched
        Heads in the tensor, and how many of them are changed. [items]
    parameters
        Trainable numbers. [items]
    """
    (x,) = inputs
    if not 1 <= touched <= heads:
        raise InputError(
            f"layer '{name}': the heads that it changes must be from 1 to all {heads} but are "
            f"{touched}; correct 'heads' or 'touched'"
        )
    width = _divided(name, "its input", x.extent("hidden"), heads, "heads")
    y = _view(x, heads * width, "sequence", "head", 0)
    return Layer(
        name=name,
        kind=kind,
        dims={"sample": x.extent("sample"), "sequence": x.extent("sequence"), "head": heads},
        inputs=(_view(x, touched * width, "sequence", "head", 0),),
        output=y,
        parameters=parameters,
        keeps_inputs=parameters > 0,
        in_place=not parameters,
        splittable=frozenset({"sample", "sequence", "head"}),
    )


@layer_kind("rotary")
def rotary(name: str, inputs: Sequence[Tensor], *, heads: int, touched: int = 0) -> Layer:
    """Rotary positions (Su et al. 2021): turns pairs of features, and keeps nothing for backward.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    heads
        Heads that the tensor holds, those of keys and values included. [items]
    touched
        How many of them are turned: those of queries and keys; all by default. [items]
    """
    return _on_heads(name, inputs, "rotary", heads, touched or heads)


@layer_kind("head_norm")
def head_norm(
    name: str, inputs: Sequence[Tensor], *, heads: int, touched: int = 0, weights: int = 2
) -> Layer:
    """RMS norm of each head by itself, so that a split by heads sums nothing up.

    Parameters
    ----------
    name, inputs
        The layer, and the one tensor that it reads.
    heads
        Heads that the tensor holds, those of keys and values included. [items]
    touched
        How many of them are normalised: those of queries and keys; all by default. [items]
    weights
        Weights that heads share: one for queries and one for keys. [items]
    """
    touched = touched or heads
    width = inputs[0].extent("hidden") // max(heads, 1)
    return _on_heads(name, inputs, "head_norm", heads, touched, weights * width)
