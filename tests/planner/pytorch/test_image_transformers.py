"""Transformers of images train under plans as one process does, and move what is charged."""

from __future__ import annotations

import pytest
import torch_extra

torch_extra.require("torch")

import image_transformers as images

import planner
from planner.torch.verify.verify import verify_plan


def verified(name, strategy, inputs="2,3,32,32"):
    plan = planner.evaluate(
        getattr(images, name),
        inputs=inputs,
        gpus=4,
        strategy=strategy,
        cluster="lassen",
        global_batch_size=8,
    )
    return verify_plan(plan, ranks=4, module=f"image_transformers:{name}")


# What is read through a copy, such as one token of all, is moved between the two layers where the
# plan says so.
@pytest.mark.parametrize(
    ("name", "strategy"),
    [("ClassToken", "megatron:tp=2,dp=2")],
)
def test_plans_of_images_train_as_one_process_does(name, strategy):
    assert verified(name, strategy).faults == []
