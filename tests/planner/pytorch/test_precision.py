"""What a module casts to single precision is verified in double precision."""

from __future__ import annotations

import pytest
import torch_extra

torch_extra.require("torch")

import single_precision
import torch

import planner
from planner.torch.verify.precision import all_in_double
from planner.torch.verify.reference import norms_by_samples
from planner.torch.verify.verify import verify_plan


def test_whatever_asks_for_a_type_gets_doubles():
    x = torch.arange(3, dtype=torch.int64)
    with all_in_double():
        found = [x.float(), x.to(torch.bfloat16), torch.ones(2, dtype=torch.float32), x.half()]
        found += [torch.softmax(x.double(), 0, torch.float32), torch.zeros(2, dtype=torch.float16)]
        assert x.to(torch.int32).dtype == torch.int32
    assert {one.dtype for one in found} == {torch.float64}
    assert x.float().dtype == torch.float32


@pytest.mark.parametrize(
    ("module", "inputs", "strategy"),
    [("words", "2,16:int64", "megatron:dp=2"), ("images", "2,3,8,8", "spatial")],
)
def test_sums_in_another_order_are_no_fault(module, inputs, strategy):
    plan = planner.evaluate(
        getattr(single_precision, module),
        inputs=inputs,
        gpus=2,
        strategy=strategy,
        cluster="dgx-a100",
        global_batch_size=4,
    )
    found = verify_plan(plan, ranks=2, module=f"single_precision:{module}", steps=1)
    assert found.faults == []


def test_norms_of_a_part_of_the_samples_are_computed_once_each():
    norm = torch.nn.BatchNorm2d(3).double()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    with norms_by_samples([2]), all_in_double():
        found = norm(x)
    said = torch.cat([torch.nn.BatchNorm2d(3).double()(part) for part in x.chunk(2)])
    assert torch.allclose(found, said, rtol=0, atol=1e-12)
