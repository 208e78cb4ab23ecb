"""What may be done beside splits of layers that differ from layer to layer, and the best so far."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.simulation import Runtime
from costmodels.simulation.segments import blocks_of_layers, several_layers
from costmodels.simulation.shared_pieces import PiecesByBatch
from costmodels.strategy import Schedule
from costmodels.strategy.usual import single_stage
from planner.joint.choices import divisors
from planner.joint.estimate import ROUNDING
from planner.joint.layer_splits import LayerSplits
from planner.joint.runtimes import choice_runtime, stages_of_zero
from planner.joint.wishes import Wishes
from planner.planning.decision.choice import EQUAL
from planner.planning.staged import StagedStep, told_or_simulated
from planner.request.by_degrees import micro_graph, pieces_of_batch, with_sharding
from planner.request.placement import PlacedNetwork
from planner.request.recomputation import with_recomputation
from planner.request.setting import Setting

# What layers of such a plan are split by.
NAME = "splits layer by layer"


class Way(Struct, frozen=True, kw_only=True):
    """What of a way to train is no split of its layers.

    Parameters
    ----------
    micro_batches
        Of a step. [items]
    zero
        What is cut over replicas.
    again
        Blocks that are computed again, the first ones. [items]
    """

    micro_batches: int
    zero: int
    again: int


class Leading(Struct, frozen=True, eq=False):
    """The fastest splits that fit so far.

    Parameters
    ----------
    seconds
        Their step. [s]
    splits, way, choices
        Where they are from, what is done beside them, and the candidate of each layer.
    """

    seconds: float
    splits: LayerSplits
    way: Way
    choices: tuple[int, ...]


class Leaders(Struct, eq=False):
    """The fastest splits that fit so far of every way."""

    known: dict[Way, Leading] = field(default_factory=dict)

    @property
    def first(self) -> Leading | None:
        """The fastest of all."""
        return min(self.known.values(), key=lambda one: one.seconds, default=None)

    def within(self, limit: float, most: int) -> list[Leading]:
        """Those that take less than a limit, the fastest first.

        Parameters
        ----------
        limit
            The limit. [s]
        most
            How many of ways that compute other blocks again and are alike but for that. [items]
        """
        near = (one for one in self.known.values() if one.seconds < limit)
        found: list[Leading] = []
        alike: Counter[tuple[int, int]] = Counter()
        for one in sorted(near, key=lambda one: one.seconds):
            kind = one.way.micro_batches, one.way.zero
            alike[kind] += 1
            if alike[kind] <= most:
                found.append(one)
        return found

    def offer(self, one: Leading) -> None:
        """Keep splits if they are the fastest of their way."""
        before = self.known.get(one.way)
        if before is None or one.seconds < before.seconds:
            self.known[one.way] = one


class AllowedWays(Struct, frozen=True):
    """What wishes leave of it.

    Parameters
    ----------
    setting, wishes
        The question, and what is held fixed or ruled out.
    """

    setting: Setting
    wishes: Wishes

    def zeros(self) -> list[int]:
        """Stages of ZeRO."""
        found = [0] if "sharding" in self.wishes.forbid else list(stages_of_zero(self.setting))
        return [zero for zero in found if self.wishes.keep.get("zero", zero) == zero]

    def allow(self, found: StagedStep) -> bool:
        """Whether something is cut over replicas where that must be: splits may leave none."""
        pieces = found.compiler.view.pieces.values()
        cut = any(one.parameters and math.prod(one.gradient_group) > 1 for one in pieces)
        return cut or not self.wishes.keep.get("zero")

    def counts(self) -> list[int]:
        """Numbers of micro-batches. [items]"""
        found = [1] if "accumulation" in self.wishes.forbid else divisors(self.setting.batch)
        return [n for n in found if self.wishes.keep.get("micro_batches", n) == n]

    def blocks(self, graph: Graph) -> list[int]:
        """Numbers of blocks of a network that may be computed again, none first. [items]"""
        most = len(several_layers(blocks_of_layers(graph)))
        if "recompute" in self.wishes.forbid:
            most = 0
        kept = self.wishes.keep.get("recompute")
        found = {None: [*range(most + 1)], "none": [0], "full": [most] if most else []}
        return found.get(kept, []) if kept is None or isinstance(kept, str) else []


def simulated_way(
    setting: Setting,
    runtime: Runtime,
    known: PiecesByBatch,
    *,
    way: Way,
    splits: Mapping[str, Distribution],
    most: float,
) -> StagedStep | None:
    """The step of a way, None where it cannot run, or does not fit and holds more than that.

    Parameters
    ----------
    setting, runtime
        The question, and the runtime without sharding.
    known
        What layers cost, as of `planner.planning.staged.tried`.
    way, splits
        How to train, and how each layer is split.
    most
        What does not fit and holds more is of no use. [B]
    """
    memory = setting.cluster.device.memory
    # sums in another order than that of a simulation
    too_much = max(most - memory, 0.0) + ROUNDING * memory
    own = choice_runtime(runtime, way.zero)
    setting = setting.under(own) if own is not runtime else setting
    graph = micro_graph(setting, way.micro_batches)
    strategy = replace(
        single_stage(splits, setting.machine.topology.shape),
        schedule=Schedule(micro_batches=way.micro_batches),
    )
    try:
        strategy = with_recomputation(strategy, graph, way.again)
        if way.zero or own.shard:
            strategy = with_sharding(strategy, graph, way.zero)
        placed = PlacedNetwork(setting=setting, graph=graph, strategy=strategy, name=NAME)
        pieces = pieces_of_batch(known, setting, way.micro_batches)
        return told_or_simulated(placed, own, None, pieces, lambda short: short > too_much)
    except InputError:
        return None


def replacing(before: StagedStep | None, found: StagedStep, gain: float) -> float:
    """What a step must take less than to take the place of a simpler plan. [s]

    That one is out where another one is faster and needs no more memory, as in
    `planner.planning.decision.choice`: so more memory never gives a slower plan of these.

    Parameters
    ----------
    before
        The step of the simpler plan, None without one.
    found
        The step.
    gain
        How much faster it must be where it needs more memory. [parts]
    """
    if before is None:
        return math.inf
    return before.seconds * (1.0 - (gain if found.peak_memory > before.peak_memory else EQUAL))
