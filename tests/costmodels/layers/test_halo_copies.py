"""Copies around halo exchanges: which bytes they move, and what is kept of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import cluster, graph, machine
from msgspec.structs import replace

from costmodels.communication.halo import halo_exchange
from costmodels.compute import ComputeModel, Work
from costmodels.distribution import Candidates
from costmodels.graph import Layer
from costmodels.layers.halo_copies import halo_copies, joining_works
from costmodels.layers.layer_cost import LayerCosts, layer_costs
from costmodels.step.machine import Machine

SIZE = 4
RATE = 1e9
BATCH, CHANNELS, FILTERS, EXTENT = 2, 6, 10, 16


class TrafficCompute(ComputeModel):
    """Time in proportion to the bytes that are read and written."""

    def time(self, work: Work, *, fp8: bool = False) -> tuple[Any, Any]:
        seconds = np.atleast_1d(work.bytes_moved(self.precision) / RATE)
        return seconds, np.zeros(seconds.shape, dtype=np.int8)


def layer_of(kind: str = "conv", dims: int = 2, **options: Any) -> Layer:
    shape = dict.fromkeys(("depth", "height", "width")[-dims:], EXTENT)
    chosen = {"filters": FILTERS, "kernel": 3, "padding": 1} if kind == "conv" else {}
    rows: list[Any] = [("one", kind, {**chosen, **options})]
    return graph({"channel": CHANNELS, **shape}, rows, BATCH).layers["one"]


def split(layer: Layer, **ways: int) -> Candidates:
    dims = tuple(layer.dims)
    degrees = np.array([[[ways.get(dim, 1) for dim in dims]]], dtype=np.int64)
    return Candidates(dims=dims, degrees=degrees, shape=(int(degrees.prod()),))


def where(candidates: Candidates, **options: Any) -> Machine:
    plain = machine(cluster(*candidates.shape), **{"halo_overlap": False, **options})
    compute = TrafficCompute(plain.compute.device, plain.training.precision)
    return replace(plain, compute=compute)


def copies(layer: Layer, candidates: Candidates, on: Machine, *, backward: bool) -> Any:
    halo = halo_exchange(layer, candidates, on.topology, backward=backward, element_size=SIZE)
    return halo, halo_copies(layer, candidates, halo, on, backward=backward)


def costs(layer: Layer, candidates: Candidates, on: Machine) -> LayerCosts:
    return layer_costs(layer, candidates, on, input_gradients=(True,), largest_bucket=1e6)


@pytest.mark.parametrize(("backward", "features"), [(False, CHANNELS), (True, FILTERS)])
@pytest.mark.parametrize("ways", [{"height": 4}, {"height": 4, "width": 4}])
def test_packing_and_joining_move_each_number_once_in_and_once_out(ways, backward, features):
    layer = layer_of()
    candidates = split(layer, **ways)
    halo, found = copies(layer, candidates, where(candidates), backward=backward)
    block = [EXTENT // ways.get(dim, 1) for dim in ("height", "width")]
    padded = [n + 2 * (dim in ways) for n, dim in zip(block, ("height", "width"), strict=True)]
    numbers = BATCH * features * np.array([np.prod(block), np.prod(padded)])
    received = numbers[1] - numbers[0]
    assert halo.num_bytes.item() == SIZE * received
    assert found.num_bytes.item() == SIZE * numbers[1]
    # packed, put in its place, and the block beside it: read and written
    expected = SIZE * (2 * received + 2 * received + 2 * numbers[0]) / RATE
    assert found.seconds.item() == pytest.approx(expected)


@pytest.mark.parametrize(("ways", "messages"), [({"height": 4}, 2), ({"height": 4, "width": 4}, 8)])
def test_no_copy_is_faster_than_its_launch(ways, messages):
    layer = layer_of()
    candidates = split(layer, **ways)
    launch = 0.9  # longer than any copy here
    _, found = copies(layer, candidates, where(candidates, launch_time=launch), backward=False)
    assert found.seconds.item() == pytest.approx(launch * (2 * messages + 1))


@pytest.mark.parametrize("layer", [layer_of(kernel=1, padding=0), layer_of("activation")])
def test_what_exchanges_nothing_copies_nothing(layer):
    candidates = split(layer, height=4)
    on = where(candidates, launch_time=0.9)
    for backward in (False, True):
        assert copies(layer, candidates, on, backward=backward)[1].seconds.item() == 0.0
    assert list(joining_works(layer, candidates, on, wants_gradient=True)) == []


def test_beside_the_interior_only_messages_are_packed():
    layer = layer_of()
    candidates = split(layer, height=4)
    on = where(candidates, halo_overlap=True)
    halo, found = copies(layer, candidates, on, backward=False)
    assert found.seconds.item() == pytest.approx(4 * halo.num_bytes.item() / RATE)
    assert found.num_bytes.item() == 0.0
    assert list(joining_works(layer, candidates, on, wants_gradient=True)) == []
    whole = split(layer, sample=2)
    assert costs(layer, candidates, on).saved.item() == costs(layer, whole, on).saved.item() == 0.0


@pytest.mark.parametrize("dims", [2, 3])
def test_a_pass_takes_the_copies_longer_and_keeps_what_they_make(dims):
    layer = layer_of(dims=dims)
    candidates = split(layer, height=4)
    on = where(candidates)
    found = costs(layer, candidates, on)
    (forward, joined), (backward, gradient) = (
        copies(layer, candidates, on, backward=way) for way in (False, True)
    )
    assert found.slabs_forward.item() == joined.seconds.item() > 0.0
    assert found.halo_forward.item() == pytest.approx((forward.time + joined.seconds).item())
    assert found.halo_backward.item() == pytest.approx((backward.time + gradient.seconds).item())
    # the weight's gradient reads the padded input, and the padded gradient goes with its pass
    assert found.saved.item() == joined.num_bytes.item()
    before = costs(layer, candidates, where(candidates, halo_overlap=True))
    assert (found.workspace - before.workspace).item() == gradient.num_bytes.item()
    works = list(joining_works(layer, candidates, on, wants_gradient=True))
    assert [work.operation for work in works] == ["pad", "pad"]
    sizes = [SIZE * work.outputs.item() for work in works]
    assert sizes == [joined.num_bytes.item(), gradient.num_bytes.item()]
