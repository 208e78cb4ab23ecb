"""The layers of a network as a runtime runs them, made once for a question."""

from __future__ import annotations

from costmodels.graph import Graph, Network, apart, build_graph, fused
from costmodels.layers.reduced_precision import keeping_casts
from costmodels.step.training import Training

# Graphs that are kept: a question asks for the same few again and again. [items]
MOST_KEPT = 8
# Those asked for of late, the last one last, with their networks, whose identities they go by.
_KEPT: dict[tuple[object, ...], tuple[Network, Graph]] = {}


def training_graph(model: Network, batch: int, training: Training) -> Graph:
    """The layers of a network as a runtime runs them.

    Parameters
    ----------
    model
        The network.
    batch
        Samples of a pass. [samples]
    training
        Says what is fused, what runs as several kernels, and what products in FP8 keep.
    """
    fp8 = training.precision == "fp8" and training.held.fp8_inputs
    key = (id(model), batch, training.fuses, tuple(sorted(training.apart.items())), fp8)
    found = _KEPT.pop(key, None)
    if found is None:
        graph = apart(fused(build_graph(model, batch), training.fuses), training.apart)
        graph = keeping_casts(graph, training)
        found = (model, graph)
        if len(_KEPT) >= MOST_KEPT:
            del _KEPT[next(iter(_KEPT))]
    _KEPT[key] = found
    return found[1]
