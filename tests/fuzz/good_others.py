"""Good studies, networks of ONNX, profiles, and what a job's environment says of its machine."""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any

import good_configs
import good_files
from hostile_values import CONTROLS, MARKUP

Tree = dict[str, Any]


def study() -> Tree:
    """Two questions, and a third one by a range."""
    network = {"model": "network.toml", "gpus": [2, 4], "precision": "fp32"}
    ranged = {
        "model": ["alexnet"],
        "gpus": {"from": 4, "to": 4, "factor": 2},
        "memory": "4 GiB",
        "cluster": "lassen",
    }
    return {"name": "small-study", "grid": [network, ranged]}


def mixed_cluster() -> Tree:
    """Two kinds of hosts."""
    old = {"name": "host", "latency": "4 us", "bandwidth": "10 GB/s", "links": 1}
    groups = [
        {"name": "new", "hosts": 2, "device": "a100-80gb"},
        {"name": "old", "hosts": 2, "levels": [old]},
    ]
    return {**good_files.cluster(), "name": "small-mixed", "groups": groups}


@cache
def onnx_bytes() -> bytes:
    """A convolution, its norm, a residual join and a classifier."""
    from onnx import TensorProto, helper

    def tensor(name: str, *extents: int) -> TensorProto:
        values = [0.1] * math.prod(extents)
        return helper.make_tensor(name, TensorProto.FLOAT, extents, values)

    weights = [
        tensor("w", 8, 3, 3, 3),
        *(tensor(name, 8) for name in ("scale", "bias", "mean", "var")),
        tensor("fc", 8, 10),
        helper.make_tensor("flat", TensorProto.INT64, [2], [0, -1]),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1] * 4, strides=[1, 1]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"], name="/body/relu"),
        helper.make_node("Add", ["r", "c"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["p"]),
        helper.make_node("Reshape", ["p", "flat"], ["q"]),
        helper.make_node("MatMul", ["q", "fc"], ["y"]),
    ]
    read = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 16, 16])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])
    graph = helper.make_graph(nodes, "small", [read], [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    data: bytes = model.SerializeToString()
    return data


def profile() -> Tree:
    """A profile of this machine to go on with."""
    from planner.tables.profile.place import find_place

    columns, *rows = good_files.TABLE.split("\n")[2:-1]
    return {
        "format": "planner-table",
        "provenance": dict(find_place("cpu", 1).provenance),
        "columns": [*columns.split(","), "spread"],
        "rows": [[*good_configs.cells(row), 0.1] for row in rows],
        "left_out": {"columns": [], "rows": []},
    }


GPUS = "NVIDIA A100-SXM4-80GB, 81920, 4\n" * 4
TOPOLOGY = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNV12\tNV12\tPXB\t0-63\t0
GPU1\tNV12\t X \tNV12\tNV12\tPXB\t0-63\t0
GPU2\tNV12\tNV12\t X \tNV12\tSYS\t64-127\t1
GPU3\tNV12\tNV12\tNV12\t X \tSYS\t64-127\t1
NIC0\tPXB\tPXB\tSYS\tSYS\t X \t\t
"""
NVIDIA_SMI = b'#!/bin/sh\ncase "$1" in topo) cat topology.txt ;; *) cat gpus.csv ;; esac\n'

_HOSTS = ("a[01-03,7],b2", "a[1-4]", "a", "a,b", f"a[1-{'9' * 5000}]", "a[[1]]", "]a[", "a[3-1]")
_COUNTS = ("1", "2", "4", "8", "0", "-1", "x", "", " 4 ", "9" * 5000, "999999999", "٤", "1e3")
_SHARES = (
    "4",
    "a100:4",
    "gpu:v100:2",
    "a100:2,v100:2",
    "0",
    "gres:gpu:4(IDX:0-3)",
    "hats:",
    "h100",
)

# What SLURM and torchrun say of a job, and values for it.
_VARIABLES: dict[str, tuple[str, ...]] = {
    "WORLD_SIZE": _COUNTS,
    "LOCAL_WORLD_SIZE": _COUNTS,
    "SLURM_JOB_ID": ("1", ""),
    "SLURM_JOB_NUM_NODES": _COUNTS,
    "SLURM_JOB_NODELIST": _HOSTS,
    "SLURM_GPUS_ON_NODE": _COUNTS,
    "SLURM_GPUS_PER_NODE": (*_SHARES, *_COUNTS),
    "SLURM_GPUS": (*_SHARES, *_COUNTS),
    "CUDA_VISIBLE_DEVICES": ("0,1", "", "7", "x", "9" * 5000),
    "PET_NNODES": ("1", "1:4", "x", "", "0", "-1", "9" * 5000),
}


def environment(rng: random.Random) -> dict[str, str]:
    """What a job may say of itself, right or not."""
    likely = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}
    found = likely if rng.random() < 0.5 else {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
    for name in rng.sample(sorted(_VARIABLES), rng.choice((1, 1, 2, 4))):
        values = _VARIABLES[name]
        found[name] = rng.choice(values)
        if rng.random() < 0.2:
            odd = rng.choice((*CONTROLS, *MARKUP)).replace("\0", "")
            found[name] = rng.choice((odd, odd + rng.choice(values)))
    return found
