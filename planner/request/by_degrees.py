"""A strategy from degrees: splits, stages, what is cut, what is computed again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import fields

from msgspec.structs import replace

from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.simulation.pieces import Pieces
from costmodels.simulation.runtimes import Runtime
from costmodels.simulation.shared_pieces import KnownPieces, PiecesByBatch
from costmodels.strategy import MemoryConfig, Strategy
from costmodels.strategy.blocks import block_of, is_transformer
from costmodels.strategy.strategy import OFFLOADED as STRATEGY_OFFLOADED
from costmodels.strategy.usual import hybrid
from planner.request.default_batch import has_attention, kept_of_sample, most_at_once
from planner.request.inputs.degrees import MICRO_BATCH_SIZE, OFFLOADED
from planner.request.parts import Degrees
from planner.request.recomputation import with_recomputation
from planner.request.setting import Setting
from planner.request.training_graphs import training_graph

assert OFFLOADED == STRATEGY_OFFLOADED, "requests name what strategies know"
# What of `Degrees` says how layers are split, and no more. Where the sequence is split, what is
# gathered for the forward pass is gathered again for the backward one, too.
_SPLITS = ("dp", "tp", "ep", "etp", "uneven_heads", "cp_kind", "axes")


def micro_graph(setting: Setting, micro_batches: int) -> Graph:
    """The network at the batch of one micro-batch."""
    if micro_batches < 1 or setting.batch % micro_batches:
        raise InputError(
            f"the global batch must be a multiple of the micro-batches but {setting.batch} is none "
            f"of {micro_batches}; change one of them"
        )
    training = setting.machine.training
    return training_graph(setting.model, setting.batch // micro_batches, training)


def graph_of(setting: Setting, strategy: Strategy) -> Graph:
    """The network at a micro-batch of a strategy: of uneven shares as if all had the most."""
    shares = strategy.shares
    if not shares:
        return micro_graph(setting, strategy.schedule.micro_batches)
    total = sum(one.batch for one in shares)
    if total != setting.batch:
        raise InputError(
            f"the {total:,} samples that the plan shares out unevenly must be the global batch but "
            f"that is {setting.batch:,}; plan again for it"
        )
    replicas_, most = sum(one.replicas for one in shares), max(one.samples for one in shares)
    return training_graph(setting.model, replicas_ * most, setting.machine.training)


def replicas(degrees: Degrees, gpus: int) -> int:
    """Ways of data parallelism: as asked for, else what the others leave. [ways]"""
    if degrees.dp is not None:
        return degrees.dp
    return max(gpus // (degrees.tp * degrees.pp * degrees.cp), 1)


def samples_needed(degrees: Degrees, gpus: int) -> int:
    """What a global batch must be a multiple of, so that replicas do alike. [samples]"""
    each = degrees.micro_batch_size or degrees.micro_batches or 1
    return each * replicas(degrees, gpus)


def with_default_micro_batches(setting: Setting, degrees: Degrees) -> tuple[Setting, Degrees]:
    """Degrees that say how many samples of a replica are taken at a time, and what was chosen.

    Where nothing is said, a pipeline of a transformer takes one sequence at a time; without a
    pipeline as many as divide those of a replica and whose activations take half the memory at
    most. Plain data parallelism, and all other networks, take all at once.

    Parameters
    ----------
    setting, degrees
        The network and the machine, and what was asked for.
    """
    said = (degrees.micro_batches, degrees.micro_batch_size) != (None, None)
    plain = not dataclasses.replace(degrees, dp=None).asked_for
    dp = replicas(degrees, setting.gpus)
    local = setting.batch // dp
    if said or plain or setting.batch % dp or not has_attention(setting.model):
        return setting, degrees
    size = 1
    if degrees.pp == 1:
        training = setting.machine.training
        kept = kept_of_sample(setting.model, training.activation_size) / (degrees.tp * degrees.cp)
        size = most_at_once(local, kept, setting.cluster.device)
    if size == local:
        return setting, degrees
    defaults = (*setting.defaults, MICRO_BATCH_SIZE.chose(size=size))
    degrees = dataclasses.replace(degrees, micro_batch_size=size)
    return replace(setting, defaults=defaults), degrees


def strategy_by_degrees(
    setting: Setting,
    degrees: Degrees,
    runtime: Runtime | None = None,
    known: PiecesByBatch | None = None,
) -> tuple[Strategy, Graph, str]:
    """The strategy, the network at one micro-batch, and what the strategy is called.

    Parameters
    ----------
    setting
        The network and the machine.
    degrees
        What was asked for.
    runtime
        Says how stages are cut; None for the usual way.
    known
        Costs of layers of this network on this cluster, to which new ones are added.

    Raises
    ------
    InputError
        When they do not fit.
    """
    dp = replicas(degrees, setting.gpus)
    _refuse_strided_stages(degrees, dp)
    if degrees.shard_size is not None and (dp * degrees.cp) % degrees.shard_size:
        raise InputError(
            f"the replicas that have the same weights, dp x cp = {dp * degrees.cp}, must be a "
            f"multiple of --shard-size but {degrees.shard_size} does not divide them; choose a "
            "divisor"
        )
    micro_batches = _micro_batches(setting, degrees, dp)
    graph = micro_graph(setting, micro_batches)

    by_shares = None if runtime is None else runtime.stages_by_shares

    def cut(weights: Mapping[str, float] | None) -> Strategy:
        return hybrid(
            graph,
            setting.machine.topology.shape,
            dp=dp,
            tp=degrees.tp,
            pp=degrees.pp,
            cp=degrees.cp,
            ep=degrees.ep,
            etp=degrees.etp,
            sequence_parallel=degrees.sequence_parallel,
            uneven_heads=degrees.uneven_heads,
            cp_kind=degrees.cp_kind,
            axes=degrees.axes,
            micro_batches=micro_batches,
            schedule_kind=degrees.schedule_kind,
            chunks=degrees.chunks,
            blocks=degrees.stage_blocks,
            max_in_flight=degrees.max_in_flight,
            weights=weights,
            by_shares=by_shares,
        )

    strategy = cut(None)
    dealt_out = by_shares is not None or _dealt_out(strategy, graph, degrees.stage_blocks)
    if degrees.pp * degrees.chunks > 1 and not dealt_out:
        # all stages are alike, so that what a layer takes does not depend on where it lies
        pieces = pieces_of_batch({} if known is None else known, setting, micro_batches)
        strategy = cut(_layer_seconds(setting, graph, strategy, pieces))
    strategy = with_recomputation(strategy, graph, degrees.recompute)
    if degrees.sharding is not None:
        strategy = with_sharding(strategy, graph, degrees.sharding, degrees.shard_size)
    strategy = replace(strategy, offload=tuple(degrees.offload))
    return strategy, graph, _title(degrees, dp)


def pieces_of_batch(known: PiecesByBatch, setting: Setting, micro_batches: int) -> KnownPieces:
    """What is known of layers of one micro-batch, to which new ones are added.

    Parameters
    ----------
    known
        Costs of layers of this network on this cluster.
    setting
        The question.
    micro_batches
        Of a step. [items]
    """
    batch = setting.batch // micro_batches
    return known.setdefault((setting.machine.training, batch), {})


def splits_alone(degrees: Degrees) -> bool:
    """Whether degrees say no more than how layers are split."""
    usual = Degrees()
    return all(
        one.name in _SPLITS or getattr(degrees, one.name) == getattr(usual, one.name)
        for one in fields(Degrees)
    )


def degree_distributions(setting: Setting, degrees: Degrees) -> Mapping[str, Distribution]:
    """How degrees split every layer, where that is all that they say.

    Raises
    ------
    InputError
        When they do not fit.
    """
    return strategy_by_degrees(setting, degrees)[0].distributions


def _refuse_strided_stages(degrees: Degrees, dp: int) -> None:
    """Refuse an order of axes by which the devices of a stage are no neighbours."""
    ways = {"dp": dp, "tp": degrees.tp, "cp": degrees.cp, "ep": degrees.ep}
    outside = degrees.axes[degrees.axes.index("pp") + 1 :]
    around = next((axis for axis in outside if ways[axis] > 1), None)
    if degrees.pp > 1 and around is not None:
        raise InputError(
            "the devices of a stage must be neighbours, since links are shared by whole stages, "
            f"but {around} of {ways[around]} ways lies outside of pp in --axes "
            f"{','.join(degrees.axes)}; move pp to the end"
        )


def _title(degrees: Degrees, dp: int) -> str:
    """Such as "dp 4 x tp 2 x pp 2"."""
    rows = {"dp": dp, "tp": degrees.tp, "pp": degrees.pp, "cp": degrees.cp, "ep": degrees.ep}
    always = ("dp", "tp", "pp")
    return " x ".join(f"{name} {ways}" for name, ways in rows.items() if ways > 1 or name in always)


def _micro_batches(setting: Setting, degrees: Degrees, dp: int) -> int:
    """Micro-batches of a step. [items]"""
    size, count = degrees.micro_batch_size, degrees.micro_batches or 1
    each, what = (count, "micro-batches") if size is None else (size, "the micro-batch size")
    needed = dp * each
    if setting.batch % needed:
        lower = setting.batch // needed * needed
        sizes = f"{lower} or {lower + needed}" if lower else f"{needed}"
        factors, product = f"dp x {what}", f"{dp} x {each} = {needed}"
        if each == 1 and size is None:
            factors, product = "dp", str(dp)
        raise InputError(
            f"the global batch must be a multiple of {factors}, {product}, but is "
            f"{setting.batch}; {sizes} would do"
        )
    return count if size is None else setting.batch // needed


def _dealt_out(strategy: Strategy, graph: Graph, blocks: str | Sequence[int]) -> bool:
    """Whether the stages of a transformer have as many blocks as was asked for."""
    if not is_transformer(graph) or blocks == "balanced":
        return False
    counts = {len({block_of(name) for name in stage.layers} - {None}) for stage in strategy.stages}
    return blocks != "equal" or len(counts) == 1


def with_sharding(
    strategy: Strategy, graph: Graph, stage: int, shard_size: int | None = None
) -> Strategy:
    """The strategy with what a stage of ZeRO cuts over the ranks with the same weight.

    Parameters
    ----------
    strategy, graph
        The strategy, and the network at one micro-batch.
    stage
        1 for the optimizer's state, 2 also for the gradients, 3 also for the weights, 0 for none.
    shard_size
        Of these ranks, how many; None for all. [items]
    """
    config = MemoryConfig(
        weights=stage > 2, gradients=stage > 1, state=stage > 0, shard_size=shard_size
    )
    memory = {layer.name: config for layer in graph.compute_layers if layer.held_parameters}
    return replace(strategy, memory=memory)


def _layer_seconds(
    setting: Setting, graph: Graph, strategy: Strategy, known: KnownPieces
) -> dict[str, float]:
    """Computation of every layer on one micro-batch, to balance stages by. [s]"""
    machine, shape = setting.machine, strategy.stages[0].shape
    pieces = Pieces(graph, replace(machine, topology=Topology.of(setting.cluster, shape)))
    if not setting.cluster.groups:  # what layers cost on all kinds of hosts is that of no stage
        pieces = known.setdefault((shape, ()), pieces)
    result = {}
    for name, distribution in strategy.distributions.items():
        piece = pieces.of(name, distribution)
        result[name] = piece.forward + piece.backward
    return result
