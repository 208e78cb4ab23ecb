"""Degrees of parallelism, and what goes with them: one strategy by a few numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costmodels.errors import InputError
from planner.request.inputs.description import AnyInput, Input, between, one_of
from planner.request.inputs.recompute import recomputed

# What can wait in the memory of the host.
OFFLOADED = ("activations", "weights", "optimizer")
CP_KINDS = ("ring", "all-to-all")
# Axes of parallelism by the level of the cluster that they take first, from the inside out.
AXES = ("tp", "cp", "ep", "dp", "pp")


def names_of(value: object, known: Iterable[str], what: str) -> tuple[str, ...]:
    """Names between commas, or a sequence of them, each once, in the order given.

    Parameters
    ----------
    value
        What was given.
    known
        The names that there are.
    what
        What they are of, for messages.
    """
    rows = value.split(",") if isinstance(value, str) else value
    if not isinstance(rows, list | tuple):
        raise InputError.rule(what, "be names between commas", repr(value), "correct it")
    names = tuple(row.strip() if isinstance(row, str) else row for row in rows)
    names = tuple(name for name in names if name != "")
    if len(set(map(str, names))) < len(names) or not set(names) <= set(known):
        raise InputError.rule(
            what, f"be some of {', '.join(known)}, each once", repr(value), "correct it"
        )
    return names


def axes_of(value: object) -> tuple[str, ...]:
    """The order of the axes, from the inside out."""
    names = names_of(value, AXES, "the order of the axes (--axes)")
    if set(names) != set(AXES):
        missing = ", ".join(axis for axis in AXES if axis not in names)
        raise InputError.rule(
            "the order of the axes (--axes)",
            f"have each of {', '.join(AXES)}, from the inside out",
            f"without {missing}",
            f"{','.join(AXES)} is the usual one",
        )
    return names


def blocks_of(value: object) -> str | tuple[int, ...]:
    """How many blocks each stage has: numbers, or the rule by which they are dealt out."""
    if isinstance(value, str) and value in ("equal", "balanced"):
        return value
    rows = value.split(",") if isinstance(value, str) else value
    numbers = []
    for row in rows if isinstance(rows, list | tuple) else ():
        text = str(row).strip()
        numbers.append(int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1)
    if not numbers or min(numbers) < 0:
        raise InputError.rule(
            "the blocks of stages (--stage-blocks)",
            "be equal, balanced, or a number for each stage",
            repr(value),
            "write them like 7,8,8,7",
        )
    return tuple(numbers)


def _refuse_stage_blocks(value: object) -> None:
    blocks_of(value)


def _offloads(value: object) -> None:
    names_of(value, OFFLOADED, "what waits in the memory of the host (--offload)")


def _refuse_axes(value: object) -> None:
    axes_of(value)


def _refuse_recompute(value: object) -> None:
    recomputed(value)


def _ways(name: str, option: str, help_: str, text: str) -> Input[int]:
    """A degree of parallelism that is one where nothing is said.

    Parameters
    ----------
    name, option
        Its names.
    help_, text
        What it is, on the command line and in Python.
    """
    return Input(
        name=name,
        part="degrees",
        default=1,
        option=option,
        metavar="N",
        kind="count",
        help=help_,
        text=text,
    )


DP: Input[int | None] = Input(
    name="dp",
    part="degrees",
    default=None,
    option="--dp",
    metavar="N",
    kind="count",
    help="Data parallelism; what is left by default.",
    text="Ways of data parallelism; None for what the others leave. [ways]",
)
TP = _ways("tp", "--tp", "Tensor parallelism.", "Ways of tensor parallelism. [ways]")
PP = _ways(
    "pp",
    "--pp",
    "Pipeline stages, or groups of them.",
    "Pipeline stages, or groups of them. [ways]",
)
CP = _ways(
    "cp",
    "--cp",
    "Context parallelism: parts of each sequence.",
    "Ways of context parallelism, which divides sequences. [ways]",
)
EP = _ways(
    "ep",
    "--ep",
    "Expert parallelism, over ranks of --cp and --dp.",
    "Ways of expert parallelism, over ranks of data and context parallelism. [ways]",
)
ETP: Input[int | None] = Input(
    name="etp",
    part="degrees",
    default=None,
    option="--etp",
    metavar="N",
    kind="count",
    help="Tensor parallelism of experts; --tp by default.",
    text="Ways of tensor parallelism within an expert; None for those of the other layers. [ways]",
)
SEQUENCE_PARALLEL: Input[bool] = Input(
    name="sequence_parallel",
    part="degrees",
    default=False,
    option="--sequence-parallel",
    kind="switch",
    help="Split what tensor parallelism leaves whole by the sequence.",
    text="Whether the ranks of tensor parallelism divide sequences where they would do the same "
    "(Korthikanti et al. 2022).",
)
UNEVEN_HEADS: Input[bool] = Input(
    name="uneven_heads",
    part="degrees",
    default=False,
    option="--uneven-heads",
    kind="switch",
    help="Let ranks of tensor parallelism have unequally many heads.",
    text="Whether ranks of tensor parallelism may have unequally many heads, the most of which set "
    "the pace; else degrees that do not divide the heads are refused.",
)
MICRO_BATCHES: Input[int | None] = Input(
    name="micro_batches",
    part="degrees",
    default=None,
    option="--micro-batches",
    metavar="N",
    kind="count",
    help="Parts of the batch; 1 by default.",
    text="Parts that the batch is cut into; None for one, or as many as micro-batches of the given "
    "size there are. [items]",
)
MICRO_BATCH_SIZE: Input[int | None] = Input(
    name="micro_batch_size",
    part="degrees",
    default=None,
    option="--micro-batch-size",
    metavar="N",
    kind="count",
    help="Samples of a replica in one of them; 1 in pipelines of transformers by default.",
    text="Samples of a replica in a micro-batch, instead of how many micro-batches there are. Of "
    "transformers, where neither is given, one in pipelines, else as many as activations take "
    "half the memory for at most. [samples]",
    chosen="micro-batch size of {size}, of the samples of a replica (--micro-batch-size)",
)
SCHEDULE: Input[str | None] = Input(
    name="schedule",
    part="degrees",
    default=None,
    option="--schedule",
    metavar="NAME",
    help="gpipe, 1f1b, interleaved or zero-bubble; 1f1b, or interleaved with --chunks, by default.",
    text='"gpipe", "1f1b", "interleaved" or "zero-bubble"; None for "1f1b", or "interleaved" where '
    "there are chunks.",
)
CHUNKS = _ways(
    "chunks",
    "--chunks",
    "Stages of each group, if interleaved.",
    'Stages of each group of devices, with the schedule "interleaved". [items]',
)
STAGE_BLOCKS: Input[str | tuple[int, ...]] = Input(
    name="stage_blocks",
    part="degrees",
    default="equal",
    option="--stage-blocks",
    metavar="equal|balanced|N,N,...",
    kind="mixed",
    help="Blocks of each stage: equally many (the default), by time, or as given.",
    text='Blocks of each stage: "equal", as far as they divide; "balanced", by the time of layers; '
    "or how many, between commas or as a sequence. [items]",
    rule=_refuse_stage_blocks,
)
MAX_IN_FLIGHT: Input[int | None] = Input(
    name="max_in_flight",
    part="degrees",
    default=None,
    option="--max-in-flight",
    metavar="N",
    kind="count",
    help="Micro-batches kept for backward.",
    text="Forward passes of a stage whose backward pass is still to come; None for the schedule's. "
    "[items]",
)
RECOMPUTE: Input[str | int | bool | Sequence[str | int]] = Input(
    name="recompute",
    part="degrees",
    default="none",
    option="--recompute",
    metavar="none|selective|operations|full|N|N-N,...",
    kind="mixed",
    bare="full",
    help="What is computed again for backward: the core of attention, cheap operations, all of "
    "every block (meant by the option alone), of N blocks of a stage, or of blocks N to N or "
    "layers like *.attn.",
    text='What is computed again for backward: "none", "selective" (the core of attention), '
    '"operations" (all of every block but attention and every second product), "full" (all of '
    'every block, as is True), of how many blocks of a stage, or which blocks, such as "0-15", '
    'or layers, such as "*.attn", between commas or as a sequence.',
    rule=_refuse_recompute,
)
ZERO: Input[int | None] = Input(
    name="zero",
    part="degrees",
    default=None,
    option="--zero",
    metavar="0|1|2|3",
    kind="whole",
    help="Cut over replicas: 1 optimizer state, 2 also gradients, 3 also weights.",
    text="What is cut over replicas: 1 the optimizer's state (a distributed optimizer), 2 also the "
    "gradients, 3 also the weights, 0 nothing; None for what the runtime cuts.",
    rule=between(0, 3, "the stage of ZeRO (--zero)", "1 cuts the optimizer's state"),
)
FSDP: Input[bool] = Input(
    name="fsdp",
    part="degrees",
    default=False,
    option="--fsdp",
    kind="switch",
    help="Fully sharded data parallelism: --zero 3, block by block.",
    text="Whether data parallelism is fully sharded, block by block; the runtime is then fsdp, "
    "unless another is given.",
)
SHARD_SIZE: Input[int | None] = Input(
    name="shard_size",
    part="degrees",
    default=None,
    option="--shard-size",
    metavar="N",
    kind="count",
    help="Replicas that what is cut is cut over; all by default.",
    text="Replicas that what is cut is cut over, fewer than all for hybrid sharding; None for all. "
    "[items]",
)
OFFLOAD: Input[str | tuple[str, ...]] = Input(
    name="offload",
    part="degrees",
    default=(),
    option="--offload",
    metavar="NAME,...",
    kind="mixed",
    help="What waits in the memory of the host: activations, weights, optimizer.",
    text='What waits in the memory of the host: some of "activations", "weights" and "optimizer", '
    "between commas or as a sequence.",
    rule=_offloads,
)
CP_KIND: Input[str] = Input(
    name="cp_kind",
    part="degrees",
    default="ring",
    option="--cp-kind",
    metavar="NAME",
    help="How: ring (the default) or all-to-all.",
    text='How context parallelism brings queries and keys together: "ring" or "all-to-all".',
    rule=one_of("the kind of context parallelism (--cp-kind)", lambda: CP_KINDS, "choose one"),
)
AXES_ORDER: Input[str | tuple[str, ...]] = Input(
    name="axes",
    part="degrees",
    default=AXES,
    option="--axes",
    metavar="AXIS,...",
    kind="mixed",
    help="Order of the axes on the levels of the cluster, inside out; tp,cp,ep,dp,pp by default.",
    text="The order in which the axes take the levels of the cluster, from the inside out, "
    "between commas or as a sequence; pp inside of no axis of several ways; by default "
    '"tp,cp,ep,dp,pp".',
    rule=_refuse_axes,
)

DEGREE_INPUTS: tuple[AnyInput, ...] = (
    DP,
    TP,
    PP,
    CP,
    EP,
    ETP,
    SEQUENCE_PARALLEL,
    UNEVEN_HEADS,
    MICRO_BATCHES,
    MICRO_BATCH_SIZE,
    SCHEDULE,
    CHUNKS,
    STAGE_BLOCKS,
    MAX_IN_FLIGHT,
    RECOMPUTE,
    ZERO,
    FSDP,
    SHARD_SIZE,
    OFFLOAD,
    CP_KIND,
    AXES_ORDER,
)
