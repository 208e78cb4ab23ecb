"""Changes that keep a file readable but stretch it: typed well, absurd, and so costed and shown."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from hostile_values import any_text
from tree_changes import Path, brief, get, paths, put, told
from written_forms import Raw

_EXTENTS = (1, 2, 3, 7, 64, 1000, 10**4, 10**6)
_WIDTHS = (1, 2, 3, 16, 48, 64, 10**4, 10**6, 2**31)
_TIMES = ("0 s", "1e-320 s", "1e-30 s", "1 ns", "5 s", "1e9 s", "1e30 s", "1e308 s")
_RATES = ("1e-300 GB/s", "1e-30 GB/s", "1e-9 GB/s", "1 GB/s", "1e9 GB/s", "1e30 GB/s", "1e290 GB/s")
_SIZES = ("1 B", "0.6 GiB", "1 GiB", "1e9 GiB", "1e290 GiB")
_SECONDS = (0.0, Raw("1e-320", "0"), 1e-30, 1e-6, 1.0, 1e9, 1e300, Raw("1e308", "0"))

# Last key of a place: values for it. Where a value is None, the place is dropped.
_VALUES: dict[str, dict[str, tuple[Any, ...]]] = {
    "network": {
        "channel": (1, 2, 3, 10**4, 10**6),
        "height": _EXTENTS,
        "width": _EXTENTS,
        "depth": _EXTENTS,
        "sequence": (*_EXTENTS, 2**31),
        "filters": _WIDTHS,
        "kernel": (1, 2, 3, 5, [1, 3], [3, 1], 15, 10**6),
        "stride": (1, 2, 3, 10**6),
        "padding": (0, 1, 7, "same", 10**6),
        "groups": (1, 2, 4, 8),
        "rate": (0, 0.0, 0.5, 0.999999),
        "heads": (1, 2, 16, 48),
        "rows": (1, 2, 10**9, 2**40),
        "bias": (True, False),
        "share": ("", "embedding", "project", None),
        "function": ("relu", "gelu", "tanh", "sigmoid", "leaky_relu", "silu"),
        "inputs": (None, ["input"], ["conv1"], ["conv1", "relu1"], ["embedding"]),
        "kind": ("layer_norm", "softmax", "activation", "batch_norm", "loss", "global_pool"),
        "source": ("",),
    },
    "cluster": {
        "size": (1, 2, 3, 4, 7, 1000, 10**6, 2**31, 2**40),
        "latency": _TIMES,
        "start_latency": _TIMES,
        "kernel_latency": _TIMES,
        "bandwidth": _RATES,
        "memory_bandwidth": _RATES,
        "links": (1, 2, 7, 10**6, 2**31),
        "ramp": (0.001, 0.5, 1.0, 2.0),
        "oversubscription": (1.0, 4, 1e9, 1e300),
        "memory": _SIZES,
        "reserved_memory": ("0 B", "3.9 GiB", None),
        "num_sms": (1, 7, 10**6, 2**31),
        "fp32": ("1e-300 FLOP/s", "1 FLOP/s", "1e30 TFLOP/s", "1e290 TFLOP/s"),
        "bf16": ("1 FLOP/s", "1e30 TFLOP/s"),
        "host_level": ("host", "network"),
        "hosts": (1, 2, 3, 10**6, 2**31),
        "device": ("a100-80gb", "v100-16gb", "k80"),
        "groups": ([], None),
    },
    "strategy": {
        "kind": ("gpipe", "1f1b", "interleaved", "zero-bubble", None),
        "micro_batches": (1, 2, 3, 4, 8, 16, 2**31),
        "max_in_flight": (1, 2, 100),
        "global_batch_size": (1, 2, 8, 32, 10**6, 2**31, 2**53),
        "gpus": (1, 2, 4, 8),
        "cluster": ("abci", "dgx-a100", "titanxp-pcie", None),
        "precision": ("fp16", None),
        "devices": ("0-1", "2-3", "0", "1-3", "0-3", None),
        "sample": (1, 2, 4, [2, 1], [1, 2]),
        "filter": (1, 2, 4),
        "height": (1, 2, 4, 16),
        "zero": (0, 1, 2, 3),
        "recompute": (True, False),
        "name": ("*", "conv?", "fc", "loss", "norm1", "join"),
        "stage": (None,),
        "subgraph": (None,),
    },
    "config": {
        "hidden_size": _WIDTHS,
        "num_hidden_layers": (1, 2, 3, 60),
        "num_attention_heads": (1, 2, 4, 64, 10**4),
        "num_key_value_heads": (0, 1, 4, None),
        "head_dim": (None, 0, 1, 3, 2**31),
        "vocab_size": (1, 2, 10**9, 2**40),
        "intermediate_size": (0, *_WIDTHS),
        "max_position_embeddings": (1, 7, 8192, 2**31, 2**63, None),
        "num_local_experts": (0, 1, 2, 3, 64, 10**6),
        "num_experts_per_tok": (1, 2, 4, None),
        "sliding_window": (0, 1, 2**31, None),
        "hidden_act": ("gelu", "relu", "swish", "gelu_new", None),
        "model_type": ("llama", "mistral", "mixtral", "gpt2", "bert", "t5", "vit", "qwen3"),
        "tie_word_embeddings": (True, False, None),
        "n_embd": _WIDTHS,
        "n_head": (1, 2, 64),
        "n_positions": (1, 2**31, None),
        "image_size": (1, 7, 8, 10**4),
        "patch_size": (0, 1, 3, 8, 10**4),
        "num_channels": (1, 10**6),
        "d_kv": (1, 3, 2**31),
        "num_decoder_layers": (0, 1, 50, None),
        "feed_forward_proj": ("relu", "gated-silu", "", "gated-", "mystery"),
        "id2label": ({}, None, {"0": "cat"}),
        "_name_or_path": ("", "/", "a/b", 3, None),
    },
    "runtime": {
        "launch_time": ("0 s", "1 us", "1 s", "1e-320 s"),
        "cycle": ("0 s", "1 us", "60 s"),
        "bucket": ("1 B", "1 KiB", "1e17 B"),
        "first_bucket": ("1 B", "1e17 B"),
        "fusion": ("1 B", "1e17 B"),
        "negotiation_base": ("0 s", "60 s"),
    },
    "plan": {
        **{
            f"{what}_s": _SECONDS
            for what in (
                "forward",
                "backward",
                "update",
                "halo",
                "shuffle",
                "gradient",
                "step_time",
            )
        },
        **{f"{what}_bytes": _SECONDS for what in ("weights", "saved", "output", "communication")},
        "lower_bound_s": (*_SECONDS, -1.0),
        "gap": _SECONDS,
        "status": ("feasible", "optimal", "none"),
        "stopped_by": ("", "interrupt", "time limit"),
        "fits": (True, False),
        "peak_memory_bytes": _SECONDS,
        "memory_capacity_bytes": _SECONDS,
        "baselines": ([],),
        "provenance": ({},),
        "global_batch_size": (1, 7, 2**31, 2**63, 10**30),
        "degrees": ({}, {"sample": [2, 1]}, {"sample": [4, 1]}, {"filter": [4, 1]}),
        "cap": (1, 2**31, 2**63),
        "version": (1, 2, 3),
        "micro_batches": (1, 2, 4, 64, 2**31, 2**53),
        "max_in_flight": (1, 2, 2**63),
        "first_device": (0, 1, 2),
        "sharded": ([], ["state"], ["state", "gradients"], ["weights"]),
        "shard_size": (None, 2, 4),
        "gather_again": (True, False),
        "ring_attention": (True, False),
        "recompute": ([], [["norm"]], [["layers.0.attn"], ["layers.0.attn"]]),
        "kind": ("gpipe", "1f1b", "interleaved", "zero-bubble"),
    },
}
_TEXTS = ("name", "description", "reason", "model", "source", "kind", "memory_moment", "solver")


def stretch(kind: str, tree: Any, rng: random.Random) -> str:
    """Change a value to another one of its type.

    Parameters
    ----------
    kind
        What the tree is a file of.
    tree
        Changed in place.
    rng
        Says what and where.
    """
    ways: list[Callable[[Any, random.Random], str]] = [lambda t, r: _value(kind, t, r), _renamed]
    if kind in ("network", "plan", "strategy"):
        ways.append(_longer if kind == "network" else _texts)
    return rng.choices(ways, (8, 2, 1)[: len(ways)])[0](tree, rng)


def _value(kind: str, tree: Any, rng: random.Random) -> str:
    values = _VALUES[kind]
    places = [path for path in paths(tree) if path[-1] in values]
    keys = sorted({str(path[-1]) for path in places})
    if not keys:
        return "nothing to stretch"
    key = rng.choice(keys)
    path = rng.choice([path for path in places if path[-1] == key])
    value = copy.deepcopy(rng.choice(values[key]))
    if value is None:
        del get(tree, path[:-1])[key]
    else:
        put(tree, path, value)
    return f"{told(path)} = {brief(value)}"


def _texts(tree: Any, rng: random.Random) -> str:
    """Another text where any will do."""
    places: list[Path] = [p for p in paths(tree) if isinstance(get(tree, p), str)]
    places = [p for p in places if p[-1] in _TEXTS or "provenance" in p] or places
    path = rng.choice(places)
    put(tree, path, any_text(rng))
    return f"{told(path)} = {brief(get(tree, path))}"


def _renamed(tree: Any, rng: random.Random) -> str:
    """Another name, and so wherever it is spoken of."""
    names = [get(tree, path) for path in paths(tree) if path[-1] == "name"]
    if not names:
        return "no name left"
    old, new = rng.choice(names), any_text(rng)
    for path in list(paths(tree)):
        if get(tree, path) == old:
            put(tree, path, new)
    return f"{brief(old)} is called {brief(new)}"


def _longer(tree: Any, rng: random.Random) -> str:
    """Many layers more before the last one."""
    layers = tree.get("layer")
    if not isinstance(layers, list) or not layers:
        return "no layers left"
    number = rng.choice((1, 10, 60))
    at = rng.randrange(len(layers))
    new = [{"name": f"more.{at}.{n}", "kind": "activation"} for n in range(number)]
    layers[at:at] = new
    return f"{number} layers more before {at}"
