"""What the frameworks that plans are written for can run, and what of a plan they cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.graph import SPATIAL_DIMS, Graph

_KINDS = ("tensor", "context", "expert", "pipeline")


class WayToTrain(Struct, frozen=True, kw_only=True):
    """A way to train, as far as frameworks differ; the defaults are what every one has.

    Parameters
    ----------
    tp, cp, ep, etp, pp, chunks
        Ways of tensor, context and expert parallelism, and of tensor parallelism within experts (0
        for all of it); groups of stages, and stages of each.
    zero, sharded_over_some, shard_ranks
        What of weights is cut, whether it is over some of the replicas only, and over how many
        ranks; 0 where nothing is said. [items]
    recompute, schedule
        What is computed again, and in which order stages run.
    micro_batches
        Of a step. [items]
    optimizer, precision
        By their names; empty where nothing is said.
    on_tokens, sequence_parallel
        Whether the network is one stack of blocks with attention on tokens, and what tensor
        parallelism leaves whole is divided.
    offload
        What lies in the memory of hosts.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 0
    pp: int = 1
    chunks: int = 1
    zero: int = 0
    sharded_over_some: bool = False
    shard_ranks: int = 0
    recompute: str = "none"
    schedule: str = ""
    micro_batches: int = 1
    optimizer: str = ""
    precision: str = ""
    on_tokens: bool = True
    sequence_parallel: bool = True
    offload: tuple[str, ...] = ()

    def degrees(self) -> dict[str, int]:
        """Ways of each kind of parallelism that not every framework has."""
        return dict(zip(_KINDS, (self.tp, self.cp, self.ep, self.pp), strict=True))


class Framework(Struct, frozen=True, kw_only=True):
    """What a framework can run.

    Parameters
    ----------
    called
        Its name in sentences.
    runtime
        The one of `planner runtimes` that is like it; None for the usual one.
    cuts_under, cuts_from
        The one that is like it from a stage of ZeRO on, where that is another; None where not.
    by_layer
        Whether every layer may be split in its own way, in one stage.
    kinds
        Kinds of parallelism beside data parallelism that it knows, by one degree each of
        transformers on tokens alone: what it says of stages is for one stack of blocks.
    always_sequence
        Whether tensor parallelism always comes with that of the sequence.
    within_expert_all_or_none
        Whether experts have all ways of tensor parallelism or a single one.
    zero, zero_reason
        Stages of ZeRO that it has, and a word on the others.
    shards_over_some, shards_contexts
        Whether weights may be cut over some of the replicas, and must be over ranks of context
        parallelism, with expert parallelism within those that they are cut over.
    fills_stages
        Whether 1F1B has no fewer micro-batches than groups of stages.
    schedules
        What it calls the orders in which stages run.
    recompute, recompute_reason, recompute_needs_zero
        What it computes again, a word on the rest, and from which stage of ZeRO on.
    accumulate
        What is left to do where it does not divide a step into micro-batches; empty where it does.
    precisions
        Those it trains in.
    optimizers, zero_optimizers
        Those it has, and those whose state it cuts; none for any.
    exchanges_halos, even
        Of one that splits by layer: whether convolutions may be split by space, and whether blocks
        must be equal.
    """

    called: str
    runtime: str | None = None
    cuts_under: str | None = None
    cuts_from: int = 0
    by_layer: bool = False
    kinds: tuple[str, ...] = ()
    always_sequence: bool = False
    within_expert_all_or_none: bool = False
    zero: tuple[int, ...] = (0,)
    zero_reason: str = ""
    shards_over_some: bool = True
    shards_contexts: bool = False
    fills_stages: bool = False
    schedules: Mapping[str, str] = field(default_factory=dict)
    recompute: tuple[str, ...] = ("none",)
    recompute_reason: str = ""
    recompute_needs_zero: int = 0
    accumulate: str = ""
    precisions: tuple[str, ...] = ("fp32", "tf32", "bf16", "fp16")
    optimizers: tuple[str, ...] = ()
    zero_optimizers: tuple[str, ...] = ()
    exchanges_halos: bool = False
    even: bool = False

    def runtime_of(self, zero: int) -> str | None:
        """The runtime that is like it at a stage of ZeRO; None for the usual one."""
        cuts = self.cuts_under is not None and zero >= self.cuts_from
        return self.cuts_under if cuts else self.runtime

    def lacks(self, way: WayToTrain) -> Iterator[str]:
        """What it cannot express of a way to train, a sentence each."""
        for kind, ways in way.degrees().items():
            if ways > 1 and kind not in self.kinds:
                yield f"{kind} parallelism of {ways} ways: {self.called} leaves it to the model"
            elif ways > 1 and not (way.on_tokens or self.by_layer):
                yield (
                    f"{kind} parallelism of {ways} ways: what {self.called} is told of it is for "
                    "one stack of blocks on tokens"
                )
        if way.tp > 1 and self.always_sequence and not way.sequence_parallel:
            yield f"tensor without sequence parallelism: {self.called} has both together"
        if way.ep > 1 and way.etp not in (0, 1, way.tp) and self.within_expert_all_or_none:
            yield (
                f"{way.etp} ways of tensor parallelism within experts: {self.called} has "
                f"{way.tp} or none"
            )
        if way.zero not in self.zero:
            yield f"ZeRO {way.zero}: {self.zero_reason}"
        cut = self.zero_optimizers
        if cut and way.zero and way.optimizer and way.optimizer not in cut:
            names = " and ".join(cut)
            yield f"ZeRO {way.zero} of {way.optimizer}: {self.called} cuts that of {names}"
        if way.zero and way.sharded_over_some and not self.shards_over_some:
            yield f"weights cut over some of the replicas: {self.called} cuts them over all"
        if self.shards_contexts and way.shard_ranks:
            yield from self._lacks_of_shards(way)
        if self.fills_stages and way.schedule == "1f1b" and way.micro_batches < way.pp:
            yield (
                f"fewer micro-batches ({way.micro_batches}) than groups of stages ({way.pp}): "
                f"{self.called} has as many at least under 1F1B"
            )
        orders = " or ".join(self.schedules)
        if way.pp > 1 and way.schedule and way.schedule not in self.schedules and orders:
            yield f"the schedule {way.schedule}: {self.called} runs {orders}"
        if way.pp > 1 and way.chunks > 1 and "interleaved" not in self.schedules:
            yield f"{way.chunks} stages of each group: {self.called} has one"
        if way.recompute not in self.recompute or (
            way.recompute != "none" and way.zero < self.recompute_needs_zero
        ):
            reason = self.recompute_reason or f"{self.called} leaves it to the model"
            yield f"what is computed again ({way.recompute}): {reason}"
        if way.micro_batches > 1 and self.accumulate:
            yield f"{way.micro_batches} micro-batches: {self.accumulate}"
        if self.optimizers and way.optimizer and way.optimizer not in self.optimizers:
            has = " and ".join(self.optimizers)
            yield f"the optimizer {way.optimizer}: of the planner's, {self.called} has {has}"
        if way.precision and way.precision not in self.precisions:
            usual = f"of the planner's, {self.called} has {', '.join(self.precisions)}"
            own = f"switch it on in {self.called} itself"
            yield f"the precision {way.precision}: {own if way.precision == 'fp8' else usual}"
        if way.offload:
            yield f"what lies in the memory of hosts ({', '.join(way.offload)})"

    def _lacks_of_shards(self, way: WayToTrain) -> Iterator[str]:
        """As `lacks`, where ranks of context and expert parallelism are some that cut weights."""
        ranks = way.shard_ranks if way.zero else way.cp
        if way.cp > 1 and (way.zero == 0 or ranks % way.cp):
            yield (
                f"weights cut over {ranks if way.zero else 'no'} ranks with context parallelism of "
                f"{way.cp} ways: {self.called} cuts them over all of its ranks"
            )
        # experts that are whole take ranks of tensor parallelism, too
        ranks *= way.tp if way.etp == 1 else 1
        if way.ep > 1 and ranks % way.ep:
            yield (
                f"expert parallelism of {way.ep} ways: {self.called} has it within the ranks that "
                f"cut weights, here {ranks}"
            )

    def runs(self, way: WayToTrain) -> bool:
        """Whether it can express all of a way to train."""
        return next(self.lacks(way), None) is None


_SHARDED = "see layers[].sharded for what of weights is cut over ranks that hold the same weight"
_FSDP = "FSDP cuts gradients with the state (ZeRO 2) or nothing"
FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        "torchtitan": Framework(
            called="torchtitan",
            within_expert_all_or_none=True,
            shards_contexts=True,
            fills_stages=True,
            runtime="torchtitan",
            kinds=_KINDS,
            always_sequence=True,
            zero=(0, 2, 3),
            zero_reason=_FSDP,
            schedules={
                "gpipe": "GPipe",
                "1f1b": "1F1B",
                "interleaved": "Interleaved1F1B",
                # its zero-bubble schedules take two stages of each group or more, the planner's one
            },
            recompute=("none", "operations", "full"),
            recompute_reason='its "selective" keeps attention, and computes what is no product',
            precisions=("fp32", "tf32", "bf16"),
            optimizers=("adam",),
        ),
        "megatron": Framework(
            called="Megatron-LM",
            runtime="megatron-core",
            kinds=_KINDS,
            zero=(0, 1),
            zero_reason="the distributed optimizer is ZeRO 1",
            schedules={"1f1b": "1f1b", "interleaved": "interleaved"},
            recompute=("none", "selective", "full"),
            recompute_reason="Megatron-LM names modules of its own",
            zero_optimizers=("adam",),
        ),
        "deepspeed": Framework(
            called="DeepSpeed", runtime="deepspeed", zero=(0, 1, 2, 3), shards_over_some=False
        ),
        "accelerate": Framework(
            called="accelerate",
            # its DistributedDataParallel cuts nothing
            cuts_under="fsdp",
            cuts_from=2,
            zero=(0, 2, 3),
            zero_reason=_FSDP,
            shards_over_some=False,
            recompute=("none", "full"),
            recompute_needs_zero=2,
            accumulate="give gradient_accumulation_steps to the Accelerator",
        ),
        "fsdp2": Framework(
            called="this file",
            by_layer=True,
            kinds=("tensor", "context", "expert"),
            zero_reason=_SHARDED,
            accumulate="accumulate gradients over them",
        ),
        # XLA's partitioner exchanges halos itself, and cuts arrays into equal blocks
        "jax": Framework(
            called="this file",
            by_layer=True,
            kinds=("tensor", "context", "expert"),
            zero_reason=_SHARDED,
            accumulate="accumulate gradients over them",
            exchanges_halos=True,
            even=True,
        ),
    }
)


def splittable_by(graph: Graph, name: str | None) -> Graph:
    """The layers with the dims alone by which a framework may split them, and as it may.

    Parameters
    ----------
    graph
        The network.
    name
        The framework; None for any.
    """
    framework = FRAMEWORKS.get(name or "")
    if framework is None or not framework.by_layer:
        return graph
    whole = frozenset[str]() if framework.exchanges_halos else frozenset(SPATIAL_DIMS)
    layers = {
        name: replace(layer, splittable=layer.splittable - whole, evenly=framework.even)
        for name, layer in graph.layers.items()
    }
    return replace(graph, layers=layers)
