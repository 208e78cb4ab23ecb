"""The layers of a network as a runtime runs them, made once for a question."""

from __future__ import annotations

from collections.abc import Callable

from costmodels.graph import Graph, Network, apart, build_graph, fused
from costmodels.layers.reduced_precision import keeping_casts
from costmodels.step.training import Training

# Graphs that are kept: a question asks for the same few again and again. [items]
MOST_KEPT = 12
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
    fp8 = training.held.fp8_inputs if training.precision == "fp8" else None
    as_run = training.fuses, tuple(sorted(training.apart.items())), fp8
    plain = _known_graph(model, (batch,), lambda: build_graph(model, batch))
    if as_run == ((), (), None):
        return plain

    def made() -> Graph:
        return keeping_casts(apart(fused(plain, training.fuses), training.apart), training)

    return _known_graph(model, (batch, *as_run), made)


def _known_graph(model: Network, key: tuple[object, ...], make: Callable[[], Graph]) -> Graph:
    """A graph that was asked for of late, or else one that is made.

    Parameters
    ----------
    model, key
        The network, and what else tells the graph.
    make
        Makes it.
    """
    found = _KEPT.pop((id(model), *key), None) or (model, make())
    if len(_KEPT) >= MOST_KEPT:
        del _KEPT[next(iter(_KEPT))]
    _KEPT[id(model), *key] = found
    return found[1]
