"""Model FLOPs and their utilisation (MFU): how much of the peak goes into the network itself.

As of Chowdhery et al. 2022 (PaLM, appendix B): only the multiply-adds of the network count, twice
as many in the backward pass as in the forward pass, and nothing that is computed again or on
several GPUs alike. Convolutions by Winograd's algorithm may therefore exceed 100 %.
"""

from __future__ import annotations

from costmodels.graph import Graph

# A multiply-add is two operations, and a step takes three forward passes' worth of them.
FLOPS_PER_MAC, FORWARD_PASSES = 2, 3


def model_flops(graph: Graph) -> float:
    """Floating-point operations of a training step of a network with its batch. [FLOP]"""
    return float(FLOPS_PER_MAC * FORWARD_PASSES * graph.macs)


def model_flops_utilisation(
    flops: float, step_time: float, devices: int, peak_flops: float
) -> float:
    """MFU: model FLOPs of a step as part of what all devices could compute in its time.

    Parameters
    ----------
    flops
        Model FLOPs of the step. [FLOP]
    step_time
        The step. [s]
    devices
        How many devices take it together. [items]
    peak_flops
        Peak of a device at the precision. [FLOP/s]
    """
    return flops / (step_time * devices * peak_flops)
