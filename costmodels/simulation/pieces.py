"""What each layer of a stage costs under its distribution, in pieces from which tasks are made."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.communication.halo import halo_exchange
from costmodels.communication.layout import Layouts
from costmodels.distribution import Candidates, Distribution, one_candidate, split_dims
from costmodels.graph import SPATIAL_DIMS, Graph, Layer
from costmodels.layers.halo_work import HaloWork, halo_work
from costmodels.layers.layer_cost import LayerCosts, layer_costs
from costmodels.layers.layer_passes import SOURCES
from costmodels.layers.local_work import local_size
from costmodels.layers.shared_weight import SharedBlock
from costmodels.simulation.known_blocks import block_computation
from costmodels.step.machine import Machine

# Elements so small that only what messages take before their bytes flow is left. [B]
_NO_BYTES = 1e-9


class Piece(Struct, frozen=True, kw_only=True, eq=False):
    """One layer under one distribution.

    Parameters
    ----------
    forward, backward_data, backward_weight, update
        Local computation. [s]
    halo_forward, halo_backward
        How the passes run with their halo exchange, and what of that no link is busy with: copies,
        and what messages take before their bytes flow; None without one. [s]
    weight_first
        Whether backward-weight runs beside the halo exchange of the backward pass.
    statistics_bytes, statistics_group
        What is summed within the layer in each pass, and over which members. [B], [items]
    gradient_bytes, gradient_group
        Weight gradients, and the members of the groups that hold the same weight. [B], [items]
    parameters, numbers
        Of the local block of the weight: those that are trained, and all. [items]
    weights, gradients, state, output, saved, workspace, buffer
        Memory. [B]
    inputs
        Each input in the layout that the layer reads. [B]
    reads, writes
        Layouts of the inputs, partial where their gradients are, and of the output.
    codes_read, code_written
        Numbers that are equal where layouts are, partial sums left out.
    sources
        Computation by where its estimate comes from. [s]
    """

    forward: float
    backward_data: float
    backward_weight: float
    update: float
    halo_forward: tuple[HaloWork, float] | None
    halo_backward: tuple[HaloWork, float] | None
    weight_first: bool
    statistics_bytes: float
    statistics_group: tuple[int, ...]
    gradient_bytes: float
    gradient_group: tuple[int, ...]
    parameters: float
    numbers: float
    weights: float
    gradients: float
    state: float
    output: float
    saved: float
    workspace: float
    buffer: float
    inputs: tuple[float, ...]
    reads: tuple[Layouts, ...]
    writes: Layouts
    codes_read: tuple[bytes, ...]
    code_written: bytes
    sources: tuple[tuple[str, float], ...]

    @property
    def backward(self) -> float:
        """Local computation of the whole backward pass. [s]"""
        return self.backward_data + self.backward_weight


# Of layers that cost the same, and by which inputs need gradients: what their candidates cost.
CostedCandidates = Mapping[
    tuple[tuple[object, ...], tuple[bool, ...]], tuple[Candidates, LayerCosts]
]


class Pieces:
    """Pieces of the layers of one machine; layers that are alike share them.

    Parameters
    ----------
    graph
        The network.
    machine
        Where and how it runs.
    costed
        What is costed already on that machine.
    """

    def __init__(
        self, graph: Graph, machine: Machine, costed: CostedCandidates | None = None
    ) -> None:
        self.graph = graph
        self.machine = machine
        self.costed = costed or {}
        self.known: dict[tuple[object, ...], Piece] = {}
        self.by_name: dict[tuple[object, ...], Piece] = {}
        # what layers add whose weight another one holds, by both of them
        self.shared: dict[tuple[object, ...], SharedBlock] = {}

    def of(
        self, name: str, distribution: Distribution, *, owns_weight: bool | None = None
    ) -> Piece:
        """The piece of a layer.

        Parameters
        ----------
        name
            The layer.
        distribution
            Its distribution.
        owns_weight
            Whether a layer that shares a weight has a copy of its own after all, since its owner
            is elsewhere.
        """
        split = tuple(sorted(distribution.degrees.items()))
        named = (name, owns_weight, split, distribution.shape)
        if named not in self.by_name:
            self.by_name[named] = self._of_layer(name, distribution, split, owns_weight)
        return self.by_name[named]

    def _of_layer(
        self,
        name: str,
        distribution: Distribution,
        split: tuple[object, ...],
        owns_weight: bool | None,
    ) -> Piece:
        """As `of`, for a layer that was not met under a distribution.

        Parameters
        ----------
        name, distribution, owns_weight
            As of `of`.
        split
            The degrees of the distribution in a fixed order.
        """
        layer = self.graph.layers[name]
        if owns_weight and layer.shares_weight_with is not None:
            layer = replace(layer, shares_weight_with=None)
        wants = self.graph.input_gradients(name)
        split = tuple(sorted(distribution.degrees.items()))
        key = (layer.signature, wants, split, distribution.shape)
        if key not in self.known:
            one = one_candidate(distribution, split_dims(layer))
            costs = self._costs(layer, one, distribution, wants)
            self.known[key] = _piece(layer, one, costs, wants, self.machine)
        return self.known[key]

    def _costs(
        self, layer: Layer, one: Candidates, distribution: Distribution, wants: tuple[bool, ...]
    ) -> LayerCosts:
        """What a layer costs under a distribution.

        Parameters
        ----------
        layer, distribution, wants
            The layer, how it is split, and which inputs need gradients.
        one
            The distribution as the only candidate.
        """
        found = self.costed.get((layer.signature, wants))
        index = None if found is None else found[0].find(distribution)
        if found is not None and index is not None:
            return found[1].take(np.array([index]))
        # messages are tasks of their own
        return layer_costs(
            layer,
            one,
            self.machine,
            input_gradients=wants,
            largest_bucket=None,
            computation=block_computation(layer, one, distribution, self.machine, any(wants)),
        )


def _piece(
    layer: Layer,
    one: Candidates,
    costs: LayerCosts,
    wants: tuple[bool, ...],
    machine: Machine,
) -> Piece:
    """The piece of a layer.

    Parameters
    ----------
    layer
        The layer.
    one, costs
        Its distribution as the only candidate, and what it costs.
    wants
        Which inputs need gradients.
    machine
        Where and how it runs.
    """
    size = machine.training.activation_size
    statistics_bytes, statistics_group = 0.0, (1,) * len(one.shape)
    if layer.statistics is not None:
        statistics_bytes = 4.0 * layer.statistics.count
        for dim in layer.statistics.per:
            statistics_bytes *= float(one.local(dim, layer.dims[dim])[0])
        statistics_group = _group_members(one, layer.statistics.over)
    reads = tuple(
        Layouts.of(one, tensor, layer.absent_dims(slot)) for slot, tensor in enumerate(layer.inputs)
    )
    writes = Layouts.of(one, layer.output, layer.reduced_dims)
    forward, backward = _halos(layer, one, costs, wants, machine)
    return Piece(
        forward=float(costs.forward[0]),
        backward_data=float(costs.backward_data[0]),
        backward_weight=float(costs.backward_weight[0]),
        update=float(costs.update[0]),
        halo_forward=forward,
        halo_backward=backward,
        weight_first=bool(costs.weight_first[0]),
        statistics_bytes=statistics_bytes,
        statistics_group=statistics_group,
        gradient_bytes=float(costs.gradient_bytes[0]),
        gradient_group=tuple(int(n) for n in costs.gradient_group[0]),
        parameters=float(costs.gradients[0]) / machine.training.gradient_size,
        numbers=float(costs.numbers[0]),
        weights=float(costs.weights[0]),
        gradients=float(costs.gradients[0]),
        state=float(costs.state[0]),
        output=float(costs.output[0]),
        saved=float(costs.saved[0]),
        workspace=float(costs.workspace[0]),
        buffer=float(costs.communication_bytes[0]),
        inputs=tuple(float(local_size(tensor, one)[0]) * size for tensor in layer.inputs),
        reads=reads,
        writes=writes,
        codes_read=tuple(_code(layouts) for layouts in reads),
        code_written=_code(writes),
        sources=tuple(
            (source, float(seconds))
            for source, seconds in zip(SOURCES, costs.sources[:, 0], strict=True)
            if seconds > 0.0
        ),
    )


def _group_members(one: Candidates, dims: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(int(n) for n in one.group(dims)[0])


def _code(layouts: Layouts) -> bytes:
    return layouts.degrees.tobytes() + layouts.strides.tobytes()


def _halos(
    layer: Layer, one: Candidates, costs: LayerCosts, wants: tuple[bool, ...], machine: Machine
) -> tuple[tuple[HaloWork, float] | None, tuple[HaloWork, float] | None]:
    if not layer.windows or not any((one.degree(dim) > 1).any() for dim in SPATIAL_DIMS):
        return None, None
    forward = halo_work(layer, one, "forward", (costs.forward, 0.0), machine)
    fixed = [
        float(
            halo_exchange(layer, one, machine.topology, backward=b, element_size=_NO_BYTES).time[0]
        )
        for b in (False, True)
    ]
    backward = None
    if any(wants):
        times = (costs.backward_data, costs.backward_weight)
        backward = halo_work(layer, one, "backward_data", times, machine)
    # copies take what they take, however many messages share the links
    return (
        (forward, fixed[0] + float(forward.copies[0])) if forward.exchange[0] > 0.0 else None,
        (backward, fixed[1] + float(backward.copies[0]))
        if backward is not None and backward.exchange[0] > 0.0
        else None,
    )
