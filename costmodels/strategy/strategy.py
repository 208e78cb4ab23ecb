"""A complete strategy: splits and placement of layers, schedules of subgraphs (Proteus, IV).

A *stage* is a subgraph on one group of devices; micro-batches flow through the stages in order.
Stages that share a group are the chunks of an interleaved schedule. Within a stage every layer has
a distribution over the devices of the stage, and a memory config says which of its weight's
tensors are cut over the ranks that hold the same weight.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from msgspec import Struct, field

from costmodels.distribution import Distribution, devices_at_work, limit_reason
from costmodels.errors import InputError
from costmodels.graph import Graph, Layer

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
# What can wait in the memory of the host.
OFFLOADED = ("activations", "weights", "optimizer")


class Schedule(Struct, frozen=True, kw_only=True):
    """In which order a stage works on its micro-batches.

    Parameters
    ----------
    kind
        "gpipe": all forward passes, then all backward passes; "1f1b": a backward pass as soon as
        there is one (PipeDream's order, flushed each step); "interleaved": the same with several
        stages a device group (Narayanan et al. 2021, section 2.2); "zero-bubble": backward passes
        of weights wait, to fill bubbles (ZB-H1 of Qi et al. 2023).
    micro_batches
        Parts that the batch is cut into. [items]
    max_in_flight
        Forward passes of a stage whose backward pass is still to come; None for as many as the
        kind needs. [items]
    """

    kind: str = "1f1b"
    micro_batches: int = 1
    max_in_flight: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise InputError.rule(
                "the schedule",
                f"be one of {', '.join(SCHEDULES)}",
                f"'{self.kind}'",
                "choose one",
            )
        if self.micro_batches < 1:
            raise InputError(
                f"a batch must be cut into at least 1 micro-batch but micro_batches is "
                f"{self.micro_batches}; raise it"
            )
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise InputError(
                f"at least 1 micro-batch must be in flight but max_in_flight is "
                f"{self.max_in_flight}; raise it or leave it out"
            )


class MemoryConfig(Struct, frozen=True, kw_only=True):
    """Which tensors of a layer's weight are cut over the ranks that hold the same weight (ZeRO).

    Parameters
    ----------
    weights, gradients, state
        Whether the weight, its gradient and the optimizer's state are cut.
    shard_size
        Ranks that they are cut over, fewer than have the same weight for hybrid sharding (Zhao et
        al. 2023, section 3.2.2): the inner ones; None for all. [items]
    """

    weights: bool = False
    gradients: bool = False
    state: bool = False
    shard_size: int | None = None


class Stage(Struct, frozen=True, kw_only=True):
    """Layers that one group of devices runs.

    Parameters
    ----------
    layers
        Names, in the order of the forward pass.
    first_device
        The first device; a stage takes as many from there on as its shape has.
    shape
        Devices of the stage: members of each level of the cluster, from the inside out. [items]
    recompute
        Segments of layers, in forward order, whose activations are not kept but computed again
        right before their backward pass.
    """

    layers: tuple[str, ...]
    first_device: int
    shape: tuple[int, ...]
    recompute: tuple[tuple[str, ...], ...] = ()

    @property
    def num_devices(self) -> int:
        """Devices of the stage. [items]"""
        return math.prod(self.shape)

    @property
    def group(self) -> tuple[int, int]:
        """Its devices: the first, and the one after the last."""
        return self.first_device, self.first_device + self.num_devices


class BatchShare(Struct, frozen=True, kw_only=True):
    """What the replicas on one group of hosts work on, where not all have as many samples.

    Parameters
    ----------
    group
        The hosts.
    first_device, num_devices
        Their devices. [items]
    replicas
        How many they are. [items]
    micro_batches
        Of each of them. [items]
    samples
        Of a micro-batch of each of them. [samples]
    """

    group: str
    first_device: int
    num_devices: int
    replicas: int
    micro_batches: int
    samples: int

    @property
    def batch(self) -> int:
        """Samples of all replicas of the group in a step. [samples]"""
        return self.replicas * self.micro_batches * self.samples


def check_offloaded(what: tuple[str, ...]) -> None:
    """Refuse what cannot wait in the memory of the host.

    Raises
    ------
    InputError
        When there is no such thing, or one is named twice.
    """
    if len(set(what)) < len(what) or not set(what) <= set(OFFLOADED):
        raise InputError.rule(
            "what waits in the memory of the host (offload)",
            f"be some of {', '.join(OFFLOADED)}, each once",
            ", ".join(what),
            "correct it",
        )


class Strategy(Struct, frozen=True, kw_only=True):
    """How a network is trained on some devices.

    Parameters
    ----------
    stages
        In the order of the forward pass.
    distributions
        The split of every layer over the devices of its stage, at one micro-batch.
    schedule
        Of the micro-batches.
    memory
        Memory config of layers whose weight's tensors are cut; others keep them whole.
    gather_again
        Whether inputs that a layer gathers are gathered again for its backward pass, so that each
        rank keeps its own part only (Korthikanti et al. 2022, section 4.2.2).
    ring_attention
        Whether keys and values that are gathered again come around a ring instead, part by part.
    keep_products
        Whether the outputs of attention, of every second product with a weight and of
        reduce-scatters stay where a segment is computed again (torchtitan's selective
        recomputation by operation).
    offload
        What waits in the memory of the host where it is not used, of `OFFLOADED`.
    shares
        Samples of the replicas on each group of hosts, of a single stage; none where all replicas
        have as many. Distributions are then those of replicas alike.
    """

    stages: tuple[Stage, ...]
    distributions: Mapping[str, Distribution]
    schedule: Schedule = field(default_factory=Schedule)
    memory: Mapping[str, MemoryConfig] = field(default_factory=dict)
    gather_again: bool = False
    ring_attention: bool = False
    keep_products: bool = False
    offload: tuple[str, ...] = ()
    shares: tuple[BatchShare, ...] = ()

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """The distinct groups of devices, in the order of their first stage."""
        return tuple(dict.fromkeys(stage.group for stage in self.stages))

    @property
    def layers_of_groups(self) -> dict[tuple[int, int], tuple[str, ...]]:
        """The layers of each group of devices, stage after stage."""
        found: dict[tuple[int, int], tuple[str, ...]] = {}
        for stage in self.stages:
            found[stage.group] = (*found.get(stage.group, ()), *stage.layers)
        return found

    @property
    def num_devices(self) -> int:
        """Devices of all groups. [items]"""
        return sum(end - start for start, end in self.groups)

    @property
    def num_waiting(self) -> int:
        """Devices that wait for each other: of those that do the same in all layers one. [items]"""
        if len(self.stages) > 1:
            return self.num_devices
        return devices_at_work(self.distributions.values())

    def check(self, graph: Graph) -> None:
        """Refuse a strategy that cannot run.

        Parameters
        ----------
        graph
            The network at the batch of one micro-batch.

        Raises
        ------
        InputError
            When stages do not cover the layers once each and in order, overlap in devices, or a
            layer cannot be split as asked.
        """
        stage_of = self._stages_of(graph)
        for layer in graph.compute_layers:
            self._check_layer(graph, layer, stage_of)
        self.check_groups()

    def _stages_of(self, graph: Graph) -> dict[str, int]:
        """Number of the stage of each layer, if each is in one stage."""
        stage_of: dict[str, int] = {}
        for number, stage in enumerate(self.stages):
            for name in stage.layers:
                if name not in graph.layers:
                    raise InputError(
                        f"stage {number} has the layer '{name}', which {graph.name} lacks; "
                        "correct the name"
                    )
                if name in stage_of:
                    raise InputError.rule(
                        f"layer '{name}'",
                        "be in one stage",
                        f"in stages {stage_of[name]} and {number}",
                        "take it out of one",
                    )
                stage_of[name] = number
        return stage_of

    def _check_layer(self, graph: Graph, layer: Layer, stage_of: Mapping[str, int]) -> None:
        """Whether a layer is in a stage, after those it reads, and can be split as asked."""
        if layer.name not in stage_of:
            raise InputError.rule(
                f"layer '{layer.name}'", "be in a stage", "in none", "add it to one"
            )
        for edge in graph.producers[layer.name]:
            before = stage_of.get(edge.source, 0)
            if before > stage_of[layer.name]:
                raise InputError(
                    f"layer '{layer.name}' of stage {stage_of[layer.name]} must not read "
                    f"'{edge.source}' of the later stage {before}; order the stages along the "
                    "forward pass"
                )
        distribution = self.distributions[layer.name]
        stage = self.stages[stage_of[layer.name]]
        if tuple(distribution.shape) != tuple(stage.shape):
            raise InputError(
                f"layer '{layer.name}' is split over {distribution.shape} devices but its "
                f"stage has {stage.shape}; give it the devices of its stage"
            )
        reason = limit_reason(layer, distribution)
        if reason is not None:
            raise InputError(f"the strategy does not fit the network: {reason}; split it less")

    def check_groups(self) -> None:
        """Refuse groups of devices that overlap, or do not take their stages in turn.

        Raises
        ------
        InputError
            When they do.
        """
        groups = sorted(self.groups)
        for (_, end), (start, _) in itertools.pairwise(groups):
            if start < end:
                raise InputError(
                    f"stages must share all devices or none but one ends at device {end - 1} and "
                    f"another starts at {start}; separate them"
                )
        if any(
            stage.group != self.groups[number % len(groups)]
            for number, stage in enumerate(self.stages)
        ) or len(self.stages) % len(groups):
            raise InputError(
                f"groups of devices must take their stages in turn, each as many, but "
                f"{len(self.stages)} stages are on {len(groups)} groups otherwise; reorder them"
            )
        if len(groups) < len(self.stages) and self.schedule.kind != "interleaved":
            raise InputError(
                f"{len(self.stages)} stages on {len(groups)} groups of devices must be scheduled "
                f"as 'interleaved' but the schedule is '{self.schedule.kind}'; change it"
            )
