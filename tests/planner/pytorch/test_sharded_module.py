"""What `planner export --to fsdp2` writes makes DTensors of the weights of a real module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_extra

torch_extra.require("torch")

import plain_models as plain

import planner
from planner.report.frameworks import export_plan

PROGRAM = """
import json, sys
sys.path[:0] = [{here!r}, {out!r}]
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size={ranks}, store=FakeStore())
import sharded
import plain_models
model = sharded.shard(plain_models.VGG(), sharded.device_mesh("cpu"))
print(json.dumps({{name: list(one.to_local().shape) for name, one in model.named_parameters()}}))
"""


def test_weights_are_the_blocks_of_the_plan(tmp_path):
    here = Path(__file__).parent
    plan = planner.evaluate(
        plain.VGG,
        inputs=(2, 3, 32, 32),
        gpus=4,
        strategy="data+filter",
        degree=2,
        cluster="lassen",
        global_batch_size=8,
    )
    export_plan(plan, "fsdp2", tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(here=str(here), out=str(tmp_path), ranks=4)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    held = json.loads(done.stdout)
    said = {
        f"{name}.{weight.name}": list(weight.local_shape)
        for name in plan.layers
        for weight in plan.placements(name).weights
    }
    assert held == said
    whole = {name: list(one.shape) for name, one in plain.VGG().named_parameters()}
    assert set(held) == set(whole)
    assert held != whole


NORMS = """
import sys
sys.path[:0] = [{here!r}, {out!r}]
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
import sharded
import plain_models
mesh = sharded.device_mesh("cpu")
model = sharded.shard(plain_models.ResNet50(), mesh)
samples = DTensor.from_local(torch.randn(2, 64, 8, 8), mesh, [Shard(0)])
model.bn1(samples).sum().backward()
"""


@pytest.mark.slow
def test_batch_norms_run_with_statistics_that_are_cut_as_their_weights_are(tmp_path):
    """They were left whole, and DTensor refuses to mix them: NOTES.md said nothing was missing."""
    plan = planner.evaluate(
        plain.ResNet50,
        inputs=(2, 3, 32, 32),
        gpus=2,
        strategy="data",
        cluster="lassen",
        global_batch_size=4,
    )
    _, cannot = export_plan(plan, "fsdp2", tmp_path)
    assert any("batch norms" in sentence for sentence in cannot)
    program = NORMS.format(here=str(Path(__file__).parent), out=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
