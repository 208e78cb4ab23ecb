"""Strategies of the usual kinds."""

from __future__ import annotations

import pytest

from costmodels.errors import InputError
from costmodels.graph import build_graph
from costmodels.strategy import (
    data_parallel,
    hybrid,
    shared_weights,
    single_stage,
)
from costmodels.strategy.strategy import Stage
from costmodels.strategy.transformer import tensor_dims
from planner.models import load_network
from planner.models.files import parse_network


def test_hybrid_places_tensor_inside_data_inside_pipeline(gpt):
    strategy = hybrid(gpt, (8, 4), dp=4, tp=4, pp=2, micro_batches=8)
    assert [stage.group for stage in strategy.stages] == [(0, 16), (16, 32)]
    assert strategy.distributions["h.0.mlp.c_fc"].degrees == {"sample": (2, 2), "filter": (4, 1)}
    assert strategy.schedule.micro_batches == 8
    assert shared_weights(gpt, strategy) == (("token_embedding", (0, 1)),)
    assert shared_weights(gpt, hybrid(gpt, (8, 4), dp=16, tp=2)) == ()


def test_interleaved_hybrid_goes_round_robin(gpt):
    strategy = hybrid(
        gpt, (8, 2), dp=8, pp=2, chunks=3, schedule_kind="interleaved", micro_batches=2
    )
    assert [stage.first_device for stage in strategy.stages] == [0, 8] * 3
    assert strategy.num_devices == 16
    with pytest.raises(InputError, match="must be scheduled as 'interleaved'"):
        hybrid(gpt, (8, 2), dp=8, pp=2, chunks=3)


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"dp": 4}, "must be the 8 devices but is 4 x 1 x 1 = 4"),
        ({"dp": 8, "pp": 1, "chunks": 0}, "must be the 8 devices"),
        ({"dp": 8}, "1 sample positions, fewer than the 8"),
    ],
)
def test_hybrids_that_cannot_be(degrees, message):
    with pytest.raises(InputError, match=message):
        hybrid(build_graph(load_network("gpt2"), 1), (8,), **degrees)


def test_single_stage_holds_all_layers(resnet):
    shape = (4, 2)
    split = {la.name: data_parallel(16, shape) for la in resnet.compute_layers}
    strategy = single_stage(split, shape)
    strategy.check(resnet)
    assert strategy.stages == (Stage(layers=tuple(split), first_device=0, shape=shape),)


def test_gates_that_are_written_out_stay_cut():
    rows = (
        ("norm", "rms_norm", ""),
        ("gate", "linear", 'filters = 32\ninputs = ["norm"]'),
        ("act", "activation", ""),
        ("up", "linear", 'filters = 32\ninputs = ["norm"]'),
        ("mul", "pointwise", 'inputs = ["act", "up"]'),
        ("down", "linear", "filters = 8"),
        ("join", "add", 'inputs = ["down", "input"]'),
        ("scaled", "pointwise", 'inputs = ["join"]'),
    )
    text = 'name = "gated"\n[input]\nsequence = 4\nhidden = 8\n' + "".join(
        f'[[layer]]\nname = "{name}"\nkind = "{kind}"\n{more}\n' for name, kind, more in rows
    )
    found = tensor_dims(build_graph(parse_network(text, suffix=".toml"), 2))
    cut = {"gate": "filter", "act": "channel", "up": "filter", "mul": "channel", "down": "channel"}
    assert found == cut
