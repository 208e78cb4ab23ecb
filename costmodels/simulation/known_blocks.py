"""What blocks of layers compute, known from one micro-batch, stage and strategy to the next.

A device computes the same block whatever the batch is of which it has a part, wherever else parts
lie, and whatever is held of weights. So blocks are told apart by all dims but the samples, how
these are split, and by the samples of the block.
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from costmodels.compute import ComputeModel
from costmodels.distribution import Candidates, Distribution
from costmodels.graph import Layer, Tensor
from costmodels.layers.layer_passes import Computation, layer_computation
from costmodels.layers.local_work import local_parameters
from costmodels.step.machine import Machine

_SAMPLE = "sample"
_KNOWN: WeakKeyDictionary[ComputeModel, dict[tuple[object, ...], Computation]]
_KNOWN = WeakKeyDictionary()


def block_computation(
    layer: Layer,
    one: Candidates,
    distribution: Distribution,
    machine: Machine,
    wants_gradient: bool,
) -> Computation:
    """All passes and the update of a layer under one distribution.

    Parameters
    ----------
    layer, machine
        The layer, and where and how it runs.
    one, distribution
        The distribution, as the only candidate and by itself.
    wants_gradient
        Whether any input wants a gradient.
    """
    known = _KNOWN.setdefault(machine.compute, {})
    key = (_agreeing(layer, distribution.degrees, one), machine.training.computing, wants_gradient)
    if layer.products or key not in known:  # products count samples among others
        parameters = local_parameters(layer, one) * (layer.shares_weight_with is None)
        known[key] = layer_computation(layer, one, machine, parameters, wants_gradient)
    return known[key]


def _agreeing(
    layer: Layer, degrees: Mapping[str, tuple[int, ...]], one: Candidates
) -> tuple[object, ...]:
    """What blocks agree in that compute the same."""
    split = [(dim, ways) for dim, ways in degrees.items() if dim != _SAMPLE]
    return (
        int(one.local(_SAMPLE, layer.dims.get(_SAMPLE, 1))[0]),
        tuple(sorted(split)),
        tuple((dim, extent) for dim, extent in layer.dims.items() if dim != _SAMPLE),
        tuple(map(_without_samples, (*layer.inputs, layer.output))),
        layer.kind,
        layer.operation,
        layer.weight_dims,
        layer.parameters,
        layer.frozen_parameters,
        tuple(layer.windows.items()),
        layer.groups,
        layer.transposed,
        layer.biased,
        layer.shares_weight_with is None,
    )


def _without_samples(tensor: Tensor) -> tuple[object, ...]:
    return tuple(axis.dim if axis.dim == _SAMPLE else axis for axis in tensor.axes)
