"""Weights that are frozen are planned, run and verified as such."""

from __future__ import annotations

import pytest
import torch_extra

torch_extra.require("torch")

import frozen_modules as frozen

import planner
from costmodels.errors import InputError
from costmodels.graph import build_graph
from planner.torch.source import network_of_source
from planner.torch.verify.verify import verify_plan


def evaluate(module, inputs, strategy, gpus=2):
    return planner.evaluate(
        getattr(frozen, module),
        inputs=inputs,
        gpus=gpus,
        strategy=strategy,
        cluster="dgx-a100",
        global_batch_size=8,
    )


def test_the_module_says_what_is_trained():
    network = network_of_source(frozen.parts, "2,16:int64")
    options = {row.name: row.options.get("frozen") for row in network.layers}
    assert {name: n for name, n in options.items() if n} == {
        "blocks.0.wide": 64,
        "blocks.1.narrow": 64 * 32,
        "blocks.1.norm": 32,
    }
    graph = build_graph(network, 2)
    trained = sum(p.numel() for p in frozen.parts().parameters() if p.requires_grad)
    assert graph.parameters == trained
    graph = build_graph(network_of_source(frozen.first_half, "2,16:int64"), 2)
    assert "blocks.0.narrow" in graph.untrained
    assert "blocks.1.query" not in graph.untrained


def test_nothing_to_train_is_no_plan():
    with pytest.raises(InputError, match=r"some weights must be trained but all 32 are frozen"):
        evaluate("all_of_it", "2,16:int64", "megatron:tp=2")


@pytest.mark.slow
def test_what_is_frozen_is_gathered_and_not_summed():
    plan = evaluate("adapted", "2,16:int64", "megatron:dp=2,zero=3")
    base, down = (plan.layers[f"blocks.0.query.{name}"] for name in ("base", "down"))
    assert base.weights_bytes == pytest.approx(4 * (32 * 32 + 32) / 2)
    assert base.sharded == down.sharded
    assert (base.update_s, base.gradient_s) == (0, 0)
    assert down.update_s > 0
    kept = evaluate("adapted", "2,16:int64", "megatron:dp=2,zero=2")
    assert kept.layers["blocks.0.query.base"].sharded == ()


CASES = [
    ("first_half", "2,16:int64", "megatron:pp=2,micro_batches=2", 2),
    ("adapted", "2,16:int64", "megatron:dp=2,zero=3,micro_batches=2", 2),
    ("images", "2,3,16,16", "spatial", 2),
]
SLOW = [
    ("parts", "2,16:int64", "megatron:tp=2,dp=2,zero=2,micro_batches=2", 4),
    ("first_half", "2,16:int64", "megatron:dp=2,zero=3,recompute=full", 2),
    ("adapted", "2,16:int64", "megatron:tp=2,sequence_parallel=yes", 2),
]


@pytest.mark.ci_cases(1)
@pytest.mark.parametrize(
    ("module", "inputs", "strategy", "ranks"),
    [*CASES, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)],
)
def test_plans_train_as_one_process_does(module, inputs, strategy, ranks):
    plan = evaluate(module, inputs, strategy, ranks)
    found = verify_plan(plan, ranks=ranks, module=f"frozen_modules:{module}")
    assert found.faults == []
    assert found.gradients[0][1] > 0


def test_a_backward_pass_is_not_split_behind_frozen_stages():
    plan = evaluate(
        "first_half", "2,16:int64", "megatron:pp=2,micro_batches=2,schedule=zero-bubble"
    )
    with pytest.raises(InputError, match="all before stage 1 is frozen; use --schedule 1f1b"):
        verify_plan(plan, ranks=2, module="frozen_modules:first_half")
