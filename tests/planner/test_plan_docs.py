"""The launchers that the documentation shows are run, and every field that it names is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch_extra

import planner
from planner.plan import LayerSharding, Mesh, Sharding, Shuffle, TensorPlacement

DOC = (Path(__file__).parents[2] / "docs" / "plan-files.md").read_text(encoding="utf-8")
LAUNCHERS = re.findall(r"```python\n(.*?)```", DOC, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    plan = planner.optimize("vgg16", gpus=64, cluster="abci", global_batch_size=2048, cap=16)
    plan.save(folder / "plan.json")
    return folder


def test_every_field_of_a_sharding_is_documented():
    for kind in (Sharding, LayerSharding, Mesh, Shuffle, TensorPlacement):
        for field in msgspec.inspect.type_info(kind).fields:
            assert f"`{field.name}`" in DOC, f"{kind.__name__}.{field.name}"


@pytest.mark.slow
def test_the_launcher_in_jax_names_the_axes_that_cut_each_dim(folder, monkeypatch):
    monkeypatch.chdir(folder)
    known: dict[str, object] = {}
    exec(LAUNCHERS[1], known)
    plan = planner.Plan.load("plan.json")
    specs = known["specs"]
    assert specs["conv1_1"][0] == (None, None, None, None)
    sizes = dict(zip(plan.mesh.names, plan.mesh.shape, strict=True))
    for name in plan.layers:
        for weight, spec in zip(plan.placements(name).weights, specs[name], strict=True):
            for extent, local, cut in zip(weight.shape, weight.local_shape, spec, strict=True):
                ways = 1
                for axis in cut or ():
                    ways *= sizes[axis]
                assert local == -(-extent // ways)
    assert any(cut for spec in specs["fc6"] for cut in spec)


@pytest.mark.slow
def test_the_launcher_in_pytorch_holds_the_blocks_that_the_plan_says(folder):
    torch_extra.require("torch")
    # a process group of one process that stands for the first of 64
    program = f"""
import json, os
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", rank=0, world_size=64, store=FakeStore())
{LAUNCHERS[0]}
print(json.dumps({{f"{{a}} {{b}}": list(w.to_local().shape) for (a, b), w in weights.items()}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    held = json.loads(done.stdout)
    plan = planner.Plan.load(folder / "plan.json")
    said = {
        f"{name} {weight.name}": list(weight.local_shape)
        for name in plan.layers
        for weight in plan.placements(name).weights
    }
    assert held == said
    assert any("Shard" in " ".join(w.placements) for w in plan.placements("fc6").weights)
