"""Products in FP8, as NVIDIA's Transformer Engine runs them: casts, and which layers.

Linear layers within the blocks of a transformer multiply in FP8, where their dims are multiples of
16; embeddings, the head, routers of few experts, attention and all that multiplies nothing stay in
16 bits, as do activations between layers. What a product reads is cast by a kernel that also
transposes it and finds the largest value for the scale of a later step (delayed scaling): the input
before the forward pass, the gradient of the output before the backward pass, and the weight once a
step, when it is updated, since micro-batches share it (docs.nvidia.com/deeplearning/
transformer-engine, "Using FP8", and `is_first_microbatch` of its modules, which Megatron-LM sets;
torchao's all-gather in FP8 casts what a rank has updated, too). For the backward pass it keeps the
input as it was cast (transformer_engine/pytorch/module/linear.py, `save_for_backward`), and not the
tensor that the cast read, which goes unless another layer reads it again.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.compute import Work
from costmodels.distribution import Candidates
from costmodels.graph import Graph, Layer
from costmodels.layers.local_work import local_size
from costmodels.step.training import Training

# What extents of a product in FP8 are multiples of.
_MULTIPLE = 16


def runs_in_fp8(layer: Layer) -> bool:
    """Whether the products of a layer run in FP8: a linear layer of a block."""
    in_block = any(part.isdigit() for part in layer.name.split("."))
    if layer.operation != "linear" or not layer.held_parameters or not in_block:
        return False
    return all(layer.dims[dim] % _MULTIPLE == 0 for dim in ("channel", "filter"))


def keeping_casts(graph: Graph, training: Training) -> Graph:
    """The graph where products in FP8 keep their inputs as they are cast, and not as they come.

    Parameters
    ----------
    graph
        The network.
    training
        Says whether products run in FP8, and whether its framework keeps what they read.
    """
    size = training.held.fp8_inputs
    if training.precision != "fp8" or size == training.activation_size:
        return graph
    layers = {
        name: replace(layer, keeps_inputs=False, copy_size=size)
        if layer.keeps_inputs and runs_in_fp8(layer)
        else layer
        for name, layer in graph.layers.items()
    }
    return Graph(name=graph.name, layers=layers, edges=graph.edges)


def weight_copies(layer: Layer, training: Training) -> int:
    """What products in FP8 hold of each number of a layer's weight besides. [B]"""
    return training.held.fp8_copies if training.precision == "fp8" and runs_in_fp8(layer) else 0


def cast_work(layer: Layer, candidates: Candidates, direction: str) -> list[Work]:
    """The casts of one pass over a micro-batch.

    Parameters
    ----------
    layer, candidates, direction
        As of `costmodels.layers.local_work.local_work`.
    """
    # the gradient of the output is cast once for both products of the backward pass
    if direction == "backward_weight":
        return [cast(local_size(layer.output, candidates))]
    if direction != "forward":
        return []
    return [cast(local_size(layer.inputs[0], candidates))]


def cast(numbers: NDArray[np.float64]) -> Work:
    """A cast of so many numbers, with its transpose."""
    one = np.ones(1)
    return Work(
        operation="fp8_cast", direction="forward", samples=numbers, channels=one, filters=one
    )
