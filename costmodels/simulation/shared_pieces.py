"""Layers of one stage that use one weight: what they add to the first of them, which holds it.

In every stage one of the users of a weight holds it: its owner, or the first user where the owner
is in another stage.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from costmodels.communication.topology import Topology
from costmodels.distribution import Distribution, one_candidate, split_dims
from costmodels.graph import Graph, Layer
from costmodels.layers.layer_passes import SOURCES
from costmodels.layers.shared_weight import SharedBlock, shared_weight, within_whole
from costmodels.simulation.job import Job
from costmodels.simulation.pieces import Piece, Pieces
from costmodels.step.machine import Machine
from costmodels.step.training import Training

# What layers cost on stages of one shape on the same groups of hosts.
KnownPieces = dict[tuple[tuple[int, ...], tuple[str, ...]], Pieces]
# The same by options of the step and samples of a micro-batch, of one network on one cluster.
PiecesByBatch = dict[tuple[Training, int], KnownPieces]
# Rates of full buckets are of no use here: any size will do. [B]
_ANY_SIZE = 1e6


def holders_of_weights(graph: Graph, stage_of: Mapping[str, int]) -> dict[str, str]:
    """For each user of a shared weight, the layer that holds it in its stage.

    Parameters
    ----------
    graph
        The network.
    stage_of
        Stage of every layer.
    """
    found: dict[str, str] = {}
    for owner, names in graph.sharers.items():
        first: dict[int, str] = {}
        for name in (owner, *names):
            found[name] = first.setdefault(stage_of[name], name)
    return found


def shared_blocks(
    graph: Graph,
    holders: Mapping[str, str],
    distributions: Mapping[str, Distribution],
    pieces: Mapping[str, Piece],
    costed: Mapping[str, Pieces],
) -> dict[str, SharedBlock]:
    """What each layer adds whose weight another layer of its stage holds.

    Parameters
    ----------
    graph
        The network.
    holders
        As of `holders_of_weights`.
    distributions
        Of every layer.
    pieces
        Of every layer; those that hold a weight have all of their block of it.
    costed
        Of every layer, what is costed on the machine of its stage.
    """
    added: dict[str, list[tuple[str, SharedBlock]]] = {}
    for name, holder in holders.items():
        if name == holder:
            continue
        first, second = ((graph.layers[n], distributions[n]) for n in (holder, name))
        block = _added_block(first, second, costed[name])
        added.setdefault(holder, []).append((name, block))
    found: dict[str, SharedBlock] = {}
    for holder, rows in added.items():
        whole, held = float(graph.layers[holder].held_parameters), pieces[holder].numbers
        blocks = within_whole(whole, held, [block for _, block in rows])
        found.update(zip((name for name, _ in rows), blocks, strict=True))
    return found


def _added_block(
    holder: tuple[Layer, Distribution], user: tuple[Layer, Distribution], costed: Pieces
) -> SharedBlock:
    """What a user of a weight adds to the layer that holds it.

    Parameters
    ----------
    holder, user
        Both layers, and how they are split.
    costed
        Knows what others like them add.
    """
    rows = [(one.signature, *split.degrees.items(), split.shape) for one, split in (holder, user)]
    key = tuple(rows)
    if key not in costed.shared:
        first, second = (
            (one, one_candidate(split, split_dims(one))) for one, split in (holder, user)
        )
        found = shared_weight(first, second, costed.machine, largest_bucket=_ANY_SIZE)
        costed.shared[key] = found.block(0, 0)
    return costed.shared[key]


def with_block(piece: Piece, block: SharedBlock, training: Training) -> Piece:
    """The piece of a layer whose weight another one holds, with what it adds to that.

    Parameters
    ----------
    piece
        The layer without a weight.
    block
        What it adds.
    training
        Options of the step.
    """
    sources = piece.sources
    if block.update > 0.0:
        sources = (*sources, (SOURCES[block.update_source], block.update))
    return replace(
        piece,
        update=piece.update + block.update,
        gradient_bytes=block.gradient_bytes,
        gradient_group=block.gradient_group,
        parameters=block.parameters,
        numbers=block.parameters + block.frozen,
        weights=block.parameters * training.weight_size + block.frozen * training.frozen_size,
        gradients=block.parameters * training.gradient_size,
        state=block.parameters * training.state_size,
        sources=sources,
    )


def pieces_of_job(
    job: Job, holders: Mapping[str, str], known: KnownPieces
) -> tuple[Mapping[str, Piece], Mapping[str, SharedBlock]]:
    """The piece of every layer, and what those add whose weight another one holds.

    Parameters
    ----------
    job
        The job.
    holders
        For each user of a shared weight, the layer that holds it in its stage.
    known
        Costs of layers by the shape of their stage and the groups of hosts that it is on, to which
        new ones are added.
    """
    found: dict[str, Piece] = {}
    costed: dict[str, Pieces] = {}
    for stage in job.strategy.stages:
        groups = job.cluster.groups_of(stage.first_device, stage.num_devices)
        key = (stage.shape, tuple(group.name for group in groups))
        if key not in known:
            topology = Topology.of(job.cluster.under(*groups), stage.shape)
            compute = job.compute.under(groups)
            machine = Machine(topology=topology, compute=compute, training=job.training)
            known[key] = Pieces(job.graph, machine)
        for name in stage.layers:
            costed[name] = known[key]
            found[name] = known[key].of(
                name,
                job.strategy.distributions[name],
                owns_weight=holders.get(name, "") == name,
            )
    shared = shared_blocks(job.graph, holders, job.strategy.distributions, found, costed)
    for name, block in shared.items():
        found[name] = with_block(found[name], block, job.training)
    if job.beyond is not None:
        found = {name: _among_all(piece, job.shape, job.beyond[1]) for name, piece in found.items()}
    return found, shared


def _among_all(piece: Piece, shape: tuple[int, ...], whole: tuple[int, ...]) -> Piece:
    """A piece whose weight the replicas of other hosts hold as well.

    Parameters
    ----------
    piece
        The piece on some hosts.
    shape, whole
        Members of each level: of those, and of all. [items]
    """
    group = tuple(
        same * all_ // own
        for same, own, all_ in zip(piece.gradient_group, shape, whole, strict=True)
    )
    return replace(piece, gradient_group=group)
