"""A pass that needs a halo: the interior is computed beside the exchange, the boundary after it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.communication.halo import Halo, halo_exchange
from costmodels.distribution import Candidates
from costmodels.graph import SPATIAL_DIMS, Layer
from costmodels.layers.halo_copies import halo_copies
from costmodels.layers.local_work import local_work
from costmodels.step.machine import Machine

Floats = NDArray[np.float64]


def _boundary_time(
    layer: Layer, candidates: Candidates, direction: str, halo: Halo, machine: Machine
) -> Floats:
    """Time of the kernels that compute what must wait for a halo, one for each side. [s]"""
    seconds = np.zeros(len(candidates))
    dims = [a.name for a in layer.output.axes if a.name in SPATIAL_DIMS]
    for dim, (sides, rows) in halo.slabs.items():
        window, place = layer.windows[dim], dims.index(dim)
        inputs = np.ceil(rows) if direction == "forward" else np.ceil(rows) * window.stride
        outputs = np.ceil(inputs / window.stride)
        for work in local_work(layer, candidates, direction):
            slab = replace(
                work,
                in_extents=_replaced(work.in_extents, place, inputs),
                out_extents=_replaced(work.out_extents, place, outputs),
            )
            time = machine.compute.time(slab)[0]
            seconds = seconds + sides * np.maximum(time, machine.training.launch_time)
    return seconds


def _replaced(extents: tuple[Floats, ...], place: int, extent: Floats) -> tuple[Floats, ...]:
    return (*extents[:place], extent, *extents[place + 1 :])


class HaloWork(Struct, frozen=True, kw_only=True, eq=False):
    """A pass that needs a halo, as it runs; each an array over candidates.

    Parameters
    ----------
    exchange, num_bytes
        The halo exchange, and what the busiest rank receives. [s], [B]
    copies
        What of the exchange is copies before and after the messages. [s]
    interior, boundary
        Computation beside the exchange and after it; the boundary is 0, and the interior all of
        the pass, where the layer is not cut. [s]
    cut
        Whether it is.
    apart
        Whether the exchange waits for the independent work, instead of hiding behind it.
    slabs
        What the pass computes longer because it is cut, or joins a block with its halo. [s]
    joined
        The tensor in which it does that. [B]
    exposed
        What the pass takes longer than without a halo. [s]
    """

    exchange: Floats
    num_bytes: Floats
    copies: Floats
    interior: Floats
    boundary: Floats
    cut: NDArray[np.bool_]
    apart: NDArray[np.bool_]
    slabs: Floats
    joined: Floats
    exposed: Floats


def halo_work(
    layer: Layer,
    candidates: Candidates,
    direction: str,
    times: tuple[Floats, Floats | float],
    machine: Machine,
    halo: Halo | None = None,
) -> HaloWork:
    """How a pass runs with its halo exchange.

    With overlap the messages travel during independent work (backward-weight), and the interior
    is computed meanwhile, then what waits by kernels of its own (Dryden et al. 2019, section
    IV.A): thin slabs, which take nearly as long as thick ones. A layer is only cut that way where
    it pays, unless the framework always does; some frameworks cut the forward pass only, and some
    do not hide a backward halo with corners (`Training`). What packs and unpacks messages runs
    beside the interior, too.

    Without overlap the pass waits, and copies its block and the halo into one tensor first.

    Parameters
    ----------
    layer, candidates, machine
        As of `layer_costs`.
    direction
        "forward" or "backward_data".
    times
        Computation of the pass that needs the halo, and of work that does not. [s]
    halo
        The exchange, where it is known already.
    """
    compute, independent = times
    if halo is None:
        halo = halo_exchange(
            layer,
            candidates,
            machine.topology,
            backward=direction != "forward",
            element_size=machine.training.activation_size,
        )
    zero = np.zeros(len(candidates))
    whole = np.zeros(len(candidates), dtype=bool)
    training, backward = machine.training, direction != "forward"
    copied = halo_copies(layer, candidates, halo, machine, backward=backward)
    if not halo.slabs or not training.halo_overlap:
        return HaloWork(
            exchange=halo.time,
            num_bytes=halo.num_bytes,
            copies=zero,
            interior=compute + copied.seconds,
            boundary=zero,
            cut=whole,
            apart=whole,
            slabs=copied.seconds,
            joined=copied.num_bytes,
            exposed=halo.time + copied.seconds,
        )
    exchange = halo.time + copied.seconds
    apart: NDArray[np.bool_] = whole
    if backward and not training.corner_overlap:
        apart = np.sum([sides > 0 for sides, _ in halo.slabs.values()], axis=0) > 1
    waiting: Floats = np.maximum(exchange - independent * ~apart, 0.0)
    if backward and not training.cuts_backward:
        return HaloWork(
            exchange=exchange,
            num_bytes=halo.num_bytes,
            copies=copied.seconds,
            interior=compute,
            boundary=zero,
            cut=whole,
            apart=apart,
            slabs=zero,
            joined=zero,
            exposed=waiting,
        )
    interior = compute * (1.0 - halo.boundary)
    slabs = _boundary_time(layer, candidates, direction, halo, machine)
    needed = halo.boundary > 0.0
    extra = np.maximum(slabs - compute * halo.boundary, 0.0) * needed
    exposed = np.maximum(waiting - interior, 0.0) + extra
    cut = needed if training.always_cut else needed & (exposed < waiting)
    exposed = exposed if training.always_cut else np.minimum(exposed, waiting)
    return HaloWork(
        exchange=exchange,
        num_bytes=halo.num_bytes,
        copies=copied.seconds,
        interior=np.where(cut, interior, compute),
        boundary=np.where(cut, compute * halo.boundary + extra, 0.0),
        cut=cut,
        apart=apart,
        slabs=np.where(cut, extra, 0.0),
        joined=zero,
        exposed=exposed,
    )
