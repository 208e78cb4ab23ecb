"""What collectives over the ranks that hold the same weights take, and messages between stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodels.communication.collectives import send_recv_time
from costmodels.simulation import Runtime
from costmodels.simulation.buckets import reduced_late, travelling_part
from costmodels.simulation.communicators import Neighbours, communicators_size
from costmodels.simulation.messages import NO_MESSAGE, OUT, Message, StageLinks
from costmodels.strategy import MemoryConfig, Stage
from costmodels.strategy.usual import stage_shape
from planner.joint.choices import Choice
from planner.joint.gathers import Travel
from planner.joint.micro_batch import MicroBatch
from planner.joint.runtimes import choice_runtime
from planner.request.setting import Setting

Cut = tuple[int, ...]
Floats = NDArray[np.float64]


class Gradients(NamedTuple):
    """How gradients travel.

    Parameters
    ----------
    kind
        Of the collective.
    part
        Of their size as they are kept.
    by_unit, each_micro_batch
        Whether those of every unit of layers travel by themselves, after every micro-batch; and
        whether all do after every micro-batch.
    limit
        When a bucket of them is full, None for never. [B]
    overlap
        Whether they travel while the backward pass goes on.
    """

    kind: str
    part: float
    by_unit: bool
    each_micro_batch: bool
    limit: float | None
    overlap: bool


class Exchanges:
    """Times of exchanges of one question.

    Parameters
    ----------
    setting, runtime
        The question, and the runtime that exchanges gradients.
    """

    def __init__(self, setting: Setting, runtime: Runtime) -> None:
        self.setting, self.runtime = setting, runtime
        self.whole = setting.machine.topology
        self.links: dict[int, StageLinks] = {}
        self.times: dict[tuple[object, ...], float] = {}
        self.sizes: dict[tuple[int, Cut, int], int] = {}
        self.travels: dict[int, Gradients] = {}
        self.held: dict[tuple[int, tuple[frozenset[Cut], ...]], float] = {}
        place = {one.name: n for n, one in enumerate(setting.graph.compute_layers)}
        sharers = setting.graph.sharers.items()
        # places of layers, and of others that share their weights
        self.shared = [(place[owner], place[one]) for owner, names in sharers for one in names]
        self.sent: dict[tuple[int, tuple[float, ...]], Floats] = {}
        self.by_layer: dict[tuple[object, ...], Floats] = {}
        # what it takes at least, see `planner.joint.exchange_bounds`
        self.least: dict[tuple[object, ...], float] = {}
        self.filled: dict[tuple[int, int, int], tuple[Floats, Floats, float]] = {}
        self.over: dict[tuple[int, int, int], list[Cut]] = {}
        # what is exchanged of each unit, see `planner.joint.unit_travels`
        self.by_unit: dict[tuple[int, int, bool, str, int], tuple[Travel, Travel, Travel]] = {}

    def gradients(self, zero: int) -> Gradients:
        """How gradients travel under a stage of ZeRO."""
        if zero not in self.travels:
            self.travels[zero] = self._gradients(zero)
        return self.travels[zero]

    def _gradients(self, zero: int) -> Gradients:
        runtime = choice_runtime(self.runtime, zero)
        memory = MemoryConfig(weights=zero > 2, gradients=zero > 1, state=zero > 0)
        scatters = runtime.scatters(memory)
        waits = reduced_late(memory, runtime)
        training = self.setting.under(runtime).machine.training
        return Gradients(
            kind="reduce_scatter" if scatters else "all_reduce",
            part=travelling_part(runtime, training),
            by_unit=runtime.bucket is None and runtime.each_micro_batch,
            each_micro_batch=runtime.each_micro_batch,
            limit=None if waits else runtime.bucket,
            overlap=runtime.overlap and not waits,
        )

    def _links(self, pp: int) -> StageLinks:
        """Links of the devices of a stage, of so many groups."""
        if pp not in self.links:
            shape = stage_shape(self.whole.shape, pp)
            stage = Stage(layers=(), first_device=0, shape=shape)
            training = self.setting.machine.training
            self.links[pp] = StageLinks(
                self.setting.cluster, self.whole.shape, stage, training.all_reduce
            )
        return self.links[pp]

    def group(self, pp: int, cut: Cut, shard_size: int = 0) -> tuple[int, ...]:
        """Ranks that hold the same weight where weights are cut like that. [items]

        Parameters
        ----------
        pp, cut
            Groups of devices, and how weights are cut.
        shard_size
            Only so many of them, the inner ones first, that share the weights among each other; 0
            for all.
        """
        shape = self._links(pp).topology.shape
        members = tuple(max(size // ways, 1) for size, ways in zip(shape, cut, strict=True))
        return inner(members, shard_size) if shard_size else members

    def others(self, pp: int, cut: Cut, shard_size: int) -> tuple[int, ...]:
        """Ranks that hold the same part of a weight that so many share. [items]

        Parameters
        ----------
        pp, cut, shard_size
            As of `group`.
        """
        members = zip(self.group(pp, cut), self.group(pp, cut, shard_size), strict=True)
        return tuple(size // part for size, part in members)

    def beside(self, pp: int, apart: int, ways: int) -> tuple[int, ...]:
        """So many ranks, each so many devices from the one before, at each level. [items]

        Parameters
        ----------
        pp
            Groups of devices. [items]
        apart, ways
            How far they lie apart, and how many they are. [items]
        """
        shape = self._links(pp).topology.shape
        left = zip(shape, inner(shape, apart), strict=True)
        return inner([size // below for size, below in left], ways)

    def communicators(self, choice: Choice, inside: MicroBatch) -> float:
        """Buffers of the groups that a device communicates in, beyond what is reserved. [B]

        Parameters
        ----------
        choice, inside
            Degrees, stages and shards, and a micro-batch of it.
        """
        pp, size, one, cuts = choice.pp, choice.shard_size, choice.inside, inside.cuts
        weights = {self.group(pp, cut, size) for cut in cuts}
        copies = {self.others(pp, cut, size) for cut in cuts if size}
        features = {self.beside(pp, 1, one.tp), *inside.features}
        features |= {
            self.beside(pp, one.tp, one.cp),
            self.beside(pp, one.ways_in_expert, one.ep),
        }
        key = (pp, (frozenset(features), frozenset(weights), frozenset(copies)))
        if key not in self.held:
            # of the first stage, which holds the most
            shares = 2 * bool(self.setting.graph.sharers)
            other = Neighbours(sends=1, shares=shares) if pp > 1 else Neighbours()
            links = self._links(pp)
            self.held[key] = communicators_size(
                links, features, weights, copies, other, self.runtime
            )
        return self.held[key]

    def ranks(self, pp: int, cut: Cut, shard_size: int = 0) -> int:
        """How many those of a `group` are. [items]

        Parameters
        ----------
        pp, cut, shard_size
            As of `group`.
        """
        key = (pp, cut, shard_size)
        if key not in self.sizes:
            self.sizes[key] = math.prod(self.group(pp, cut, shard_size))
        return self.sizes[key]

    def time(self, kind: str, pp: int, cut: Cut, num_bytes: float, shard_size: int = 0) -> float:
        """A collective over the ranks of a `group`. [s]

        Parameters
        ----------
        kind
            Of the collective.
        pp, cut, shard_size
            As of `group`.
        num_bytes
            The whole of what is exchanged. [B]
        """
        key = (kind, pp, cut, num_bytes, shard_size)
        if key not in self.times:
            self.times[key] = self._message(kind, pp, cut, num_bytes, shard_size).time
        return self.times[key]

    def _message(self, kind: str, pp: int, cut: Cut, num_bytes: float, shard_size: int) -> Message:
        """As `time`, with the links that it fills."""
        if num_bytes <= 0.0 or self.ranks(pp, cut) == 1:
            return NO_MESSAGE
        shard_size *= kind != "all_reduce"  # whoever has the whole sum has that of every shard
        links, members = self._links(pp), self.group(pp, cut, shard_size)
        if kind == "all_reduce":
            num_bytes *= self.runtime.passes(math.prod(members), links.one_way(members))
        return links.collective(kind, np.array(members), num_bytes)

    def summed_up(self, kind: str, pp: int, cut: Cut, num_bytes: float, shard_size: int) -> float:
        """What is reduced over shards, summed up over the ranks that hold the same one. [s]

        Parameters
        ----------
        kind, pp, cut, num_bytes, shard_size
            As of `time`; nothing is summed up but after a reduction over some of the ranks.
        """
        key = ("summed up", kind, pp, cut, num_bytes, shard_size)
        if key not in self.times:
            self.times[key] = self._summed_up(kind, pp, cut, num_bytes, shard_size).time
        return self.times[key]

    def _summed_up(
        self, kind: str, pp: int, cut: Cut, num_bytes: float, shard_size: int
    ) -> Message:
        """As `summed_up`, with the links that it fills."""
        if kind != "reduce_scatter" or not shard_size or num_bytes <= 0.0:
            return NO_MESSAGE
        others = np.array(self.others(pp, cut, shard_size))
        part = num_bytes / self.ranks(pp, cut, shard_size)
        return self._links(pp).collective("all_reduce", others, part)

    def travels_by(
        self, kind: str, pp: int, cut: Cut, num_bytes: float, shard_size: int, *, sums: bool = False
    ) -> Travel:
        """What a collective takes by itself, and of the links that others use as well.

        Parameters
        ----------
        kind, pp, cut, num_bytes, shard_size
            As of `time`.
        sums
            Whether what is summed up is meant, as of `summed_up`.
        """
        of = self._summed_up if sums else self._message
        message = of(kind, pp, cut, num_bytes, shard_size)
        busy = np.zeros(len(self.whole.shape))
        for (level, _, way), part in message.loads:
            busy[level] += message.transfer * part * (way == OUT)
        return Travel(np.array(message.time), busy)

    def reduced(self, kind: str, pp: int, cut: Cut, num_bytes: float, shard_size: int = 0) -> float:
        """A reduction over all ranks that hold a weight, one after the other with shards. [s]

        Parameters
        ----------
        kind, pp, cut, num_bytes, shard_size
            As of `time`.
        """
        message = (kind, pp, cut, num_bytes, shard_size)
        return self.time(*message) + (self.summed_up(*message) if shard_size else 0.0)

    def of_layers(self, choice: Choice, inside: MicroBatch) -> Floats:
        """What exchanges of the gradients of each layer take of those of a whole network. [s]

        Users of a weight reduce as much as its owner, each in its stage.

        Parameters
        ----------
        choice, inside
            Degrees, stages and shards, and a micro-batch of it.
        """
        gradients = self.gradients(choice.zero)
        key = (inside.weighs, choice.pp, choice.shard_size, gradients.kind, gradients.part)
        if key not in self.by_layer:
            sizes = inside.gradients * gradients.part
            for owner, sharer in self.shared:
                sizes[sharer] += sizes[owner]
            found = np.zeros(len(sizes))
            for number, cut in enumerate(inside.cuts):
                mine = inside.cut_of == number
                if whole := float(sizes[mine].sum()):
                    message = (gradients.kind, choice.pp, cut, whole, choice.shard_size)
                    found[mine] = sizes[mine] / whole * self.reduced(*message)
            self.by_layer[key] = found
        return self.by_layer[key]

    def sends(self, pp: int, sizes: tuple[float, ...]) -> Floats:
        """Messages from each stage but the last to the next one, as of `send`. [s]

        Parameters
        ----------
        pp, sizes
            Groups of devices, and what each device of a stage sends. [items], [B]
        """
        key = (pp, sizes)
        if key not in self.sent:
            rows = (self.send(pp, stage % pp, size) for stage, size in enumerate(sizes))
            self.sent[key] = np.array(list(rows))
        return self.sent[key]

    def send(self, pp: int, group: int, num_bytes: float) -> float:
        """A message from each device of a stage to the next stage. [s]

        Parameters
        ----------
        pp, group, num_bytes
            As of `between`, and which group sends. [items]
        """
        return self.between(pp, group, (group + 1) % pp, num_bytes)

    def between(self, pp: int, one: int, other: int, num_bytes: float) -> float:
        """A message from each device of a group to its like in another one. [s]

        Parameters
        ----------
        pp, one, other
            Groups of devices, and which of them send and receive. [items]
        num_bytes
            Of each device. [B]
        """
        key = ("send", pp, one, other, num_bytes)
        if key not in self.times:
            each, below = math.prod(self._links(pp).topology.shape), self.whole.devices_below
            here, there = one * each, other * each
            # the outermost level at which the stages are below different children
            level = max(
                at
                for at, size in enumerate(below[: len(self.whole.shape)])
                if here // int(size) != there // int(size)
            )
            senders = min(each, int(below[level]))
            self.times[key] = float(send_recv_time(self.whole, level, num_bytes, senders))
        return self.times[key]


def inner(members: Sequence[int], size: int) -> tuple[int, ...]:
    """So many of the members of a group at each level, the inner ones first. [items]"""
    row = []
    for count in members:
        row.append(math.gcd(count, size))
        size //= row[-1]
    return tuple(row)
