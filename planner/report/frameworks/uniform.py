"""A plan as degrees of parallelism that hold for all layers, and what of it these leave out.

Most frameworks have one number for each kind of parallelism. A layer that is split in another way
is named: nothing is left out silently.
"""

from __future__ import annotations

import math
from collections import Counter

from msgspec import Struct

from costmodels.graph import SPATIAL_DIMS
from costmodels.strategy.blocks import block_numbers, is_stack_on_tokens
from planner.plan import LayerPlan, Plan
from planner.request.frameworks import WayToTrain

# Layers that are named one by one. [items]
MOST_NAMED = 4
_FEATURES = ("filter", "channel", "head")


class UniformDegrees(Struct, frozen=True, kw_only=True):
    """Degrees of parallelism.

    Parameters
    ----------
    dp, tp, cp, ep, etp, pp
        Ways that samples, features, sequences, experts and features within experts are split, and
        groups of stages. [ways]
    chunks
        Stages of each group. [items]
    zero
        0 to 3: what of weights is cut over the ranks that hold the same.
    shard_size
        Ranks that it is cut over, all that split samples by default. [items]
    sequence_parallel
        Whether what tensor parallelism leaves whole is divided by the sequence.
    recompute
        As of `recompute_of`.
    micro_batch, parts
        Samples of a micro-batch on a rank, whole ones, and how many of these make a step.
        [samples], [items]
    others
        A sentence for each way to split layers that these degrees do not say.
    """

    dp: int
    tp: int
    cp: int
    ep: int
    etp: int
    pp: int
    chunks: int
    zero: int
    shard_size: int
    sequence_parallel: bool
    recompute: str
    micro_batch: int
    parts: int
    others: tuple[str, ...]

    @property
    def global_batch(self) -> int:
        """What whole samples on each rank make: that of the plan where these are equal shares."""
        return self.micro_batch * self.parts


def uniform_degrees(plan: Plan) -> UniformDegrees:
    """The degrees of a plan."""
    layers = plan.layers
    attention = [one for one in layers.values() if one.kind == "attention"]
    # norms and routers of transformers are whole under tensor parallelism
    weighty = [one for one in layers.values() if one.weights_bytes]
    cut = [one for one in weighty if one.kind == "linear"] if attention else weighty
    experts, others = (
        [_degree_of(one, _FEATURES) for one in cut if ("expert" in one.degrees) == within]
        for within in (True, False)
    )
    tp = _usual_degree(others)
    etp = _usual_degree(experts) if experts else tp
    cp = _usual_degree([_degree_of(one, ("sequence",)) for one in attention])
    ep = max((_degree_of(one, ("expert",)) for one in layers.values()), default=1)
    size = plan.gpus // plan.num_groups
    dp = size // (tp * cp) if size % (tp * cp) == 0 else 1
    parts = plan.schedule.micro_batches * dp
    apart: dict[str, list[str]] = {}
    for name, layer in layers.items():
        if not _follows(layer, dp, tp, cp, ep, etp):
            apart.setdefault(str(layer.distribution), []).append(name)
    # what a single rank holds is cut over nobody
    held = [one for one in weighty if _degree_of(one, (*_FEATURES, "expert")) < size]
    zeros = Counter(map(zero_of, held))
    zero = max(zeros, default=0)
    said = [
        f"1 layer ({names[0]}) is split {split}"
        if len(names) == 1
        else f"{len(names):,} layers ({_some_named(names)}) are split {split}"
        for split, names in apart.items()
    ]
    if len(zeros) > 1:
        said.append(f"{zeros[zero]} of {sum(zeros.values())} layers with weights have ZeRO {zero}")
    sizes = {layer.shard_size for layer in layers.values() if layer.sharded}
    whole = sizes <= {None, dp * cp}
    return UniformDegrees(
        dp=dp,
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        pp=plan.num_groups,
        chunks=max(1, len(plan.stages) // plan.num_groups),
        zero=zero,
        shard_size=dp * cp if whole else max(size or 1 for size in sizes),
        sequence_parallel=tp > 1
        and any(_degree_of(one, ("sequence",)) == cp * tp for one in layers.values()),
        recompute=recompute_of(plan),
        micro_batch=max(1, round(plan.global_batch_size / parts)),
        parts=parts,
        others=tuple(said),
    )


def _some_named(names: list[str]) -> str:
    """Layers by name, as many as are read at a glance: they need not follow each other."""
    shown = names if len(names) <= MOST_NAMED else [*names[: MOST_NAMED - 1], "..."]
    return ", ".join(shown)


def attends(plan: Plan) -> bool:
    """Whether a plan is of a transformer."""
    return any(layer.kind == "attention" for layer in plan.layers.values())


def blocks_of_stages(plan: Plan) -> list[list[int]]:
    """The blocks of each stage of a transformer, in the order of the model; empty of others."""
    if not attends(plan):
        return []
    blocks = block_numbers(list(plan.layers))
    return [sorted({blocks[name] for name in one.layers if name in blocks}) for one in plan.stages]


def way_of_plan(plan: Plan, of: UniformDegrees) -> WayToTrain:
    """What frameworks must be able to run of a plan."""
    return WayToTrain(
        tp=of.tp,
        cp=of.cp,
        ep=of.ep,
        etp=of.etp,
        pp=of.pp,
        chunks=of.chunks,
        zero=of.zero,
        sharded_over_some=of.zero > 0 and of.shard_size != of.dp * of.cp,
        shard_ranks=of.shard_size,
        recompute=of.recompute,
        schedule=plan.schedule.kind,
        micro_batches=plan.schedule.micro_batches,
        optimizer=plan.training.optimizer,
        precision=plan.training.precision,
        sequence_parallel=of.sequence_parallel,
        on_tokens=is_stack_on_tokens({name: one.kind for name, one in plan.layers.items()}),
        offload=tuple(plan.offload),
    )


def _degree_of(layer: LayerPlan, dims: tuple[str, ...]) -> int:
    return math.prod(layer.distribution.degree(dim) for dim in dims)


def _usual_degree(degrees: list[int]) -> int:
    """The most frequent degree of what is split, if at least as much is split as is not."""
    split = Counter(degree for degree in degrees if degree > 1)
    if not split or 2 * sum(split.values()) < len(degrees):
        return 1
    return max(split, key=lambda degree: (split[degree], -degree))


def _follows(layer: LayerPlan, dp: int, tp: int, cp: int, ep: int, etp: int) -> bool:
    """Whether a layer is split as degrees say.

    Parameters
    ----------
    layer
        The layer.
    dp, tp, cp, ep, etp
        The degrees. [ways]
    """
    sample, sequence = _degree_of(layer, ("sample",)), _degree_of(layer, ("sequence",))
    expert, features = _degree_of(layer, ("expert",)), _degree_of(layer, _FEATURES)
    if any(dim in layer.degrees for dim in (*SPATIAL_DIMS, "table")):
        return False
    if expert > 1:
        # experts take ranks of all other kinds
        return expert == ep and features in (1, etp)
    return sample == dp and sequence in (1, cp, cp * tp) and features in (1, tp)


def zero_of(layer: LayerPlan) -> int:
    """The stage of ZeRO of a layer."""
    parts = ("state", "gradients", "weights")
    return next((3 - n for n, part in enumerate(parts[::-1]) if part in layer.sharded), 0)


def recompute_of(plan: Plan) -> str:
    """What is computed again: "none", "selective", "operations", "some blocks" or "full"."""
    again = [name for stage in plan.stages for part in stage.recompute for name in part]
    if not again:
        return "none"
    if plan.keep_products:
        return "operations"
    if all(plan.layers[name].kind == "attention" for name in again):
        return "selective"
    blocks = block_numbers(list(plan.layers))
    some = {blocks[name] for name in again if name in blocks} < set(blocks.values())
    return "some blocks" if attends(plan) and some else "full"
