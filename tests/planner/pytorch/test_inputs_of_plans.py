"""Plans of modules whose inputs are no tokens are run as they are: shapes, types and states."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch_extra

torch_extra.require("torch")

import plain_models as plain
import torch
from torch import nn

import planner
from costmodels.errors import InputError
from planner.models import build
from planner.torch.apply.program import find_rule
from planner.torch.apply.rules import Held, RankPlace, tensors_of
from planner.torch.apply.tracing import planned_shapes, traced
from planner.torch.apply.views import DimPart, ViewLayout, uncut
from planner.torch.nodes import arguments
from planner.torch.verify.scaled import smaller_networks
from planner.torch.verify.verify import verify_plan


def _plan(kind: type, shape: object, gpus: int = 2) -> planner.Plan:
    found = planner.evaluate(kind, inputs=[shape], gpus=gpus, cluster="lassen", global_batch_size=4)
    return planner.Plan.from_json(found.to_json())


def test_extents_of_a_plan_that_was_read_are_in_the_order_of_the_module():
    assert planned_shapes(_plan(plain.Recurrent, (2, 16, 32))) == "2,16,32"


def test_a_module_of_doubles_is_traced_with_doubles():
    found = traced(_plan(plain.Vision, (2, 3, 8, 8)), plain.Vision().double(), None)
    assert {str(node.meta["val"].dtype) for node in found.inputs} == {"torch.float64"}


def test_networks_of_volumes_are_as_narrow_as_few_ranks_allow():
    filters = [
        max(
            int(row.options.get("filters", 1))
            for row in next(smaller_networks(build(name), n)).layers
        )
        for name, n in (("unet3d", 2), ("unet3d", 8))
    ]
    assert filters == [12, 24]


def test_a_module_of_two_inputs_is_verified_with_the_shapes_of_both_alone(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    plan = _plan(plain.Recurrent, (2, 16, 32))
    with pytest.raises(InputError, match=r"must be given.* but it takes x, y; give --input"):
        verify_plan(plan, ranks=2, module="plain_models:Crossed")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_states_of_a_recurrent_layer_are_cut_as_its_samples(kind, batch_first):
    layer = kind(8, 16, 2, batch_first=batch_first)
    program = torch.export.export(layer, (torch.zeros((4, 6, 8) if batch_first else (6, 4, 8)),))
    node = next(n for n in program.graph.nodes if "batch_first" in arguments(n))
    name = node.target.__name__.split(".")[0]
    at = 0 if batch_first else 1
    dims = [(DimPart(6),), (DimPart(8),)]
    dims.insert(at, (DimPart(4, (0,)),))
    given = torch.fx.node.map_arg(
        arguments(node), lambda n: Held(key=n, layout=uncut(n.meta["val"].shape), is_constant=True)
    )
    given = {**given, "input": Held(key="x", layout=ViewLayout(tuple(dims)))}
    call = find_rule(node, name)(RankPlace(sizes=(2,), coordinates=(0,)), node, given)
    states = [call.given["hx"]] if kind is not nn.LSTM else call.given["hx"]
    assert [one.layout.local_shape((2,)) for one in states] == [(2, 2, 16)] * len(states)
    assert len(tensors_of(call.given["params"])) == 8
    shapes = [one.local_shape((2,)) for one in call.layout]
    assert shapes == [(2, 6, 16) if batch_first else (6, 2, 16), *[(2, 2, 16)] * len(states)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (plain.Recurrent, (2, 16, 32)),
        (plain.Vision, (2, 3, 8, 8)),
        (plain.Memory, "2,6:int64"),
    ],
)
def test_states_and_images_are_cut_by_samples(kind, shape, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    found = verify_plan(_plan(kind, shape), ranks=2, module=f"plain_models:{kind.__name__}")
    assert found.holds, found
