"""Changes of good files that must be refused, whatever else is asked: nobody can mean them."""

from __future__ import annotations

from typing import Any

from hostile_values import NUMBERS
from tree_changes import Path
from written_forms import Raw

NAN, INFINITY = Raw("NaN", "nan"), Raw("Infinity", "inf")
DIGITS = next(n for n in NUMBERS if isinstance(n, Raw) and len(n.json) == 5000)
NO_COUNT: tuple[Any, ...] = (0, -1, 1.5, "8", True, None, [], {}, NAN, INFINITY, DIGITS)

# Of a field that need not be there.
OPTIONAL = tuple(value for value in NO_COUNT if value is not None)

# A layer by its place in `good_files.convolutional`.
_CONV1, _CONV2, _JOIN, _WIDE, _DROP, _FC, _LOSS = (("layer", n) for n in (0, 3, 4, 6, 8, 10, 11))


def each(path: Path, *values: Any) -> list[tuple[Path, Any]]:
    """Each of some values at a place."""
    return [(path, value) for value in values]


NETWORK: list[tuple[Path, Any]] = [
    *each(("input", "channel"), *NO_COUNT),
    *each(("input", "height"), *NO_COUNT),
    *each(("input",), {}, [], None, {"channel": 0}, {"area": 3}, {"sequence": -4}),
    *each(("layer",), [], {}, None, "conv", [[]], [{}]),
    *each(("name",), 3, [], True),
    *each((*_CONV1, "filters"), *NO_COUNT),
    *each((*_CONV1, "kernel"), 0, -3, [], [3, 0], [3, 3, 3, 3], "big", 1.5, NAN, DIGITS),
    *each((*_CONV1, "stride"), 0, -1, [0, 1], 0.5),
    *each((*_CONV1, "padding"), -1, "samey", 0.5),
    *each((*_CONV1, "dilation"), 0, -1),
    *each((*_CONV1, "inputs"), [], ["nowhere"], ["conv1"], ["loss"], [3], "nowhere"),
    *each((*_CONV1, "kind"), "", "convolution", "Conv", 3, None, "\x1b]0;x\x07"),
    *each((*_CONV1, "name"), "", "input", "norm1", 3, None),
    *each((*_CONV1, "more"), 1),
    *each((*_CONV1, "share"), "conv1"),
    *each((*_JOIN, "inputs"), ["conv2"], [], ["conv2", "conv1", "input"], ["loss", "conv2"]),
    *each((*_WIDE, "groups"), 0, -1, 3, 1.5),
    *each((*_WIDE, "bias"), 3, "yes"),
    *each((*_DROP, "rate"), -0.1, 1.5, NAN, INFINITY, "half"),
    *each((*_FC, "filters"), *NO_COUNT),
    *each((*_FC, "share"), "fc", "nowhere", "conv1", 3),
    *each(("layer", 2, "function"), "", 3, "mystery", "<script>"),
    *each(("layer", 1, "statistics"), "global", 3),
    *each(("layer", 5, "kernel"), 0, -1, 999),
    *each(("layer", 5, "mode"), "least", 3),
    *each((*_CONV2, "kind"), "loss"),
    *each(("layer", 2), {"name": "relu1", "kind": "loss"}, {"name": "relu1"}, {}, 3),
    *each(("layer", 1, "inputs"), ["fc"], ["norm1"], ["conv1", "conv1"], ["input", "conv1"]),
    *each(("layer", 4, "inputs", 0), "relu1x", "", "loss", "join"),
]

# Of `good_files.repeated`.
_BLOCK, _INNER = ("layer", 1), ("layer", 1, "layer", 1)

BLOCKS: list[tuple[Path, Any]] = [
    *each((*_BLOCK, "repeat"), *NO_COUNT, 2**17, 2**63),
    *each((*_INNER, "repeat"), *NO_COUNT, 30_000),
    *each((*_BLOCK, "layer"), [], {}, None, "fc", [[]], [3]),
    *each((*_INNER, "layer"), [], {}, None, 3, [{"repeat": 2}]),
    *each((*_BLOCK, "name"), "", "input", "embedding", "a.b", 3, None),
    *each((*_INNER, "name"), "", "input", "norm", 3, None),
    *each((*_BLOCK, "inputs"), [], ["nowhere"], ["embedding", "embedding"], ["h"], 3, "embedding"),
    *each((*_BLOCK, "kind"), "linear"),
    *each((*_BLOCK, "more"), 1),
    *each((*_BLOCK, "layer", 2, "inputs"), ["in", "nowhere"], ["in", "join"], ["in", "loss"]),
    *each((*_INNER, "layer", 0, "share"), "fc", "nowhere", "join"),
    *each(("layer", 2, "inputs"), ["h.3.join"], ["h.-1.join"], ["h.0"], ["in"], ["h.0.in.2.fc"]),
]

_HOST, _NETWORK = ("levels", 0), ("levels", 1)
_NO_RATE = ("0 GB/s", "-1 GB/s", "nan GB/s", "inf GB/s", "5", "5 us", 5, None, "", "1e400 GB/s")
_NO_TIME = ("-1 us", "nan us", "inf s", "5 GB/s", "5", 5, None, "")

CLUSTER: list[tuple[Path, Any]] = [
    *each(("name",), 3, [], None),
    *each(("host_level",), "", "rack", 3),
    *each(("default_precision",), "", "fp16", "fp99", 3),
    *each(("levels",), [], {}, None, [{}]),
    *each((*_HOST, "size"), *NO_COUNT),
    *each((*_NETWORK, "size"), *NO_COUNT),
    *each((*_HOST, "name"), "network", 3, None),
    *each((*_HOST, "bandwidth"), *_NO_RATE),
    *each((*_NETWORK, "bandwidth"), *_NO_RATE),
    *each((*_HOST, "latency"), *_NO_TIME),
    *each((*_HOST, "start_latency"), *_NO_TIME[:-2]),
    *each((*_HOST, "links"), 0, -1, 1.5, "two"),
    *each((*_HOST, "ramp"), -1, NAN, INFINITY, "steep"),
    *each((*_HOST, "oversubscription"), 0, 0.5, -1, NAN, INFINITY),
    *each((*_HOST, "link"), "telepathy"),
    *each((*_HOST, "more"), 1),
    *each(("device",), {}, [], None, "telepathy", 3),
    *each(("device", "memory"), "0 GiB", "-1 GiB", "nan GiB", "inf GiB", "4", 4, "0.1 GiB"),
    *each(("device", "reserved_memory"), "-1 GiB", "4 GiB", "nan GiB"),
    *each(("device", "memory_bandwidth"), *_NO_RATE),
    *each(("device", "num_sms"), *NO_COUNT),
    *each(("device", "kernel_latency"), *_NO_TIME),
    *each(("device", "peak_flops"), {}, {"fp99": "1 TFLOP/s"}, {"fp32": "0 TFLOP/s"}, None),
    *each(("device", "peak_flops", "fp32"), "-1 TFLOP/s", "nan TFLOP/s", "1 GB/s", 1),
    *each(("device", "more"), 1),
]

_SCHEDULE, _STAGE, _LAYER, _PART = ("schedule",), ("stage", 0), ("layer", 0), ("subgraph", 1)

STRATEGY: list[tuple[Path, Any]] = [
    *each(("format",), "", "planner-plan", 3, None),
    *each(("gpus",), *OPTIONAL),
    *each(("global_batch_size",), *OPTIONAL),
    *each(("model",), "", "nowhere.toml", "telepathy", 3, "s\x1b]0;x\x07"),
    *each(("cluster",), "telepathy", 3),
    *each(("precision",), "fp99", 3, ""),
    *each(("default",), "telepathy", "", 3),
    *each((*_SCHEDULE, "kind"), "telepathy", "", 3),
    *each((*_SCHEDULE, "micro_batches"), *OPTIONAL),
    *each((*_SCHEDULE, "max_in_flight"), 0, -1, 1.5),
    *each((*_STAGE, "devices"), "", "1-0", "0-99", "-1", "0-1-2", "a", 3, "0-" + "9" * 5000),
    *each((*_STAGE, "layers"), [], ["nowhere"], "conv1", [3], [""]),
    *each((*_LAYER, "name"), "", "nowhere", 3, None),
    *each((*_LAYER, "partition"), {}, {"area": 2}, {"sample": 0}, {"sample": -2}, {"sample": 1.5}),
    *each((*_LAYER, "partition", "sample"), 3, 99, [0, 1], 2**63, DIGITS, "2", NAN),
    *each((*_PART, "zero"), -1, 4, 1.5, "1"),
    *each((*_PART, "weights"), "torn", 3),
    *each(("more",), 1),
]

_NO_TIME_SPENT = (-1.0, NAN, INFINITY, "1", None, -1e308)

PLAN: list[tuple[Path, Any]] = [
    *each(("format",), "", "planner-strategy", 3),
    *each(("gpus",), *NO_COUNT),
    *each(("global_batch_size",), *NO_COUNT),
    *each(("step_time_s",), *_NO_TIME_SPENT),
    *each(("breakdown_s", "compute"), *_NO_TIME_SPENT, 1e9),
    *each(("hidden_s", "gradient"), *_NO_TIME_SPENT),
    *each(("runtime",), "", 3, None),
    *each(("memory_bytes", "weights"), *_NO_TIME_SPENT),
    *each(("memory_capacity_bytes",), *_NO_TIME_SPENT),
    *each(("communication_bytes",), *_NO_TIME_SPENT),
    *each(("shape",), [], [0, 1], [-1], [999, 999], "4"),
    *each(("layers",), {}, None, [{}]),
    *each(("layers", 0, "forward_s"), *_NO_TIME_SPENT),
    *each(("layers", 0, "weights_bytes"), *_NO_TIME_SPENT),
    *each(("layers", 0, "degrees"), {"area": [2, 1]}, {"sample": [0, 1]}, {"sample": [-2, 1]}),
    *each(("search", "lower_bound_s"), NAN, "1"),
    *each(("search", "num_candidates"), -1, 1.5),
    *each(("training", "precision"), "fp99", 3),
    *each(("training", "bucket_bytes"), -1.0, NAN),
    *each(("training", "launch_time"), -1.0, NAN),
]

# Of what a plan of an own network, cluster and table carries; none of it has the hash any more.
_TAKEN, _MACHINE = ("carried", "network"), ("carried", "cluster")

CARRIED: list[tuple[Path, Any]] = [
    *each((*_TAKEN, "layers", 0, "options", "filters"), *NO_COUNT, 9),
    *each((*_TAKEN, "layers", 1, "name"), "", "conv1", "another", 3),
    *each((*_TAKEN, "layers", 1, "inputs"), [], ["norm1"], ["input"], 3),
    *each((*_TAKEN, "layers"), [], {}, "conv", [{}]),
    *each((*_TAKEN, "input_shape"), {}, {"channel": 3}, {"area": 3}, 3),
    *each(_TAKEN, {}, [], "resnet50", 3),
    *each((*_MACHINE, "levels", 0, "size"), *NO_COUNT, 8),
    *each((*_MACHINE, "levels", 0, "bandwidth"), 0.0, -1.0, NAN, INFINITY, 2e10 + 1, "2 GB/s"),
    *each((*_MACHINE, "levels"), [], {}, [{}], 3),
    *each((*_MACHINE, "device", "memory"), 0.0, -1.0, NAN, 1e9, "4 GiB"),
    *each((*_MACHINE, "device"), {}, [], "v100", 3),
    *each(_MACHINE, {}, [], "lassen", 3),
    *each(("carried", "tables"), {}, "table.csv", [3], [{}]),
    *each(("carried", "tables", 0, "text"), "", "a,b", "x" * 100_000, 3, None),
    *each(("carried",), [], "all", 3),
    *each(("hashes", "network"), "", "0" * 64, 3, None),
    *each(("hashes", "cluster"), "", "0" * 64, 3),
    *each(("hashes", "tables"), "", "0" * 64, None),
]

# Places of the row in `good_files.TABLE`, and what none of them may hold.
TABLE_FIELDS: dict[int, tuple[str, ...]] = {
    0: ("", "telepathy", "\x1b]0;x\x07"),
    1: ("", "sideways"),
    2: ("", "fp99"),
    3: ("0", "-1", "nan", "1.5", "x", "", "9" * 5000),
    4: ("0", "-1", "x", "9" * 5000),
    6: ("0x16", "x", "16x-1", "16xx16"),
    8: ("0x3", "x", "-1x3"),
    9: ("0x1", "x"),
    10: ("0", "-1", "x", "1.5"),
    11: ("0", "-1", "nan", "inf", "x", "", "1e999", "1e-999"),
}
