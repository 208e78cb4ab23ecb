"""Files that the commands are given: a case gets those that it names."""

from __future__ import annotations

_TABLE = "operation,direction,precision,samples,channels,filters,in_extents,out_extents,kernel"
_TABLE += ",stride,groups,seconds\n"
_CONV = "conv,{},fp32,{},3,64,224x224,112x112,7x7,2x2,1,{}\n"

GIVEN = {
    "small.toml": """name = "small-residual"
source = "an example"
[input]
channel = 3
height = 32
width = 32
[[layer]]
name = "conv1"
kind = "conv"
inputs = ["input"]
filters = 16
kernel = 3
padding = 1
[[layer]]
name = "relu1"
kind = "activation"
[[layer]]
name = "conv2"
kind = "conv"
filters = 16
kernel = [3, 1]
padding = "same"
[[layer]]
name = "join"
kind = "add"
inputs = ["conv2", "relu1"]
[[layer]]
name = "norm"
kind = "batch_norm"
statistics = "synchronised"
[[layer]]
name = "up"
kind = "upsample"
[[layer]]
name = "side"
kind = "conv"
inputs = ["up"]
filters = 16
kernel = 3
padding = 2
dilation = 2
groups = 4
bias = true
[[layer]]
name = "joined"
kind = "concat"
inputs = ["side", "up"]
[[layer]]
name = "pool"
kind = "global_pool"
[[layer]]
name = "gate"
kind = "linear"
filters = 32
[[layer]]
name = "scaled"
kind = "scale"
inputs = ["joined", "gate"]
[[layer]]
name = "drop"
kind = "dropout"
[[layer]]
name = "end"
kind = "pool"
kernel = 2
mode = "average"
[[layer]]
name = "mean"
kind = "global_pool"
[[layer]]
name = "fc"
kind = "linear"
filters = 10
[[layer]]
name = "loss"
kind = "loss"
""",
    "tiny.toml": 'name = "tiny"\n[input]\nchannel = 8\nheight = 8\nwidth = 8\n[[layer]]\n'
    'name = "pool"\nkind = "global_pool"\n[[layer]]\nname = "fc"\nkind = "linear"\nfilters = 10\n'
    '[[layer]]\nname = "loss"\nkind = "loss"\n',
    "strategy.toml": """format = "planner-strategy"
model = "gpt2"
cluster = "proteus-hc2"
gpus = 16
global_batch_size = 64
[schedule]
kind = "1f1b"
micro_batches = 4
[[stage]]
layers = ["token_embedding", "position_embedding", "embedding", "h.0-8"]
devices = "0-7"
[[stage]]
layers = ["h.9-11", "ln_f", "head", "loss"]
devices = "8-15"
[[layer]]
name = "token_embedding"
partition = { sample = 4, channel = 2 }
[[layer]]
name = "h.*.attn.c_attn"
partition = { sample = 4, filter = 2 }
[[layer]]
name = "h.*.mlp.c_fc"
partition = { sample = 4, filter = 2 }
[[layer]]
name = "head"
partition = { sample = 4, filter = 2 }
[[subgraph]]
name = "h.*"
recompute = true
zero = 1
""",
    "problem.json": """{"problem": {"name": "small",
"nodes": {"intervals": [[0, 4], [3, 9], []],
"costs": [[1, 5], [1, 7, 1000000000000000000], [0]],
"usages": [[3, 4], [5, 5, 0], [1000]]},
"edges": {"nodes": [[1, 0]], "costs": [[20, 2, 4, 9, 0, 0]]},
"usage_limit": 8}}
""",
    "unlimited.json": """{"problem": {"nodes": {"intervals": [[0, 2], [1, 3]],
"costs": [[1, 5], [1, 7]], "usages": [[3, 4], [5, 5]]},
"edges": {"nodes": [[0, 1]], "costs": [[3, -2, 4, 9]]}}}
""",
    "hopeless.json": """{"problem": {"name": "hopeless", "nodes": {"intervals": [[0, 4]],
"costs": [[1, 5]], "usages": [[3, 4]]}, "edges": {"nodes": [], "costs": []}, "usage_limit": 2}}
""",
    "uneven.json": """{"problem": {"nodes": {"intervals": [[0, 4]], "costs": [[1, 5]],
"usages": [[3]]}, "edges": {"nodes": [], "costs": []}}}
""",
    "table.csv": "# device = V100\n# date = 2024-01-01\n"
    + _TABLE
    + _CONV.format("forward", 32, 0.0021)
    + _CONV.format("forward", 64, 0.0040)
    + _CONV.format("backward_weight", 32, 0.0033)
    + "linear,forward,fp32,32,512,1000,,,,,1,0.0005\n",
    "bad-table.csv": _TABLE + _CONV.format("forward", 32, "soon"),
    "short-table.csv": "operation,direction\nconv,forward\n",
    "empty.toml": "",
    "empty.json": "",
    "broken.toml": 'name = "broken\n[input\n',
    "broken.json": '{"version": 1, "layers": [',
    "other.json": "{}",
    "unknown-kind.toml": 'name = "n"\n[input]\nchannel = 3\n[[layer]]\nname = "a"\n'
    'kind = "magic"\n',
    "unknown-input.toml": 'name = "n"\n[input]\nchannel = 3\n[[layer]]\nname = "a"\n'
    'kind = "linear"\nfilters = 4\ninputs = ["b"]\n',
    "unknown-field.toml": 'name = "n"\n[input]\nchannel = 3\n[[layer]]\nname = "a"\n'
    'kind = "linear"\nfilters = 4\ncolour = "red"\n',
    "bad-cluster.toml": 'name = "c"\nhost_level = "host"\n[device]\nname = "d"\nmemory = "lots"\n',
    "no-levels.toml": 'name = "c"\ndescription = "d"\nhost_level = "host"\n[device]\nname = "d"\n',
    "bad-strategy.toml": 'format = "planner-strategy"\nmodel = "gpt2"\ngpus = 8\n[[layer]]\n'
    'name = "nothing.*"\npartition = { sample = 8 }\n',
    "bad-ways.toml": 'format = "planner-strategy"\nmodel = "gpt2"\ngpus = 8\n[[layer]]\n'
    'name = "head"\npartition = { filter = 3 }\n',
}

# --- the commands: each line is a case, with " && " between its steps. A step is the arguments of
# `planner`, after VARIABLE=VALUE if wanted; `python CODE`; `cut FILE CHARACTERS`; or `replace
# FILE OLD NEW` (once). Later steps run whatever came of earlier ones.
# In a line, `<network>` stands for each of these in turn, a case each, and so on.
