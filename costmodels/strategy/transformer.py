"""How the layers of a transformer are split by tensor, sequence, context and expert parallelism.

Tensor parallelism is Megatron-LM's (Narayanan et al. 2021, section 2.3): linear layers are cut by
filter (column) and then by channel (row), with heads of attention or elementwise layers between
them, and the embedding and the head by the vocabulary. Sequence parallelism (Korthikanti et al.
2022, section 4.2.2) divides by the sequence, over the same ranks, what would be whole on each of
them: norms, dropout, residual additions. Context parallelism divides the sequence of all layers;
attention then needs keys and values of all positions. Expert parallelism divides the experts of a
mixture over ranks that have other samples, or other parts of the sequence, elsewhere.
"""

from __future__ import annotations

import math

from msgspec import Struct

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph, Layer, Tensor

Row = tuple[int, ...]
# Layers of a transformer that work on each head, and on each feature, by itself; the loss sums two
# numbers a token where the vocabulary is cut.
_ON_HEADS = ("attention", "rotary", "head_norm")
_NORMS = ("layer_norm", "rms_norm")
_ON_FEATURES = ("activation", "glu", "pointwise", "dropout", "bias", "loss")


def _reads_cut_features(graph: Graph, layer: Layer, cut: set[str]) -> bool:
    """Whether a layer reads outputs of layers in `cut`, whose features are cut, or what is whole.

    What all heads of attention share is whole.
    """
    return all(
        edge.source in cut or _is_whole(layer.inputs[edge.slot])
        for edge in graph.producers[layer.name]
    )


def _is_whole(tensor: Tensor) -> bool:
    """Whether no split of a layer divides the features of a tensor that it reads."""
    return any(axis.name == "hidden" and axis.dim is None for axis in tensor.axes)


def _needed_whole(graph: Graph, name: str) -> bool:
    """Whether a layer reads all features of another one at once: norms, and keys of all heads.

    Such are the narrow layers of latent attention, which every rank computes whole.
    """
    for edge in graph.consumers[name]:
        reader = graph.layers[edge.target]
        if reader.kind in _NORMS or _is_whole(reader.inputs[edge.slot]):
            return True
        passed_on = reader.kind in (*_ON_HEADS, *_ON_FEATURES)
        if passed_on and _needed_whole(graph, edge.target):
            return True
    return False


def tensor_dims(graph: Graph) -> dict[str, str]:
    """The dim that tensor parallelism cuts in each layer of a transformer that it cuts."""
    embeddings = [layer for layer in graph.compute_layers if layer.kind == "embedding"]
    # positions are embedded, too, but their table is small and is kept whole
    vocabulary = max((layer.dims["channel"] for layer in embeddings), default=0)
    dims: dict[str, str] = {}
    cut: set[str] = set()
    for layer in graph.compute_layers:
        follows = _reads_cut_features(graph, layer, cut)
        if layer.kind == "embedding" and layer.dims["channel"] == vocabulary:
            dims[layer.name] = "channel"
        elif layer.kind == "linear" and layer.dims["filter"] > 1:
            if follows:
                dims[layer.name] = "channel"
            elif not _needed_whole(graph, layer.name):
                dims[layer.name] = "filter"
                cut.add(layer.name)
        elif layer.kind in _ON_HEADS and follows:
            dims[layer.name] = "head"
            cut.add(layer.name)
        elif layer.kind in _ON_FEATURES and follows:
            dims[layer.name] = "channel"
            cut.add(layer.name)
    return dims


class Grid(Struct, frozen=True, kw_only=True):
    """Ways of each axis of parallelism at each level of a stage, from the inside out. [ways]

    Parameters
    ----------
    dp, cp, tp
        Of data, context and tensor parallelism; their products are the members of each level.
    ep, etp
        Of expert parallelism, and of tensor parallelism within experts.
    """

    dp: Row
    cp: Row
    tp: Row
    ep: Row
    etp: Row


def _times(*rows: Row) -> Row:
    return tuple(math.prod(ways) for ways in zip(*rows, strict=True))


def transformer_distributions(
    graph: Graph, grid: Grid, shape: Row, *, sequence_parallel: bool, cp_kind: str
) -> dict[str, Distribution]:
    """The split of every layer.

    Parameters
    ----------
    graph
        The network at the batch of one micro-batch.
    grid
        The axes.
    shape
        Members of each level. [items]
    sequence_parallel
        Whether what tensor parallelism leaves whole is divided by the sequence.
    cp_kind
        "ring" where attention gets keys and values of all positions, "all-to-all" where it gets
        some heads of all positions instead.
    """
    cut = tensor_dims(graph) if math.prod(grid.tp) > 1 else {}
    whole_sequence = grid.cp
    if sequence_parallel:
        whole_sequence = _times(grid.cp, grid.tp)
    result = {}
    for layer in graph.compute_layers:
        dim = cut.get(layer.name)
        split: dict[str, Row] = {"sample": grid.dp}
        if "expert" in layer.dims and layer.kind not in ("dispatch", "combine"):
            split = _expert_split(layer, grid, dim)
        elif dim is not None:
            split[dim] = grid.tp
            if cp_kind == "all-to-all" and layer.kind == "attention":
                split["head"] = _times(grid.cp, grid.tp)
            elif "sequence" in layer.splittable:
                split["sequence"] = grid.cp
        elif cp_kind == "all-to-all" and layer.kind == "attention":
            split["head"] = grid.cp
        elif "sequence" in layer.splittable:
            split["sequence"] = whole_sequence
        result[layer.name] = Distribution(degrees=split, shape=shape)
    return result


def _expert_split(layer: Layer, grid: Grid, dim: str | None) -> dict[str, Row]:
    """The split of a layer inside of experts: what expert parallelism takes is not split else.

    Expert parallelism takes ranks of tensor parallelism that experts do not use, then of context
    parallelism, then of data parallelism.
    """
    left = list(grid.ep)
    split: dict[str, Row] = {}
    rows = (("tp", grid.tp, grid.etp), ("cp", grid.cp, None), ("dp", grid.dp, None))
    kept: dict[str, list[int]] = {}
    for name, ways, used in rows:
        kept[name] = []
        for level, members in enumerate(ways):
            free = members // (used[level] if used is not None else 1)
            taken = math.gcd(left[level], free)
            left[level] //= taken
            kept[name].append(free // taken)
    split["sample"] = tuple(kept["dp"])
    split["sequence"] = _times(tuple(kept["cp"]), tuple(kept["tp"]))
    split["expert"] = grid.ep
    if dim is not None:
        split[dim] = grid.etp
    else:
        split["sequence"] = _times(split["sequence"], grid.etp)
    return split


def check_transformer_degrees(graph: Graph, *, heads: int, ep: int) -> None:
    """Refuse degrees that heads or experts cannot be divided by.

    Parameters
    ----------
    graph
        The network.
    heads, ep
        Ways that heads are split, and experts. [ways]

    Raises
    ------
    InputError
        When one cannot be.
    """
    for layer in graph.compute_layers:
        if layer.kind == "attention" and layer.dims["head"] % heads:
            count = layer.dims["head"]
            raise InputError(
                f"the {count} heads of '{layer.name}' must divide evenly over the ranks that split "
                f"them but there are {heads}; choose tp (times cp, where that is all-to-all) from "
                f"{_divisors(count)}, or allow uneven heads (--uneven-heads)"
            )
        if layer.kind == "dispatch" and layer.dims["expert"] % ep:
            experts = layer.dims["expert"]
            raise InputError(
                f"the {experts} experts of '{layer.name}' must divide evenly over the ranks but "
                f"ep of {ep} does not divide them; choose from {_divisors(experts)}"
            )
    if ep > 1 and not any(layer.kind == "dispatch" for layer in graph.compute_layers):
        raise InputError(f"{graph.name} must have experts for --ep but has none; leave it out")


def _divisors(count: int) -> str:
    rows = [str(n) for n in range(1, count + 1) if count % n == 0]
    return ", ".join(rows)
