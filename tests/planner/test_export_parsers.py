"""What is exported, read by the frameworks themselves.

accelerate and JAX are of the extra `[dev]`. The others are heavy, and their tests are run by hand:

    DS_BUILD_OPS=0 pip install deepspeed==0.19.8 triton tyro datasets
    pip install --no-deps torchtitan==0.2.2
    pytest -m slow tests/planner/test_export_parsers.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch_extra

import planner
from planner.plan import Plan
from planner.report.frameworks import export_plan

QUESTION = {"cluster": "dgx-a100", "precision": "bf16", "optimizer": "adam"}


def written(plan: Plan, framework: str, folder: Path, name: str) -> Path:
    export_plan(plan, framework, folder)
    return folder / name


def evaluated(strategy: str) -> Plan:
    return planner.evaluate("gpt2", gpus=8, strategy=strategy, global_batch_size=32, **QUESTION)


@pytest.mark.parametrize(("strategy", "cut"), [("fsdp", True), ("data", False)])
def test_accelerate_reads_its_configuration(strategy, cut, tmp_path):
    torch_extra.require("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = str(written(evaluated(strategy), "accelerate", tmp_path, "accelerate.yaml"))
    config = load_config_from_file(path)
    assert config.num_processes == 8
    words = ["--config_file", path, "train.py"]
    launched, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert (launched.use_fsdp, launched.multi_gpu) == (cut, not cut)
    assert (launched.num_processes, launched.mixed_precision) == (8, "bf16")
    if cut:
        assert launched.fsdp_version == 2
        assert launched.fsdp_reshard_after_forward is True


PROGRAM = """
import json, runpy, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
known = runpy.run_path(sys.argv[1])
mesh = known["device_mesh"]()
rows = json.load(open(sys.argv[2]))
for kind, name, key, shape, local in rows:
    spec = known[kind][name][key] if kind == "WEIGHTS" else known[kind][name]["output"]
    placed = known["sharding"](mesh, spec)
    assert placed.shard_shape(tuple(shape)) == tuple(local), (name, key, shape, local)
    if kind == "WEIGHTS" and np.prod(shape) < 1e6:
        array = jax.device_put(np.zeros(shape, np.float32), placed)
        blocks = {one.data.shape for one in array.addressable_shards}
        assert blocks == {tuple(local)}, (name, blocks, local)
# a convolution over positions that are split: XLA exchanges the halos
x = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
w = np.random.default_rng(1).normal(size=(4, 3, 3, 3)).astype(np.float32)
conv = jax.jit(lambda x: jax.lax.conv(x, w, (1, 1), "SAME"))
split = jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, None, mesh.axis_names[0])))
assert np.allclose(conv(split), conv(x), atol=1e-4)
print(len(rows), mesh.size)
"""


@pytest.mark.slow
def test_jax_places_arrays_as_the_plan_says(tmp_path):
    torch_extra.require("jax")
    plan = planner.optimize(
        "vgg16", gpus=8, cluster="dgx-a100", framework="jax", global_batch_size=16
    )
    assert len({str(layer.distribution) for layer in plan.layers.values()}) > 3
    rows = []
    for name in plan.layers:
        placed = plan.placements(name)
        rows += [("WEIGHTS", name, w.name, w.shape, w.local_shape) for w in placed.weights]
        rows.append(("ACTIVATIONS", name, "", placed.output.shape, placed.output.local_shape))
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    path = written(plan, "jax", tmp_path, "sharded.py")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "rows.json")],
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(len(rows)), "8"]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "stage"), [("data", 0), ("zero1", 1), ("fsdp", 3)])
def test_deepspeed_reads_its_configuration(strategy, stage, tmp_path, monkeypatch):
    config = pytest.importorskip("deepspeed.runtime.config")
    path = written(evaluated(strategy), "deepspeed", tmp_path, "deepspeed.json")
    monkeypatch.setattr(config.dist, "get_rank", lambda *_: 0)
    monkeypatch.setattr(config.dist, "get_world_size", lambda *_: 8)
    monkeypatch.setenv("WORLD_SIZE", "8")
    found = config.DeepSpeedConfig(json.loads(path.read_text()))
    assert found.zero_optimization_stage == stage
    assert found.train_batch_size == 32
    assert found.train_micro_batch_size_per_gpu * found.gradient_accumulation_steps == 4
    assert found.bfloat16_config.enabled


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "megatron:tp=2,pp=2,dp=2", "data"])
def test_torchtitan_reads_its_job_file(strategy, tmp_path):
    config = pytest.importorskip("torchtitan.config")
    plan = evaluated(strategy)
    path = written(plan, "torchtitan", tmp_path, "job.toml")
    found = config.ConfigManager().parse_args(["--job.config_file", str(path)])
    of = found.parallelism
    ranks = of.data_parallel_replicate_degree * of.data_parallel_shard_degree
    ranks *= of.tensor_parallel_degree * of.pipeline_parallel_degree * of.context_parallel_degree
    assert ranks == 8
    assert found.training.global_batch_size == 32
    assert found.activation_checkpoint.mode == "none"
