"""Groups of ranks end when the process group is destroyed, however long the module lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_extra

torch_extra.require("torch")

import planner

# A group that something else refers to keeps its threads, which may abort Python when it ends.
PROGRAM = """
import sys, weakref
sys.path[:0] = [{here!r}]
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import planner.torch
from {module} import {name}
dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
planned = planner.torch.apply({plan!r}, {name}())
if {steps}:
    x, target = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    planned.step(planned.local_batch(x), target=planned.local_batch(target, "target"))
groups = [weakref.ref(one) for one in dist.distributed_c10d._world.pg_map]
assert len(groups) > 1
dist.destroy_process_group()
assert not any(one() for one in groups), groups
{after}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "inputs", "strategy", "steps", "after"),
    [
        ("plain_models:VGG", (2, 3, 32, 32), "spatial", True, ""),
        (
            "small_transformers:Plain",
            "2,16:int64",
            "megatron:tp=2,pp=2,micro_batches=2",
            False,
            "planned._pipeline.ranks_ahead.now",
        ),
    ],
)
def test_no_group_outlives_the_process_group(model, inputs, strategy, steps, after, tmp_path):
    plan = planner.evaluate(
        model, inputs=inputs, gpus=4, strategy=strategy, cluster="lassen", global_batch_size=8
    )
    plan.save(tmp_path / "plan.json")
    module, _, name = model.partition(":")
    program = PROGRAM.format(
        here=str(Path(__file__).parent),
        module=module,
        name=name,
        plan=str(tmp_path / "plan.json"),
        steps=steps,
        after=after,
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if after:
        assert "must run before destroy_process_group is called" in done.stderr, done.stderr[-2000:]
    else:
        assert done.returncode == 0, done.stderr[-2000:]
