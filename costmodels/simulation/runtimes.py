"""Framework runtimes as data: what is reduced, in which pieces, when, and what is cut.

The compiler reads these fields; no runtime has code of its own. A new runtime is a table in
`data/runtimes.toml`, or a file with one such table.
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.errors import InputError, require_between
from costmodels.graph import FUSIONS
from costmodels.simulation.runtime_ranges import RANGES
from costmodels.step.recipes import recipe_families
from costmodels.strategy import MemoryConfig
from costmodels.strategy.shares import FULL

# Smaller pieces would make millions of messages. [B]
_SMALLEST = 65536
GRADIENTS = ("all_reduce", "reduce_scatter", "push_pull")
# Groups of ranks that a framework may have besides those that exchange features, and gradients of
# weights that are cut: all ranks once more; those of a host; those that sum up gradients of norms;
# one of each stage; those of a replica; stages that share a weight; two stages that send.
GROUPS = ("all", "host", "norms", "stages", "model", "ends", "neighbours")
AGGREGATIONS = ("peers", "rooted", "one_device")
LACKED = ("zero-bubble", "all-to-all", "gpipe")
# Part of a launch that copying a layer to one more device takes in a process that does so:
# MobileNet v2 in torch.nn.DataParallel on A100 takes 15.7 ms longer with each further GPU, and
# 14.9 ms in half precision, 1.44 launches for each of 153 operations of the forward pass
# (ryujaehun/pytorch-gpu-benchmark; the rows enter no score).
COPY = 0.44
# Buffers of NCCL 2.27 for a group of 4 to 8 devices, whose connections are made when they are first
# used (aiconfigurator). [B]
COMMUNICATOR = 392.0 * 2**20


class Runtime(Struct, frozen=True, kw_only=True):
    """How a framework runs a step.

    Parameters
    ----------
    name, title, source
        Its names, and where the figures come from.
    gradient
        What happens to gradients of the same weight: "all_reduce", "reduce_scatter", or
        "push_pull" to and from parameter servers.
    bucket, first_bucket
        Gradients travel together in buckets of about that size, the first one smaller; None for
        one bucket a unit of layers. [B]
    tunable
        Whether buckets have the size that a plan was tuned to, where there is a plan.
    fusion, cycle
        Buckets are formed while the step runs instead, of what is ready, once a cycle. [B], [s]
    negotiation_base, negotiation_per_rank
        Time to agree on what is ready, and what each rank adds to it. [s]
    shard
        What is cut over the ranks that hold the same weight: "state", "gradients", "weights".
    zero
        Stages of ZeRO that it runs where a strategy says which; empty for what `shard` says alone.
    lacks
        What it has not, so that plans for it are searched without: some of `LACKED`.
    each_micro_batch
        Whether gradients are reduced after every micro-batch, instead of after the last.
    weight_beside
        Whether reductions of gradients of activations run beside the backward pass of the weight of
        the same layer, and gathers of its input beside that of the data (Korthikanti et al. 2022,
        section 4.2.2), instead of before or after.
    pipelines_products
        Whether products of tensor parallelism run in parts, beside what gathers their input or
        reduces their output (`costmodels.simulation.pipelining`).
    prefetch
        Units of layers whose weights are gathered ahead of their computation. [items]
    overlap
        Whether gradients are reduced while the backward pass goes on.
    synchronous
        Whether all workers take a step together.
    crosses_steps
        Whether the next forward pass begins as the weights of its layers come from the servers,
        instead of when all have come.
    local_reduce
        Whether the devices of a host add up their gradients before one of them pushes.
    servers
        Parameter servers on hosts of their own; 0 where the workers' hosts serve. [items]
    server_rate
        Gradients that a parameter server adds up in a second. [B/s]
    stack_bandwidth
        What the process that talks to parameter servers sends and receives together. [B/s]
    cpu_bandwidth, devices_per_cpu_link
        Bandwidth of a link between devices and their host's memory, and how many share it. [B/s]
    low_precision_gradients
        Whether gradients travel in the precision of activations, instead of that of weights.
    outside_layers
        What a step spends outside of layers, one after the other with them: input handed over,
        metrics, waiting for the host. [s]
    activation_copies, activation_waits
        Around each collective of activations and of their gradients: how often the framework reads
        and writes the tensor in device memory (pieces joined, sums made), and how often its host
        waits for the device, which then waits for the next launch. [items]
    launch_time
        Time in which the host launches an operation; none is faster; None for PyTorch's. [s]
    winograd, always_cut, cuts_backward, corner_overlap, halo_overlap, memory_model, runs_ahead
        As of `costmodels.step.Training`, where the framework decides it; None where it does not.
    recipe, keeps_gates, holds_packed, norms_apart, logit_kept, logit_scratch, attention_kernel
        The same, of what it holds of weights, gates, queries and logits, and of attention.
    collective_launches
        Kernels whose launch takes as long as that of a collective of activations, with what the
        framework does around it; counted where the host runs ahead. [items]
    launches_ahead
        Launches that may wait for the device. So long the inputs of reduce-scatters stay reserved
        where the host runs ahead, since another stream reads them. [items]
    launch_blocking
        Whether the host waits for every kernel before it launches the next, as with
        CUDA_LAUNCH_BLOCKING=1, so that launches add up with kernels; counted where the host runs
        ahead otherwise.
    check_near, check_far
        What each rank of the same host, and of another one, adds to the time in which the processes
        of a collective make sure that all of them launch the same one, before they do (PyTorch with
        TORCH_DISTRIBUTED_DEBUG=DETAIL); counted where the host runs ahead. [s]
    gathers_again
        Whether a layer keeps its own part of what it gathered, to gather again on the way back.
    scatters_sends
        Whether ranks that hold the same output send a part of it each, which the reader gathers.
    views_buckets, copies_updated
        Whether gradients are written into the buffers in which they travel, and updated weights
        gathered into one of their own.
    waits_to_reduce
        Whether gradients of which anything is cut, if only the state, are reduced at once behind
        the backward pass, whatever `overlap` and `bucket` say.
    waits_for_stages, waits_for_sends
        Whether its host waits for the device whenever a stage receives or sends; whether a stage
        computes nothing while it sends.
    communicates_late
        Whether the allocator must leave the last communicators what they hold.
    communicator, communicator_of_two
        What NCCL holds of a device for each group of ranks, or of two, by its version. [B]
    groups
        Kinds of groups that it communicates in besides, of `GROUPS`.
    switch_buffer, switch_tree
        The same for each device of its host in a group of more than two, besides, where switches
        add up (NVLink SHARP), and for each other host that such a group exchanges with. [B]
    makes_state_late
        Whether the optimizer makes its moments in its first update, where activations were.
    stages_by_shares
        When a stage of a pipeline is full that has a share of the weights instead of equally many
        blocks, one of `costmodels.strategy.shares.FULL`; None for blocks.
    stops_early
        Whether what is computed again ends with the last tensor that a backward pass reads.
    caching
        Whether memory is PyTorch's caching allocator's, which holds more than the tensors.
    fuses
        What is computed in the kernel of the layer before: some of `costmodels.graph.FUSIONS`.
    fuses_in
        Precisions in which it fuses; empty for all.
    channels_last
        Whether feature maps lie in memory as tensor cores read them; else convolutions in half
        precision transpose what they read and write.
    one_process
        Whether one process of a host copies the network to each of its devices and runs all forward
        passes, one operation after the other; backward passes are launched by a thread each.
    aggregation
        How an all-reduce runs: "peers", among all; "rooted", to one device and back in pieces along
        a ring; "one_device", from every device to one, and back.
    """

    name: str
    title: str = ""
    source: str = ""
    gradient: str = "all_reduce"
    bucket: float | None = None
    first_bucket: float | None = None
    tunable: bool = False
    fusion: float | None = None
    cycle: float = 0.0
    negotiation_base: float = 0.0
    negotiation_per_rank: float = 0.0
    shard: tuple[str, ...] = ()
    zero: tuple[int, ...] = ()
    lacks: tuple[str, ...] = ()
    each_micro_batch: bool = False
    weight_beside: bool = False
    pipelines_products: bool = False
    prefetch: int = 0
    overlap: bool = True
    synchronous: bool = True
    crosses_steps: bool = False
    local_reduce: bool = False
    servers: int = 0
    server_rate: float = float("inf")
    stack_bandwidth: float = float("inf")
    cpu_bandwidth: float = 12e9
    devices_per_cpu_link: int = 2
    low_precision_gradients: bool = False
    fuses: tuple[str, ...] = ()
    fuses_in: tuple[str, ...] = ()
    channels_last: bool = True
    one_process: bool = False
    aggregation: str = "peers"
    outside_layers: float = 0.0
    activation_copies: float = 0.0
    activation_waits: float = 0.0
    launch_time: float | None = None
    winograd: bool | None = None
    halo_overlap: bool | None = None
    always_cut: bool | None = None
    cuts_backward: bool | None = None
    corner_overlap: bool | None = None
    memory_model: str | None = None
    recipe: str | None = None
    keeps_gates: bool | None = None
    holds_packed: bool | None = None
    norms_apart: bool | None = None
    logit_kept: float | None = None
    logit_scratch: float | None = None
    attention_kernel: str | None = None
    runs_ahead: bool | None = None
    collective_launches: float = 1.0
    launches_ahead: int = 0
    launch_blocking: bool = False
    check_near: float = 0.0
    check_far: float = 0.0
    gathers_again: bool = False
    scatters_sends: bool = False
    views_buckets: bool = False
    copies_updated: bool = False
    waits_to_reduce: bool = False
    waits_for_stages: bool = False
    waits_for_sends: bool = False
    communicates_late: bool = False
    communicator: float = COMMUNICATOR
    communicator_of_two: float = COMMUNICATOR
    groups: tuple[str, ...] = ("norms", "stages")
    switch_buffer: float = 0.0
    switch_tree: float = 0.0
    makes_state_late: bool = False
    stages_by_shares: str | None = None
    stops_early: bool = False
    caching: bool = False

    def __post_init__(self) -> None:
        for field, (least, most, unit) in RANGES.items():
            value = getattr(self, field)
            # rates are infinite where they set no limit
            if value is not None and not (unit == "B/s" and value == float("inf")):
                what = f"runtime {self.name}: {field}"
                require_between(what, value, (least, most), "correct it", unit=unit)
        recipes = tuple(recipe_families())
        named: list[tuple[str, str, tuple[str, ...]]] = [
            ("gradient", self.gradient, GRADIENTS),
            ("aggregation", self.aggregation, AGGREGATIONS),
            ("recipe", self.recipe or recipes[0], recipes),
            ("stages_by_shares", self.stages_by_shares or FULL[0], FULL),
            *(("fuses", name, FUSIONS) for name in self.fuses),
            *(("groups", name, GROUPS) for name in self.groups),
            *(("lacks", name, LACKED) for name in self.lacks),
        ]
        for field, name, known in named:
            if name not in known:
                count = "some" if field in ("fuses", "groups", "lacks") else "one"
                what, rule = f"runtime {self.name}: {field}", f"be {count} of {', '.join(known)}"
                raise InputError.rule(what, rule, f"'{name}'", "choose one")
        if not set(self.zero) <= set(range(4)):
            raise InputError.rule(
                f"runtime {self.name}: zero", "be stages of ZeRO, 0 to 3", self.zero, "correct it"
            )
        if self.crosses_steps and self.gradient != "push_pull":
            raise InputError(
                f"runtime {self.name}: steps can only cross with gradient 'push_pull' but it is "
                f"'{self.gradient}'; leave crosses_steps out"
            )
        if self.gradient == "push_pull" and self.bucket is not None and self.bucket < _SMALLEST:
            raise InputError(
                f"runtime {self.name}: pieces for parameter servers must be at least "
                f"{_SMALLEST} bytes but bucket is {self.bucket:g}; raise it"
            )

    @property
    def memory(self) -> MemoryConfig:
        """What it cuts of every layer."""
        return MemoryConfig(
            weights="weights" in self.shard,
            gradients="gradients" in self.shard,
            state="state" in self.shard,
        )

    @property
    def usual_zero(self) -> int:
        """The stage of ZeRO that `shard` is."""
        cuts = ("state", "gradients", "weights")
        return max((cuts.index(what) + 1 for what in self.shard), default=0)

    @property
    def stages_of_zero(self) -> tuple[int, ...]:
        """The stages of ZeRO that it runs, the least first."""
        return tuple(sorted(set(self.zero))) or (self.usual_zero,)

    def scatters(self, memory: MemoryConfig) -> bool:
        """Whether a rank gets the sum of its own part of a gradient only."""
        return memory.gradients or (memory.state and self.gradient == "reduce_scatter")

    def passes(self, members: int, one_way: float = 1.0) -> float:
        """How many times as many bytes an all-reduce moves as around a ring.

        Bytes that flow to one device, and back, go one way: they count as much less as one way is
        faster than both at once.
        """
        if members < 2 or self.aggregation == "peers":
            return 1.0
        # a ring moves 2 (n - 1) / n of the buffer; to one device and back it is 2, or 2 (n - 1)
        rooted = self.aggregation == "rooted"
        return members / (members - 1) / one_way if rooted else float(members)

    def forward_launches(self, local: int) -> float:
        """How many launches a host process takes for an operation of the forward pass. [items]

        Parameters
        ----------
        local
            Devices of the host that work. [items]
        """
        # for each device a copy of the layer, and its operation
        return local * (1.0 + COPY) if self.one_process and local > 1 else 1.0

    def fusions(self, precision: str) -> tuple[str, ...]:
        """What it fuses in a precision."""
        return self.fuses if precision in self.fuses_in or not self.fuses_in else ()

    @property
    def decided(self) -> dict[str, object]:
        """What it decides of a step's `Training`, by the names there."""
        values = {name: getattr(self, name) for name in _DECIDED}
        return {name: value for name, value in values.items() if value is not None}

    def check(self, ranks: tuple[int, int]) -> float:
        """What processes take before they launch a collective; ranks near and far. [s]"""
        return self.check_near * ranks[0] + self.check_far * ranks[1]

    def negotiation(self, ranks: int) -> float:
        """Time to agree on what is ready. [s]"""
        return self.negotiation_base + self.negotiation_per_rank * ranks


# Fields of `Training` that a framework may decide.
_DECIDED = (
    "launch_time",
    "winograd",
    "halo_overlap",
    "always_cut",
    "cuts_backward",
    "corner_overlap",
    "memory_model",
    "recipe",
    "keeps_gates",
    "holds_packed",
    "norms_apart",
    "logit_kept",
    "logit_scratch",
    "attention_kernel",
    "runs_ahead",
)
