"""What is trained, on which machine and how: inputs that all commands share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from costmodels.units import parse_bytes, parse_seconds
from planner.request.inputs.description import AnyInput, Input, at_least

DEFAULT_CLUSTER = "dgx-a100"
AUTO = "auto"

MODEL: Input[None] = Input(
    name="source",
    keyword="model",
    default=None,
    required=True,
    kind="object",
    text="A built-in network, the path of a network file or an ONNX file, a "
    "`costmodels.graph.Network`, a `torch.nn.Module` or a function that makes one, or where that "
    'is, like "package.module:name".',
)
GPUS: Input[int | None] = Input(
    name="gpus",
    default=None,
    required=True,
    option="--gpus",
    metavar="N",
    kind="whole",
    help="Number of GPUs.",
    text="Number of GPUs. [items]",
)
COUNTS: Input[str | Sequence[int]] = Input(
    name="counts",
    keyword="gpus",
    default=(),
    required=True,
    option="--gpus",
    metavar="N-N|N,N,...",
    kind="counts",
    help="Numbers of GPUs; of a range those that the machine has.",
    text='Numbers of GPUs, as such or like "4,16,64", or "4-64": those of the range that the '
    "machine has. [items]",
)
STRONG: Input[bool] = Input(
    name="strong",
    default=False,
    option="--strong/--weak",
    kind="switch",
    help="Keep the global batch, or the samples of a GPU (weak, the default).",
    text="Keep the global batch, instead of the samples of each GPU; a global batch size is that "
    "of the first number of GPUs.",
)
CLUSTER: Input[None] = Input(
    name="cluster",
    default=None,
    option="--cluster",
    metavar="NAME|FILE|auto",
    kind="object",
    help="Machine: built in, a TOML file, or auto: as SLURM, torchrun and nvidia-smi say.",
    text="A built-in machine, the path of a cluster file, a `costmodels.cluster.Cluster`, or "
    '"auto": the machine that SLURM, torchrun and nvidia-smi tell.',
    usual=DEFAULT_CLUSTER,
    chosen="cluster {cluster}, since none was given",
)
GLOBAL_BATCH_SIZE: Input[int | None] = Input(
    name="global_batch_size",
    default=None,
    option="--global-batch-size",
    metavar="N",
    kind="whole",
    help="Samples of a step on all GPUs.",
    text="Samples of a step on all GPUs; by default 32 a GPU, or fewer where memory is short; "
    "of networks with attention at least one. [samples]",
    chosen="global batch of {batch} samples ({per_gpu:g} a GPU)",
)
PRECISION: Input[str | None] = Input(
    name="precision",
    default=None,
    option="--precision",
    metavar="NAME",
    help="fp32, tf32, fp16, bf16 or fp8.",
    text='"fp32", "tf32", "fp16", "bf16" or "fp8", in which linear layers of blocks multiply while '
    "all else is bf16; the usual one of the cluster by default.",
    chosen="precision {precision}, the usual one on {cluster}",
)
OPTIMIZER: Input[str | None] = Input(
    name="optimizer",
    default=None,
    option="--optimizer",
    metavar="NAME",
    help="sgd (with momentum) or adam.",
    text='"sgd" (with momentum) or "adam"; by default adam for networks with attention, sgd for '
    "all others.",
    chosen="optimizer {optimizer}, the usual one of such networks",
)
INPUTS: Input[tuple[object, ...]] = Input(
    name="inputs",
    default=(),
    option="--input",
    metavar="SHAPE",
    kind="shapes",
    help="Of a PyTorch module or an ONNX file: a shape, samples first, such as 8,3,224,224, "
    "ids=8,128:int64, or a factory of inputs; may be repeated.",
    text="What a PyTorch module or an ONNX file takes: tensors or shapes, samples first, in a "
    "list, by name, or as a function that makes them.",
)
INPUT_SIZE: Input[int | None] = Input(
    name="input_size",
    default=None,
    option="--input-size",
    aliases=("--seq-len",),
    metavar="N",
    kind="whole",
    help="Pixels or voxels a side, or tokens.",
    text="Pixels or voxels a side, or tokens; as published by default. [items]",
)
VOCAB_PADDING: Input[int | None] = Input(
    name="vocab_padding",
    default=None,
    option="--vocab-padding",
    metavar="N",
    kind="count",
    help="Round the vocabulary up to a multiple of N.",
    text="Multiple that the vocabulary is rounded up to; as published by default. [items]",
)
EXPERT_CAPACITY: Input[float | None] = Input(
    name="expert_capacity",
    default=None,
    option="--expert-capacity",
    metavar="F",
    kind="number",
    help="Tokens of the busiest expert, or slots of each, over an even share.",
    text="Tokens of the busiest expert, or slots of each, over an even share; 1 by default.",
    rule=at_least(0.01, "the expert capacity (--expert-capacity)", "1 is an even share"),
)
MEMORY: Input[None] = Input(
    name="memory",
    default=None,
    option="--memory",
    metavar="SIZE",
    help='Memory of a GPU, such as "16 GiB".',
    text='Memory of a GPU, a number or text such as "16 GiB"; that of the device by default. [B]',
    unit=parse_bytes,
)
ALL_REDUCE: Input[str | None] = Input(
    name="all_reduce",
    default=None,
    option="--all-reduce",
    metavar="NAME",
    help="auto, ring, tree, hierarchical, in_network or halving_doubling.",
    text='Algorithm of gradient all-reduces: "auto" (the cheapest for each), "ring", "tree", '
    '"hierarchical", "in_network" or "halving_doubling".',
    usual="auto",
)
BUCKET_BYTES: Input[None] = Input(
    name="bucket_bytes",
    default=None,
    option="--bucket-size",
    metavar="SIZE",
    help='Gradient buckets, such as "25 MiB".',
    text="Size of the buckets in which gradients are all-reduced, a number or text such as "
    '"25 MiB"; `planner.optimize` tunes it by default. [B]',
    unit=partial(parse_bytes, what="the bucket size"),
    usual=25 * 2.0**20,
)
EXECUTION: Input[str | None] = Input(
    name="execution",
    default=None,
    option="--execution",
    metavar="NAME",
    help="eager (the default), compiled or captured.",
    text='How operations come to the devices: "eager", one by one, "compiled", with activations, '
    'additions and biases fused, or "captured", as a graph without launches.',
    usual="eager",
)
LAUNCH_TIME: Input[None] = Input(
    name="launch_time",
    default=None,
    option="--launch-time",
    metavar="TIME",
    help='Host time of an operation, such as "30 us"; that of the runtime by default.',
    text='Time in which the host launches an operation, a number or text such as "30 us"; that of '
    "the runtime, and none where captured, by default. [s]",
    unit=partial(parse_seconds, what="the launch time", allow_zero=True),
)
MEMORY_MODEL: Input[str | None] = Input(
    name="memory_model",
    default=None,
    option="--memory-model",
    metavar="NAME",
    help="liveness, retained (nothing freed within a step) or paradl (conservative).",
    text='"liveness" (what is allocated when), "retained" (every output and every gradient of an '
    'input has memory of its own) or "paradl" (conservative).',
    usual="liveness",
)
HALO_OVERLAP: Input[bool | None] = Input(
    name="halo_overlap",
    default=None,
    option="--no-halo-overlap",
    kind="switch",
    help="Do not hide halos behind the interior.",
    text="Whether halos are exchanged while the interior is computed.",
    usual=True,
)
ALWAYS_CUT: Input[bool | None] = Input(
    name="always_cut",
    default=None,
    option="--always-cut",
    kind="switch",
    help="Cut every layer with a halo into interior and boundaries.",
    text="Whether every layer with a halo is computed as an interior and boundaries, and not only "
    "those where that is faster.",
    usual=False,
)
GRADIENT_OVERLAP: Input[bool | None] = Input(
    name="gradient_overlap",
    default=None,
    option="--no-gradient-overlap",
    kind="switch",
    help="Do not hide all-reduces behind backward.",
    text="Whether gradients are all-reduced while the backward pass goes on.",
    usual=True,
)
WINOGRAD: Input[bool | None] = Input(
    name="winograd",
    default=None,
    option="--no-winograd",
    kind="switch",
    help="Assume that no convolution runs as Winograd's algorithm.",
    text="Whether convolutions may use Winograd's algorithm.",
    usual=True,
)
TABLES: Input[tuple[str, ...]] = Input(
    name="tables",
    default=(),
    option="--table",
    metavar="FILE",
    kind="texts",
    help="Table of measured layer times; may be repeated.",
    text="Paths of tables of measured layer times.",
)
STRATEGY: Input[str | None] = Input(
    name="strategy",
    default=None,
    option="--strategy",
    metavar="NAME|FILE",
    kind="object",
    help="data (the default), spatial, filter, channel, data+filter, data+spatial; for "
    "transformers megatron:tp=4,dp=4, fsdp, zero1 to zero3; or a plan or strategy file.",
    text='With a network: "data" (the default), "spatial", "filter", "channel", "data+filter", '
    '"data+spatial"; "megatron", "fsdp" or "zero1" to "zero3", with degrees like "megatron:tp=4"; '
    "a plan, a strategy, or the path of a file of either.",
)
DEGREE: Input[int | None] = Input(
    name="degree",
    default=None,
    option="--degree",
    metavar="N",
    kind="whole",
    help="Ways of the other dim of a data+ strategy; the GPUs of a host by default.",
    text='Ways of the other dim of a "data+" strategy; the GPUs of a host by default. [ways]',
    rule=at_least(1, "the degree (--degree)", "raise it or leave it out"),
)
_EVALUATED: Input[str] = Input(
    name="strategy",
    default="data",
    shown=True,
    option="--strategy",
    metavar="NAME|FILE",
    kind="object",
    help="data, spatial, filter, channel, data+filter, data+spatial, megatron:tp=4,dp=4, or a "
    "plan file.",
    text='"data", "spatial", "filter", "channel", "data+filter", "data+spatial", "megatron" with '
    'degrees like "megatron:tp=4,dp=4", a plan, or the path of a plan file.',
)

SIZE: tuple[AnyInput, ...] = (MODEL, GPUS)
SCALE_SIZES: tuple[AnyInput, ...] = (MODEL, COUNTS, STRONG)
FRONT_SIZES: tuple[AnyInput, ...] = (
    MODEL,
    replace(
        COUNTS,
        metavar="N|N-N|N,N,...",
        help="Number of GPUs; against gpus several, or the most, which is halved again and again.",
        text='Number of GPUs; against "gpus" several, as `planner.scale` takes them, or the most, '
        "which is halved again and again. [items]",
    ),
)
EVALUATE: tuple[AnyInput, ...] = (_EVALUATED, DEGREE)
# Options of the training step, as of `costmodels.step.training.Training`.
TRAINING: tuple[AnyInput, ...] = (
    PRECISION,
    OPTIMIZER,
    ALL_REDUCE,
    BUCKET_BYTES,
    EXECUTION,
    LAUNCH_TIME,
    MEMORY_MODEL,
    HALO_OVERLAP,
    ALWAYS_CUT,
    GRADIENT_OVERLAP,
    WINOGRAD,
)
QUESTION: tuple[AnyInput, ...] = (
    CLUSTER,
    GLOBAL_BATCH_SIZE,
    PRECISION,
    OPTIMIZER,
    INPUTS,
    INPUT_SIZE,
    VOCAB_PADDING,
    EXPERT_CAPACITY,
    MEMORY,
    ALL_REDUCE,
    BUCKET_BYTES,
    EXECUTION,
    LAUNCH_TIME,
    MEMORY_MODEL,
    HALO_OVERLAP,
    ALWAYS_CUT,
    GRADIENT_OVERLAP,
    WINOGRAD,
    TABLES,
)
