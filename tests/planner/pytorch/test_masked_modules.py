"""Inputs that only masks are made of, and weights that are turned, run under every split."""

from __future__ import annotations

import itertools

import pytest
import torch_extra

torch_extra.require("torch")

import masked_modules as masked
import torch

import planner
from costmodels.errors import InputError
from planner.models.traced.operators.views import turned_order
from planner.torch.verify.verify import verify_plan

MASKED = ("2,16:int64", "2,16:int64")


def found(module, inputs, strategy):
    plan = planner.evaluate(
        getattr(masked, module),
        inputs=list(inputs),
        gpus=2,
        strategy=strategy,
        cluster="dgx-a100",
        global_batch_size=4,
    )
    source = f"masked_modules:{module}"
    return verify_plan(plan, ranks=2, module=source, inputs=inputs, steps=1)


@pytest.mark.parametrize(
    ("module", "inputs", "strategy"),
    [
        ("Masked", MASKED, "megatron:dp=2"),
        ("Turned", ("2,16:int64",), "megatron:tp=2"),
        ("Overwritten", ("2,16:int64",), "megatron:tp=2"),
        pytest.param("Masked", MASKED, "megatron:tp=2", marks=pytest.mark.slow),
        pytest.param("Masked", MASKED, "megatron:cp=2,dp=1", marks=pytest.mark.slow),
    ],
)
def test_plans_train_as_one_process_does(module, inputs, strategy):
    outcome = found(module, inputs, strategy)
    assert outcome.faults == []
    assert outcome.gradients[0][1] > 0


@pytest.mark.slow
def test_what_is_read_after_it_was_written_over_is_refused():
    with pytest.raises(InputError, match="written over and read again, as by 'add_' of"):
        found("ReadAgain", ("2,16:int64",), "megatron:tp=2")


def test_dims_are_turned_as_pytorch_does():
    x = torch.empty(2, 3, 4, 5)
    for one, other in itertools.permutations(range(-4, 4), 2):
        given = {"source": one, "destination": other}
        said = [x.shape[dim] for dim in turned_order("movedim", given, 4)]
        assert said == list(x.movedim(one, other).shape)
        given = {"axis0": one, "axis1": other}
        said = [x.shape[dim] for dim in turned_order("swapaxes", given, 4)]
        assert said == list(x.swapaxes(one, other).shape)
    given = {"source": [0, 3], "destination": [2, 0]}
    said = [x.shape[dim] for dim in turned_order("movedim", given, 4)]
    assert said == list(x.movedim([0, 3], [2, 0]).shape)
    assert turned_order("mT", {}, 4) == [0, 1, 3, 2]
