"""What is computed again of a stage, and what stays although its segment is.

Selective recomputation by operation is that of torchtitan (`ac_config.selective_ac_option = "op"`,
torchtitan/parallelisms/parallelize_llama.py): of a block that is computed again, the outputs of
attention, of every second product with a weight, in the order of the forward pass, and of
reduce-scatters stay. Products of experts are others (grouped), and do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from costmodels.graph import Graph, Layer


def product_shares(graph: Graph, layer: Layer) -> Iterator[float]:
    """The parts of a layer's output that frameworks compute by products of their own.

    Queries, keys and values, or the gate of an MLP and what it gates, are one layer here.
    """
    whole = layer.output.size
    attention = _attention_of(graph, layer)
    if attention is not None:
        queries, others = (attention.inputs[slot].size / whole for slot in (0, 1))
        yield from (queries, others / 2.0, others / 2.0)
    elif any(graph.layers[edge.target].kind == "glu" for edge in graph.consumers[layer.name]):
        yield from (0.5, 0.5)
    else:
        yield 1.0


def _attention_of(graph: Graph, layer: Layer) -> Layer | None:
    """The attention whose queries, keys and values a layer makes, perhaps through rotary layers."""
    name = layer.name
    while (
        len(graph.consumers[name]) == 1
        and graph.layers[graph.consumers[name][0].target].kind == "rotary"
    ):
        name = graph.consumers[name][0].target
    read = [e for e in graph.consumers[name] if graph.layers[e.target].kind == "attention"]
    return graph.layers[read[0].target] if {e.slot for e in read} >= {0, 1} else None


def stored_shares(
    graph: Graph, segment: Sequence[str], scattered: Collection[str]
) -> dict[str, float]:
    """For layers of a segment, the part of the output that stays, by operation.

    Parameters
    ----------
    graph
        The network.
    segment
        The layers, in the order of the forward pass.
    scattered
        Those that read what a reduce-scatter made: they stay in its stead, and are as large.
    """
    stored: dict[str, float] = {}
    count = 0
    for name in segment:
        layer = graph.layers[name]
        if layer.kind == "attention" or name in scattered:
            stored[name] = 1.0
        elif layer.kind == "linear" and "expert" not in layer.dims:
            share = 0.0
            for part in product_shares(graph, layer):
                count += 1
                share += part * (count % 2)
            if share:
                stored[name] = share
    return stored


def computed_again(
    graph: Graph, segment: Sequence[str], stored: Mapping[str, float], stops_early: bool
) -> set[str]:
    """The layers of a segment whose forward pass runs again.

    Parameters
    ----------
    graph
        The network.
    segment
        The layers, in the order of the forward pass.
    stored
        Parts of outputs that stay.
    stops_early
        Whether it ends with the last tensor that a backward pass of the segment reads.
    """
    again: set[str] = set()
    for name in reversed(segment):
        if stored.get(name, 0.0) >= 1.0:
            continue
        layer = graph.layers[name]
        readers = [e.target for e in graph.consumers[name] if e.target in segment]
        if (
            not stops_early
            or layer.keeps_output
            or layer.saved_bytes
            or layer.copy_size
            or any(target in again or _reads_again(graph.layers[target]) for target in readers)
        ):
            again.add(name)
    return again


def _reads_again(layer: Layer) -> bool:
    """Whether the backward pass of a layer reads its inputs, or a copy of them."""
    return layer.keeps_inputs or layer.copy_size > 0
