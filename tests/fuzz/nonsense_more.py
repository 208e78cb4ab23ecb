"""Changes of configs, plans with stages and runtimes that must be refused."""

from __future__ import annotations

from typing import Any

from nonsense import DIGITS, INFINITY, NAN, NO_COUNT, OPTIONAL, each
from tree_changes import Path

# Of `good_configs.llama`.
CONFIG: list[tuple[Path, Any]] = [
    *each(("model_type",), "", "nothing", 3, [], None, "llama\x1b]0;x\x07", "LLAMA"),
    *each(("hidden_size",), *NO_COUNT),
    *each(("num_hidden_layers",), *NO_COUNT, 4097, 2**31, 2**63),
    *each(("num_attention_heads",), *NO_COUNT, 3, 5),
    *each(("vocab_size",), *NO_COUNT),
    *each(("intermediate_size",), *(value for value in NO_COUNT if value != 0)),
    *each(("max_position_embeddings",), *OPTIONAL),
    *each(("num_key_value_heads",), -1, 1.5, "2", 3, [], NAN, INFINITY, DIGITS),
    *each(("head_dim",), -1, 1.5, "16", [], NAN, DIGITS),
    *each(("hidden_act",), 3, [], "", "mystery", "<script>", "a\x1b]0;x\x07"),
    *each(("tie_word_embeddings",), 3, "yes", []),
]

# Of a plan with stages that `good_configs.llama` gets.
_FIRST, _LAYER = ("stages", 0), ("layers", 1)

STAGED: list[tuple[Path, Any]] = [
    *each(("version",), 0, 5, -1, "3", 1, [], NAN, None, DIGITS),
    *each(("stages",), [], {}, "two", [{}], [3]),
    *each((*_FIRST, "layers"), [], ["nowhere"], "norm", [3], None),
    *each((*_FIRST, "first_device"), -1, 1, 2, 99, 1.5, "0", None, 2**63, DIGITS),
    *each((*_FIRST, "shape"), [], [1], [3, 1], [0, 1], [-2, 1], [99, 1], "2", None, [2**31, 1]),
    *each((*_FIRST, "recompute"), [["nowhere"]], [[3]], "all", 3),
    *each(("schedule",), [], "1f1b", 3),
    *each(("schedule", "kind"), "", "telepathy", 3),
    *each(("schedule", "micro_batches"), *OPTIONAL, 3),
    *each(("schedule", "max_in_flight"), 0, -1, 1.5, "1", [], NAN, DIGITS),
    *each(("gather_again",), 3, "yes", []),
    *each(("ring_attention",), 3, "yes", []),
    *each((*_LAYER, "sharded"), ["hats"], "state", [3], 3, ["state", "hats"]),
    *each((*_LAYER, "shard_size"), 0, 1, -2, 99, 1.5, "2", DIGITS),
    *each((*_LAYER, "shape"), [], [4, 1], [0, 1], [1, 2, 1], None),
    *each(("search", "num_choices"), -1, 1.5, "3", DIGITS),
]

_MINE = ("mine",)
_NO_AMOUNT = (5, None, "", "5", "-1 us", "nan us", "inf s", "1e400 s", "5 hats", DIGITS)

RUNTIME: list[tuple[Path, Any]] = [
    *each(_MINE, 3, "ddp", []),
    *each((*_MINE, "launch_time"), *_NO_AMOUNT[:1], *_NO_AMOUNT[2:], "5 s", "1 MiB"),
    *each((*_MINE, "cycle"), *_NO_AMOUNT[:1], *_NO_AMOUNT[2:], "100 s"),
    *each((*_MINE, "bucket"), "0 MiB", "-1 MiB", "nan MiB", 5, "1e300 TiB", "5 us"),
    *each((*_MINE, "fusion"), "0 MiB", "-1 MiB", "inf MiB", 5),
    *each((*_MINE, "gradient"), "", "telepathy", 3),
    *each((*_MINE, "shard"), ["hats"], "state", 3),
    *each((*_MINE, "fuses"), ["hats"], 3),
    *each((*_MINE, "fuses_in"), ["fp99"], 3),
    *each((*_MINE, "servers"), -1, 1.5, "2", 2**31, DIGITS),
    *each((*_MINE, "overlap"), 3, "yes"),
    *each((*_MINE, "recipe"), "telepathy", 3),
    *each((*_MINE, "title"), 3),
    *each((*_MINE, "more"), 1),
    *each(("another",), {"launch_time": "3 us"}, 3),
]

# For any figure of a table or log that others made; some of them are fine.
CELLS = (
    *("", "0", "-1", "1.5", "nan", "inf", "x", "1e308", "1e-320", "1e400", "1.2.3", "٣", "1e18"),
    *(f"{2**63}", "9" * 5000, "\x1b]0;x\x07", "<script>", "1,2", '"', "0.5", "1_0", " 7"),
)

# Of `good_others.study`.
_GRID, _RANGED = ("grid", 0), ("grid", 1)

STUDY: list[tuple[Path, Any]] = [
    *each(("name",), "", 3, [], "a\nb", "x" * 300),
    *each(("grid",), [], {}, 3, [3], [{}]),
    *each(("more",), 1),
    *each((*_GRID, "hats"), 1),
    *each((*_GRID, "gpus"), [], {}, None, ["x"], [1.5], [NAN], [[2]], [2, DIGITS]),
    *each((*_GRID, "gpus"), {"from": 2, "to": 4}, {"from": 4, "to": 2, "step": 1}),
    *each((*_GRID, "model"), [], None, 3, [3], [""], {"from": 1, "to": 2, "step": 1}),
    *each((*_RANGED, "gpus", "from"), "4", 0, -1, NAN, INFINITY, DIGITS, None),
    *each((*_RANGED, "gpus", "to"), "4", 1, 2, NAN, INFINITY, DIGITS, 10**400, None),
    *each((*_RANGED, "gpus", "factor"), 0, 1, -2, 1.0, "2", NAN, INFINITY, None),
    *each((*_RANGED, "gpus"), {"from": 1, "to": 1e308, "factor": 1e200}),
    *each((*_RANGED, "memory"), "5", "-1 GiB", [], 3.5, "nan GiB"),
]

# Of `good_others.mixed_cluster`.
_NEW, _OLD = ("groups", 0), ("groups", 1)

MIXED: list[tuple[Path, Any]] = [
    *each(("groups",), {}, 3, "new", [{}], [3]),
    *each((*_NEW, "hosts"), *NO_COUNT, 1, 3, 4, 2**31),
    *each((*_NEW, "device"), "", "telepathy", 3, [], {}, "\x1b]0;x\x07"),
    *each((*_NEW, "name"), "", "old", 3, [], None, "\x1b\x07"),
    *each((*_NEW, "more"), 1),
    *each((*_OLD, "levels"), {}, 3, "host", [{}], [{"name": "rack"}]),
    *each((*_OLD, "levels", 0, "name"), "", "rack", 3, None),
    *each((*_OLD, "levels", 0, "size"), 2, 0),
    *each((*_OLD, "levels", 0, "links"), 0, -1, 1.5, "2", NAN, DIGITS),
    *each((*_OLD, "levels", 0, "bandwidth"), "0 GB/s", "-1 GB/s", "nan GB/s", 5, "5"),
    *each(("levels", 1, "size"), 1, 3, 5, 0, -1, 2**31),
]
