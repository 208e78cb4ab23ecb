"""Strategies of the usual kinds: a plan's distributions, and data x tensor x pipeline parallelism.

The hybrid is Megatron-LM's (Narayanan et al. 2021): tensor parallelism on the innermost devices,
data parallelism around it, and pipeline stages on contiguous blocks of devices outside. In a
transformer, linear layers are cut by filter (column) and then by channel (row), with heads of
attention or elementwise layers between them, and the embedding and the head by the vocabulary; in
other networks the filters of all convolutions and linear layers are cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph, Layer, Tensor
from costmodels.strategy.cut import cut_graph
from costmodels.strategy.propagate import inner_first, propagate
from costmodels.strategy.strategy import Schedule, Stage, Strategy


def single_stage(distributions: Mapping[str, Distribution], shape: Sequence[int]) -> Strategy:
    """All layers on all devices, without a pipeline.

    Parameters
    ----------
    distributions
        Of every layer, in the order of the forward pass.
    shape
        Devices: members of each level, from the inside out. [items]
    """
    stage = Stage(layers=tuple(distributions), first_device=0, shape=tuple(shape))
    return Strategy(stages=(stage,), distributions=dict(distributions))


def stage_shape(shape: Sequence[int], groups: int) -> tuple[int, ...]:
    """Members of each level that one of several equal groups of devices has.

    Outer levels are divided first, an inner one only where the levels above are used up: so groups
    are contiguous blocks of devices.

    Raises
    ------
    InputError
        When the devices cannot be divided like that.
    """
    result, left = list(shape), groups
    for level in reversed(range(len(shape))):
        ways = math.gcd(left, shape[level])
        result[level] //= ways
        left //= ways
        if result[level] > 1:
            break
    if groups < 1 or left > 1:
        raise InputError(
            f"{math.prod(shape)} devices of shape {' x '.join(map(str, shape))} (inside out) must "
            f"divide into pipeline groups from the outer levels in but {groups} groups do not; "
            "choose a divisor of the outermost level, or all of it times one of the next"
        )
    return tuple(result)


def pipeline_stages(
    parts: Sequence[Sequence[str]], shape: Sequence[int], groups: int
) -> tuple[Stage, ...]:
    """Stages of equal groups of devices, round robin where there are more parts than groups.

    Parameters
    ----------
    parts
        Layers of each stage, in the order of the forward pass.
    shape
        Devices: members of each level, from the inside out. [items]
    groups
        Equal groups that they are divided into. [items]
    """
    inner = stage_shape(shape, groups)
    return tuple(
        Stage(layers=tuple(part), first_device=i % groups * math.prod(inner), shape=inner)
        for i, part in enumerate(parts)
    )


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


# Layers of a transformer that work on each head, and on each feature, by itself; the loss sums two
# numbers a token where the vocabulary is cut.
_ON_HEADS = ("attention", "rotary", "head_norm")
_NORMS = ("layer_norm", "rms_norm")
_ON_FEATURES = ("activation", "glu", "dropout", "bias", "loss")


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


def _transformer_dims(graph: Graph) -> dict[str, str]:
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


def _tensor_parallel_dims(graph: Graph) -> dict[str, str]:
    if any(layer.kind == "attention" for layer in graph.compute_layers):
        return _transformer_dims(graph)
    return {
        layer.name: "filter"
        for layer in graph.compute_layers
        if layer.multiplies_weight and "filter" in layer.splittable
    }


def _hybrid_distributions(
    graph: Graph, stages: Sequence[Stage], shape: tuple[int, ...], tp: int
) -> dict[str, Distribution]:
    """Samples over what tensor parallelism, innermost, leaves over."""
    inner = inner_first(tp, shape)
    if inner is None:
        raise InputError(
            f"the tensor-parallel degree must divide the {math.prod(shape)} devices of a stage "
            f"(shape {' x '.join(map(str, shape))}) but is {tp}; choose a divisor"
        )
    samples = tuple(size // ways for size, ways in zip(shape, inner, strict=True))
    dims = _tensor_parallel_dims(graph) if tp > 1 else {}
    if tp > 1 and not dims:
        raise InputError(
            f"no layer of {graph.name} can be cut by tensor parallelism but its degree is {tp}; "
            "set tp to 1"
        )
    seeds = {
        name: Distribution(degrees={"sample": samples, dim: inner}, shape=shape)
        for name, dim in dims.items()
    }
    # what reads the data and nothing else begins with samples; all other layers follow from those
    for layer in graph.compute_layers:
        if all(graph.layers[edge.source].kind == "input" for edge in graph.producers[layer.name]):
            seeds.setdefault(layer.name, Distribution(degrees={"sample": samples}, shape=shape))
    distributions, _ = propagate(graph, stages, seeds)
    return distributions


def hybrid(
    graph: Graph,
    cluster_shape: Sequence[int],
    *,
    dp: int = 1,
    tp: int = 1,
    pp: int = 1,
    micro_batches: int = 1,
    schedule_kind: str = "1f1b",
    chunks: int = 1,
    max_in_flight: int | None = None,
    weights: Mapping[str, float] | None = None,
) -> Strategy:
    """Data x tensor x pipeline parallelism.

    Parameters
    ----------
    graph
        The network at the batch of one micro-batch.
    cluster_shape
        Devices: members of each level, from the inside out. [items]
    dp, tp, pp
        Degree of each; their product is the number of devices. [ways]
    micro_batches
        Parts that the batch is cut into. [items]
    schedule_kind
        One of `SCHEDULES`.
    chunks
        Stages of each group of devices, more than one with the schedule "interleaved". [items]
    max_in_flight
        See `Schedule`.
    weights
        What the stages are balanced by, for each layer, such as its seconds; multiply-adds by
        default.

    Raises
    ------
    InputError
        When the degrees do not fit the devices or the network.
    """
    shape = tuple(cluster_shape)
    if min(dp, tp, pp, chunks) < 1 or dp * tp * pp != math.prod(shape):
        raise InputError.rule(
            "dp x tp x pp",
            f"be the {math.prod(shape)} devices",
            f"{dp} x {tp} x {pp} = {dp * tp * pp}",
            "change one of the three",
        )
    if chunks > 1 and schedule_kind != "interleaved":
        raise InputError(
            f"{chunks} stages a device group must be scheduled as 'interleaved' but the schedule "
            f"is '{schedule_kind}'; change it or leave chunks at 1"
        )
    stages = pipeline_stages(cut_graph(graph, pp * chunks, weights), shape, pp)
    schedule = Schedule(
        kind=schedule_kind, micro_batches=micro_batches, max_in_flight=max_in_flight
    )
    distributions = _hybrid_distributions(graph, stages, stages[0].shape, tp)
    strategy = Strategy(stages=stages, distributions=distributions, schedule=schedule)
    strategy.check(graph)
    return strategy


def shared_weights(graph: Graph, strategy: Strategy) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Weights that layers of several stages use, each with the stages, in their order.

    The gradients of such a weight are summed over those stages in every step (Narayanan et al.
    2021: the embeddings of the first and the last stage).
    """
    stage_of = {name: i for i, stage in enumerate(strategy.stages) for name in stage.layers}
    users: dict[str, set[int]] = {}
    for layer in graph.compute_layers:
        owner = layer.shares_weight_with
        if owner is not None:
            users.setdefault(owner, {stage_of[owner]}).add(stage_of[layer.name])
    return tuple((owner, tuple(sorted(s))) for owner, s in users.items() if len(s) > 1)
