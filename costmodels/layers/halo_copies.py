"""The copies around a halo exchange: what is sent is packed, what comes is joined with the block.

A kernel packs the rows of each message. Where the halo is waited for, the block and all that was
received are then copied into one padded tensor, which the pass reads (PyTorch and Chainer have no
convolution that reads a block and its halo apart). Where it travels behind the interior, tensors
have room for it from the beginning (Dryden et al. 2019, section IV.A): only what is received is
put there. Each side is packed and unpacked on a stream of its own, one dim after the other
(LLNL/DiHydrogen, legacy/include/distconv/tensor/halo_exchange_cuda_al.hpp).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.communication.halo import Halo, halo_exchange
from costmodels.compute import Work
from costmodels.distribution import Candidates
from costmodels.graph import SPATIAL_DIMS, Layer, Tensor
from costmodels.step.machine import Machine

Floats = NDArray[np.float64]


class HaloCopies(Struct, frozen=True, kw_only=True, eq=False):
    """Copies around the halo exchange of a pass, each an array over candidates.

    Parameters
    ----------
    seconds
        How long they take. [s]
    num_bytes
        The padded tensor; 0 where nothing is exchanged. [B]
    """

    seconds: Floats
    num_bytes: Floats


def _joined_tensor(layer: Layer, *, backward: bool) -> Tensor:
    """Of what the block and its halo are joined.

    Convolutions read gradients of their output; pooling makes those of the input with its halo,
    of which the block is cut again.
    """
    return layer.output if backward and layer.is_dense else layer.inputs[0]


def joining_work(layer: Layer, candidates: Candidates, halo: Halo, *, backward: bool) -> Work:
    """The copy of a block into a tensor with room for its halo.

    Parameters
    ----------
    layer, candidates
        As of `halo_copies`.
    halo
        The exchange.
    backward
        Whether it is that of the backward pass.
    """
    tensor = _joined_tensor(layer, backward=backward)
    samples: Floats = np.ones(len(candidates))
    features: Floats = np.ones(len(candidates))
    block, padded = [], []
    for axis in tensor.axes:
        extent = candidates.axis_extent(axis).astype(float)
        if axis.name in SPATIAL_DIMS:
            sides, rows = halo.slabs.get(axis.name, (0.0, 0.0))
            block.append(extent)
            padded.append(extent + sides * rows)
        elif axis.name == "sample":
            samples = samples * extent
        else:
            features = features * extent
    return Work(
        operation="pad",
        direction="forward",
        samples=samples,
        channels=features,
        filters=features,
        in_extents=tuple(block),
        out_extents=tuple(padded),
    )


def halo_copies(
    layer: Layer, candidates: Candidates, halo: Halo, machine: Machine, *, backward: bool
) -> HaloCopies:
    """What the copies of a halo exchange take: bytes read and written, or a launch of each kernel.

    Parameters
    ----------
    layer, candidates, machine
        As of `layer_costs`.
    halo
        The exchange.
    backward
        Whether it is that of the backward pass.
    """
    zero = np.zeros(len(candidates))
    if not halo.slabs:
        return HaloCopies(seconds=zero, num_bytes=zero)
    training, some = machine.training, halo.num_bytes > 0.0
    launch_time = 0.0 if training.runs_ahead else training.launch_time
    dims = np.sum([sides > 0 for sides, _ in halo.slabs.values()], axis=0)
    # sides have streams of their own, dims come one after the other; without, messages do
    apart = np.maximum(dims if training.halo_overlap else halo.messages, 1.0)
    one = np.ones(1)
    message = Work(
        operation="copy",
        direction="forward",
        samples=halo.num_bytes / training.activation_size / apart,
        channels=one,
        filters=one,
    )
    # one kernel packs what is sent, one puts what comes where it belongs
    moved, kernels = machine.compute.time(message)[0], 2.0 * apart
    if training.halo_overlap:
        # beside the interior, where it waits for no launch
        return HaloCopies(seconds=kernels * moved * some, num_bytes=zero)
    seconds = kernels * np.maximum(moved, launch_time)
    joining = joining_work(layer, candidates, halo, backward=backward)
    seconds = seconds + np.maximum(machine.compute.time(joining)[0], launch_time)
    padded = joining.outputs * training.activation_size
    return HaloCopies(seconds=seconds * some, num_bytes=padded * some)


def joining_works(
    layer: Layer, candidates: Candidates, machine: Machine, *, wants_gradient: bool
) -> Iterator[Work]:
    """The copies of blocks that wait for their halos, of those candidates that have any.

    Parameters
    ----------
    layer, candidates, machine
        As of `layer_costs`.
    wants_gradient
        Whether any input wants a gradient.
    """
    if machine.training.halo_overlap:
        return
    size = machine.training.activation_size
    for backward in (False, True)[: 1 + wants_gradient]:
        halo = halo_exchange(
            layer, candidates, machine.topology, backward=backward, element_size=size
        )
        if halo.num_bytes.any():
            work = joining_work(layer, candidates, halo, backward=backward)
            # what exchanges nothing copies nothing: no samples
            yield replace(work, samples=work.samples * (halo.num_bytes > 0.0))
