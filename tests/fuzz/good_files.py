"""Small files of every kind that the planner reads, all of them good."""

from __future__ import annotations

from typing import Any

from problem_files import small
from written_forms import Table

Tree = dict[str, Any]


def _layer(name: str, kind: str, *inputs: str, **options: Any) -> Tree:
    return {"name": name, "kind": kind, **({"inputs": list(inputs)} if inputs else {}), **options}


def convolutional() -> Tree:
    """Convolutions, a residual join and a classifier."""
    return {
        "name": "small-residual",
        "source": "an example",
        "input": {"channel": 3, "height": 16, "width": 16},
        "layer": [
            _layer("conv1", "conv", "input", filters=8, kernel=3, padding=1),
            _layer("norm1", "batch_norm"),
            _layer("relu1", "activation", function="relu"),
            _layer("conv2", "conv", filters=8, kernel=[3, 1], padding="same"),
            _layer("join", "add", "conv2", "relu1"),
            _layer("half", "pool", kernel=2, stride=2),
            _layer("wide", "conv", filters=16, kernel=1, groups=2, bias=True),
            _layer("both", "concat", "wide", "half"),
            _layer("drop", "dropout", rate=0.25),
            _layer("pool", "global_pool"),
            _layer("fc", "linear", filters=10),
            _layer("loss", "loss"),
        ],
    }


def transformer() -> Tree:
    """A block with attention, and a head that shares the weight of the embedding."""
    return {
        "name": "small-transformer",
        "input": {"sequence": 16},
        "layer": [
            _layer("embedding", "embedding", "input", rows=64, filters=16),
            _layer("norm", "layer_norm"),
            _layer("qkv", "linear", filters=48),
            _layer("attention", "attention", heads=4),
            _layer("project", "linear", filters=16),
            _layer("join", "add", "project", "embedding"),
            _layer("up", "linear", filters=32),
            _layer("gelu", "activation", function="gelu"),
            _layer("down", "linear", filters=16),
            _layer("head", "linear", filters=64, bias=False, share="embedding"),
            _layer("loss", "loss"),
        ],
    }


def volume() -> Tree:
    """Three spatial dims, up and down again."""
    return {
        "name": "small-volume",
        "input": {"channel": 1, "depth": 8, "height": 8, "width": 8},
        "layer": [
            _layer("conv1", "conv", "input", filters=4, kernel=3, padding="same"),
            _layer("down", "conv", filters=8, kernel=2, stride=2),
            _layer("up", "conv", filters=4, kernel=2, stride=2, transposed=True),
            _layer("join", "concat", "up", "conv1"),
            _layer("loss", "loss"),
        ],
    }


def repeated() -> Tree:
    """Blocks in blocks, and layers around them."""
    inner = {"name": "in", "repeat": 2, "layer": [_layer("fc", "linear", filters=8)]}
    block = [_layer("norm", "layer_norm"), inner, _layer("join", "add", "in", "input")]
    return {
        "name": "small-blocks",
        "input": {"sequence": 16},
        "layer": [
            _layer("embedding", "embedding", "input", rows=64, filters=8),
            {"name": "h", "repeat": 3, "inputs": ["embedding"], "layer": block},
            _layer("head", "linear", "h", filters=64, share="embedding", bias=False),
            _layer("loss", "loss"),
        ],
    }


NETWORKS = (convolutional, transformer, volume, repeated)
REPEATED = NETWORKS.index(repeated)


def cluster() -> Tree:
    """Four hosts of four devices."""
    level = {"links": 1, "start_latency": "5 us", "ramp": 0.9, "oversubscription": 1.0}
    return {
        "name": "small-cluster",
        "description": "four hosts of four",
        "host_level": "host",
        "default_precision": "fp32",
        "device": {
            "name": "small-device",
            "memory": "4 GiB",
            "reserved_memory": "0.5 GiB",
            "peak_flops": {"fp32": "10 TFLOP/s", "bf16": "40 TFLOP/s"},
            "memory_bandwidth": "0.5 TB/s",
            "num_sms": 40,
            "kernel_latency": "6 us",
        },
        "levels": [
            {"name": "host", "size": 4, "latency": "3 us", "bandwidth": "20 GB/s", **level},
            {"name": "network", "size": 4, "latency": "9 us", "bandwidth": "10 GB/s", **level},
        ],
    }


def referring_cluster() -> Tree:
    """Built-in devices and links by their names."""
    whole = cluster()
    own = {"latency": "9 us", "nominal_bandwidth": "25 GB/s", "efficiency": 0.8}
    levels = [
        {"name": "host", "size": 4, "link": "nvlink2", "links": 3, "peer_links": 3},
        {"name": "rack", "size": 2, "link": "infiniband-edr", "links": 2, "oversubscription": 2},
        {"name": "network", "size": 2, **own, "group_links": 1},
    ]
    levels[2] |= {"in_network_latency": "5 us", "in_network_bandwidth": "10 GB/s"}
    levels[2] |= {"send_recv_latency": "7 us", "send_recv_bandwidth": "8 GB/s"}
    levels[2] |= {"one_way_bandwidth": "30 GB/s"}
    return {**whole, "device": "v100-16gb", "levels": levels}


CLUSTERS = (cluster, referring_cluster)


def strategy(network: str = "network.toml") -> Tree:
    """Two stages of the convolutional network."""
    return {
        "format": "planner-strategy",
        "model": network,
        "cluster": "lassen",
        "gpus": 4,
        "global_batch_size": 16,
        "precision": "fp32",
        "schedule": {"kind": "1f1b", "micro_batches": 2},
        "stage": [
            {"layers": ["conv*", "norm1", "relu1", "join", "half"], "devices": "0-1"},
            {"layers": ["wide", "both", "drop", "pool", "fc", "loss"], "devices": "2-3"},
        ],
        "layer": [
            {"name": "conv1", "partition": {"sample": 2}},
            {"name": "conv2", "partition": {"height": 2}},
            {"name": "fc", "partition": {"sample": 1, "filter": 2}},
        ],
        "subgraph": [{"name": "conv*", "recompute": True}, {"name": "fc", "zero": 1}],
    }


TABLE = """\
# device = v100
# date = 2026-01-01
operation,direction,precision,samples,channels,filters,in_extents,out_extents,kernel,stride,groups,seconds
conv,forward,fp32,4,3,8,16x16,16x16,3x3,1x1,1,0.0001
conv,forward,fp32,8,3,8,16x16,16x16,3x3,1x1,1,0.0002
conv,backward_data,fp32,4,3,8,16x16,16x16,3x3,1x1,1,0.0002
linear,forward,fp32,4,24,10,,,,,1,0.00001
"""


def problem() -> Tree:
    """A problem of three nodes in the form of the contest."""
    return small()


def network(make: int = 0, form: str = "toml") -> Table:
    """One of the networks, as a file."""
    return Table(NETWORKS[make](), form)
