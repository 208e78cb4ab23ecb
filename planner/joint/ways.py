"""What may be done beside splits of layers that differ from layer to layer, and the best so far."""

from __future__ import annotations

from msgspec import Struct

from costmodels.graph import Graph
from costmodels.simulation.segments import blocks_of_layers, several_layers
from planner.joint.choices import divisors
from planner.joint.layer_splits import LayerSplits
from planner.joint.runtimes import stages_of_zero
from planner.joint.wishes import Wishes
from planner.request.setting import Setting


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
