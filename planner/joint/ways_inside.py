"""Ways to split the layers of a replica: tensor, context and expert parallelism."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from costmodels.graph import Graph
from costmodels.strategy.blocks import is_transformer
from costmodels.strategy.propagate import inner_first
from planner.joint.choices import computing_again, divisors, recomputations
from planner.request.parts import Degrees
from planner.request.setting import Setting

# Positions that a part of a sequence has at least, where context parallelism divides it: where
# samples can be shared out among the devices instead, and where they cannot: then no less than
# FlashAttention-2 takes of queries at a time (Dao 2023). [items]
SHORTEST_PART, SHORTEST_OF_FEW = 2048, 128
# Beyond so many GPUs no more parts are looked at than share out the samples, as other tensor
# parallelism does as well. [items]
FEW_GPUS = 32


def insides(
    setting: Setting, again: Sequence[str] = (), *, short: bool = True, kept_tp: int | None = None
) -> Iterator[Degrees]:
    """Ways of tensor, context and expert parallelism, with what is computed again.

    Parameters
    ----------
    setting
        The question.
    again
        What may be computed again, all that can be by default.
    short
        Whether sequences are cut into short parts where samples cannot be shared out.
    kept_tp
        Ways of tensor parallelism if those are held fixed.
    """
    graph, shape = setting.graph, setting.machine.topology.shape
    attends = is_transformer(graph)
    experts = max((layer.dims.get("expert", 1) for layer in graph.compute_layers), default=1)
    sequences = [layer.dims.get("sequence", 1) for layer in graph.compute_layers]
    local = math.prod(shape[: setting.cluster.host_index + 1])
    again = again or recomputations(graph)
    sent = _sent_by_layers(graph)
    few = short and not _shares_out_samples(setting, local, kept_tp)
    for tp in divisors(setting.gpus):
        # what crosses hosts waits for their links in every layer; samples cross them for less,
        # unless a replica sends less of what its layers make than of gradients
        samples_cross = setting.batch > setting.gpus // local
        if tp > local and samples_cross and sent * tp >= graph.parameters * setting.gpus:
            continue
        if inner_first(tp, shape) is None:
            continue
        ranks = setting.gpus // tp
        enough = next(cp for cp in divisors(ranks) if setting.batch % (ranks // cp) == 0)
        for cp in divisors(ranks) if attends else [1]:
            is_needed = cp <= enough or (enough > 1 and setting.gpus <= FEW_GPUS)
            shortest = SHORTEST_OF_FEW if few or (short and is_needed) else SHORTEST_PART
            if cp > 1 and max(sequences) // cp < shortest:
                continue
            for ep, etp in _of_experts(setting.gpus // (tp * cp), tp, cp, experts):
                ways = tp, cp, ep, etp
                # what a replica is costed on
                if not setting.cluster.can_use(tp * cp * _split_by(*ways, False).expert_replicas):
                    continue
                divides = (False, True) if tp > 1 and attends else (False,)
                # ranks with the same experts' inputs would send them to as many ranks
                for split in divides if etp is None else (True,):
                    for what in again:
                        yield computing_again(_split_by(*ways, split), what)


@cache
def _split_by(tp: int, cp: int, ep: int, etp: int | None, split: bool) -> Degrees:
    return Degrees(tp=tp, cp=cp, ep=ep, etp=etp, sequence_parallel=split)


def _of_experts(rest: int, tp: int, cp: int, experts: int) -> Iterator[tuple[int, int | None]]:
    """Ways of expert parallelism, and of tensor parallelism within experts, None for all of it.

    Parameters
    ----------
    rest, tp, cp
        Of data and pipeline parallelism together, of tensor and of context parallelism. [ways]
    experts
        Of a layer. [items]
    """
    yield 1, None
    # frameworks have all ways of tensor parallelism within experts, or a single one
    for within in dict.fromkeys((tp, 1)) if experts > 1 else ():
        for ep in divisors(experts)[1:]:
            # no rank of the others has the same experts and the same samples
            others = ep * within
            if others % (tp * cp) == 0 and rest % (others // (tp * cp)) == 0:
                yield ep, None if within == tp else within


def _shares_out_samples(setting: Setting, local: int, kept: int | None) -> bool:
    """Whether all devices have samples, with tensor parallelism within a host or without.

    Parameters
    ----------
    setting, local, kept
        The question, the devices of a host, and ways of tensor parallelism if those are given.
    """
    layers = setting.graph.compute_layers
    heads = [layer.dims["head"] for layer in layers if layer.kind == "attention"]
    ways = [tp for tp in divisors(setting.gpus) if (tp <= local if kept is None else tp == kept)]
    possible = (tp for tp in ways if all(count % tp == 0 for count in heads))
    return any(setting.batch % (setting.gpus // tp) == 0 for tp in possible)


def _sent_by_layers(graph: Graph) -> int:
    """What tensor parallelism sends of all samples in both passes, about. [items]

    It brings together what layers with weights read or make, whichever is less.
    """
    layers = [one for one in graph.compute_layers if one.multiplies_weight]
    return 2 * sum(min(one.output.size, *(read.size for read in one.inputs)) for one in layers)
