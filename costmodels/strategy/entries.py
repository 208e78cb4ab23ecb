"""What a person writes down: a few entries, from which the rest of a strategy follows.

Layers and subgraphs are named by patterns (see `costmodels.strategy.tree`), so that entries do not
depend on the graph. Every entry has a label, by which error messages call it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from costmodels.errors import InputError
from costmodels.strategy.strategy import SCHEDULES, check_offloaded

DEFAULTS = ("data", "replicated")


class StageEntry(Struct, frozen=True, kw_only=True):
    """A pipeline stage.

    Parameters
    ----------
    layers
        Patterns of its layers; none where the network is cut evenly.
    devices
        The first device and the one after the last; None for an equal part of all.
    recompute
        Segments that are computed again, each the patterns of its layers.
    label
        What error messages call the entry.
    """

    layers: tuple[str, ...] = ()
    devices: tuple[int, int] | None = None
    recompute: tuple[tuple[str, ...], ...] = ()
    label: str = "a stage"


class LayerEntry(Struct, frozen=True, kw_only=True):
    """How layers are split: Proteus's computation config.

    Parameters
    ----------
    name
        Pattern of the layers.
    partition
        Ways of each dim in all, or at each level from the inside out. [ways]
    devices
        The devices they are placed on, None for those of their stage.
    label
        What error messages call the entry.
    """

    name: str
    partition: Mapping[str, int | tuple[int, ...]]
    devices: tuple[int, int] | None = None
    label: str = "a layer entry"

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError(
                f"{self.label} must name layers but its name is empty; write '*' for all layers at "
                "the top of the network, or leave the entry out"
            )


class SubgraphEntry(Struct, frozen=True, kw_only=True):
    """What holds for all layers below a node of the tree; None is nothing said.

    Parameters
    ----------
    name
        Pattern of the subgraphs, empty for the whole network.
    recompute
        Whether activations are not kept but computed again, each subgraph at once.
    weights, gradients, state
        Whether they are cut over the ranks that hold the same weight (ZeRO).
    shard_size
        Of these ranks, how many, where not all. [items]
    label
        What error messages call the entry.
    """

    name: str = ""
    recompute: bool | None = None
    weights: bool | None = None
    gradients: bool | None = None
    state: bool | None = None
    shard_size: int | None = None
    label: str = "a subgraph entry"


class Description(Struct, frozen=True, kw_only=True):
    """A strategy as it is written down.

    Parameters
    ----------
    stages, layers, subgraphs
        The entries.
    kind
        One of `SCHEDULES`, empty for "interleaved" where stages share devices and "1f1b" elsewhere.
    micro_batches, max_in_flight
        See `costmodels.strategy.Schedule`. [items]
    groups
        Equal groups of devices that the network is cut for where no stages are given. [items]
    chunks
        Stages of each of these groups. [items]
    default
        What layers get that no entry reaches: "data" splits samples over all devices of their
        stage, "replicated" nothing.
    gather_again, ring_attention, keep_products, offload
        See `costmodels.strategy.Strategy`.
    """

    stages: tuple[StageEntry, ...] = ()
    layers: tuple[LayerEntry, ...] = ()
    subgraphs: tuple[SubgraphEntry, ...] = ()
    kind: str = ""
    micro_batches: int = 1
    max_in_flight: int | None = None
    groups: int = 1
    chunks: int = 1
    default: str = field(default="data")
    gather_again: bool = False
    ring_attention: bool = False
    keep_products: bool = False
    offload: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_offloaded(self.offload)
        if self.kind and self.kind not in SCHEDULES:
            raise InputError.rule(
                "the schedule",
                f"be one of {', '.join(SCHEDULES)}",
                f"'{self.kind}'",
                "choose one",
            )
        if self.default not in DEFAULTS:
            raise InputError.rule(
                "the default",
                f"be one of {', '.join(DEFAULTS)}",
                f"'{self.default}'",
                "choose one",
            )
        if min(self.groups, self.chunks) < 1:
            raise InputError(
                f"a pipeline must have at least 1 stage and 1 chunk but has {self.groups} and "
                f"{self.chunks}; raise it"
            )
        if self.stages and (self.groups > 1 or self.chunks > 1):
            raise InputError(
                f"stages must be given one by one, as {self.stages[0].label}, or by how many there "
                "are, as 'stages' and 'chunks' of [schedule], but are given both ways; remove one"
            )
