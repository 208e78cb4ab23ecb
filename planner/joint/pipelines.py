"""Pipelines over groups of hosts: each stage inside one group, with as many blocks as suit it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.communication.collectives import send_recv_time
from costmodels.distribution import Distribution
from costmodels.errors import InputError
from costmodels.simulation import Runtime
from costmodels.strategy import Schedule, Stage, Strategy
from costmodels.strategy.usual import hybrid, stage_shape
from planner.joint.choices import LARGEST_MICRO_BATCH, Choice, divisors
from planner.joint.cuts import Cuts
from planner.joint.exchanges import Exchanges
from planner.joint.hosts import on_groups
from planner.joint.inside import Insides
from planner.joint.micro_batch import MicroBatch
from planner.joint.passes import staged_time
from planner.joint.runtimes import stages_of_zero
from planner.joint.uneven import uneven_cut
from planner.joint.wishes import Wishes
from planner.planning.staged import StagedStep, simulate_stages
from planner.request.by_degrees import micro_graph, with_sharding
from planner.request.parts import Degrees
from planner.request.placement import PlacedNetwork
from planner.request.recomputation import with_recomputation
from planner.request.setting import Setting
from search.problem.deadline import Deadline

Floats = NDArray[np.float64]
# Groups in every order up to so many; of more the fastest first, or last. [items]
MOST_ORDERED = 3
# Blocks differ from group to group in what they gain: stages in balance take a little less time
# than their rates for the whole network say.
LEAST_BALANCED = 0.95
# What is expected to be slower than the fastest so far by more is not asked for. [parts]
SIMILAR = 0.1


class GroupedPipeline(Struct, frozen=True, kw_only=True):
    """A pipeline whose stages lie on groups of hosts, one group after the other.

    Parameters
    ----------
    inside
        Tensor, context and expert parallelism of all stages, and what is computed again.
    names
        The groups, in the order of the forward pass.
    stages, dp
        Stages of each group, and replicas of each of them. [items]
    micro_batches
        Of a step. [items]
    zero
        What is cut over replicas.
    blocks
        Of each stage. [items]
    """

    inside: Degrees
    names: tuple[str, ...]
    stages: tuple[int, ...]
    dp: tuple[int, ...]
    micro_batches: int
    zero: int
    blocks: tuple[int, ...] = ()

    def choice(self, batch: int) -> Choice:
        """What it is among the choices of a cluster of one kind; replicas are those of a stage."""
        return Choice(
            inside=self.inside,
            samples=batch // self.micro_batches // max(self.dp),
            dp=max(self.dp),
            pp=sum(self.stages),
            chunks=1,
            zero=self.zero,
            schedule="1f1b",
            micro_batches=self.micro_batches,
            blocks=self.blocks,
        )


class GroupedPipelines:
    """Pipelines over all groups of the hosts of a question.

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which steps are simulated.
    wishes
        What is held fixed or ruled out.
    """

    def __init__(self, setting: Setting, runtime: Runtime, wishes: Wishes) -> None:
        self.setting, self.runtime, self.wishes = setting, runtime, wishes
        self.groups = {group.name: group for group in setting.cluster.groups}
        self.alone = {name: on_groups(setting, (name,)) for name in self.groups}
        self.insides = {name: Insides(one, runtime) for name, one in self.alone.items()}
        self.exchanges = {name: Exchanges(one, runtime) for name, one in self.alone.items()}
        self.cuts = Cuts(setting.graph)
        self.num_looked_at = 0

    def estimated(
        self, splits: Sequence[Degrees], deadline: Deadline, worth: float
    ) -> list[tuple[float, Callable[[], StagedStep | None]]]:
        """What a step is expected to take where it fits, the fastest first, and its trial. [s]

        Parameters
        ----------
        splits
            Ways of tensor, context and expert parallelism that are tried, and what is computed
            again.
        deadline
            After which no other is looked at.
        worth
            What cannot be faster than this is left out. [s]
        """
        if not self.cuts.first:
            return []
        found = []
        for one in self._choices(splits):
            if deadline.passed:
                break
            if not self.wishes.allows(one.choice(self.setting.batch)):
                continue
            self.num_looked_at += 1
            try:
                row = self._estimate(one, worth)
            except InputError:
                continue
            if row is not None:
                found.append(row)
                worth = min(worth, row[0] * (1.0 + SIMILAR))
        found.sort(key=lambda row: row[0])
        return [(seconds, partial(self.tried, one)) for seconds, one in found]

    def _choices(self, splits: Sequence[Degrees]) -> Iterator[GroupedPipeline]:
        """Every pipeline but for its blocks."""
        names = list(self.groups)
        orders = [tuple(names), tuple(reversed(names))]
        if len(names) <= MOST_ORDERED:
            orders = list(itertools.permutations(names))
        cuts = [zero for zero in stages_of_zero(self.setting) if zero < 3]
        for inside in splits:
            ranks = inside.tp * inside.cp
            ways = [list(self._stages(name, ranks)) for name in names]
            for stages in itertools.product(*ways):
                if sum(stages) > len(self.cuts.first):
                    continue
                number = dict(zip(names, stages, strict=True))
                dp = {n: self.alone[n].gpus // ranks // number[n] for n in names}
                if any(n % inside.expert_replicas for n in dp.values()):
                    continue
                for count in self._micro_batches(dp.values()):
                    for order, zero in itertools.product(orders, cuts):
                        if zero and max(dp.values()) * inside.cp == 1:
                            continue
                        yield GroupedPipeline(
                            inside=inside,
                            names=order,
                            stages=tuple(number[n] for n in order),
                            dp=tuple(dp[n] for n in order),
                            micro_batches=count,
                            zero=zero,
                        )

    def _stages(self, name: str, ranks: int) -> Iterator[int]:
        """Numbers of stages that a group can be cut into."""
        setting = self.alone[name]
        for count in divisors(setting.gpus):
            if (setting.gpus // count) % ranks:
                continue
            try:
                stage_shape(setting.machine.topology.shape, count)
            except InputError:
                continue
            yield count

    def _micro_batches(self, dp: Iterable[int]) -> list[int]:
        """Numbers of micro-batches that divide among the replicas of every group."""
        least, batch = math.lcm(*dp), self.setting.batch
        sizes = (least * 2**i for i in range(LARGEST_MICRO_BATCH.bit_length()))
        return [batch // size for size in sizes if batch % size == 0]

    def _estimate(self, one: GroupedPipeline, worth: float) -> tuple[float, GroupedPipeline] | None:
        """What a pipeline is expected to take with the blocks that suit it best, if it fits.

        Parameters
        ----------
        one
            The pipeline but for its blocks.
        worth
            What cannot be faster than this is left out. [s]
        """
        each = self.setting.batch // one.micro_batches
        total, place = sum(one.stages), 0
        rates = 0.0
        times, room, rows = [], [], []
        for name, count, dp in zip(one.names, one.stages, one.dp, strict=True):
            inside = self.insides[name].of(one.inside, each // dp)
            exchanges = self.exchanges[name]
            capacity = float(self.groups[name].device.usable_memory)
            free = capacity - inside.passing - 2.0 * (self.runtime.bucket or 0.0)
            if free <= 0.0:
                return None
            standing = self._by_block(self._standing(one, inside, exchanges, count))
            kept = self._by_block(inside.kept)
            work = self._by_block(inside.forward + inside.backward)
            rates += count / float(work.sum())
            for _ in range(count):
                flying = min(total - place, one.micro_batches)
                times.append(work)
                room.append((standing + flying * kept) / free)
                rows.append((inside, exchanges, count))
                place += 1
        if one.micro_batches / rates * LEAST_BALANCED > worth:
            return None
        blocks = uneven_cut(times, room, one.micro_batches, worth)
        if not blocks:
            return None
        return self._seconds(one, blocks, rows), replace(one, blocks=blocks)

    def _by_block(self, values: Floats) -> Floats:
        summed: Floats = np.add.reduceat(values, self.cuts.first)
        return summed

    def _standing(
        self, one: GroupedPipeline, inside: MicroBatch, exchanges: Exchanges, stages: int
    ) -> Floats:
        """Weights, gradients and optimizer state of every layer. [B]"""
        each = np.array([float(exchanges.ranks(stages, cut)) for cut in inside.cuts] + [1.0])
        return inside.standing(one.choice(self.setting.batch), each[inside.cut_of])

    def _seconds(
        self,
        one: GroupedPipeline,
        blocks: Sequence[int],
        rows: Sequence[tuple[MicroBatch, Exchanges, int]],
    ) -> float:
        """A step: passes, messages, and what follows the last backward pass. [s]"""
        starts = [self.cuts.first[n] for n in np.cumsum((0, *blocks))[:-1]]
        ends = [*starts[1:], len(self.cuts.place)]
        forward, backward = np.zeros((1, len(rows))), np.zeros((1, len(rows)))
        tails, sent = np.zeros(len(rows)), 0.0
        for number, (inside, exchanges, stages) in enumerate(rows):
            span = slice(starts[number], ends[number])
            forward[0, number] = inside.forward[span].sum()
            backward[0, number] = inside.backward[span].sum()
            reduced = 0.0
            for place, cut in enumerate(inside.cuts):
                size = float(inside.gradients[span][inside.cut_of[span] == place].sum())
                kind = "reduce_scatter" if one.zero > 1 else "all_reduce"
                reduced += exchanges.time(kind, stages, cut, size)
            ranks = one.dp[0] if one.zero else 1
            tails[number] = max(reduced - float(backward[0, number]), 0.1 * reduced)
            tails[number] += float(inside.update[span].sum()) / ranks
            if number < len(rows) - 1:
                sent = max(sent, float(inside.output[ends[number] - 1]))
        # between hosts, whose devices all send at once
        topology = self.setting.machine.topology
        senders = int(topology.devices_below[-1])
        send = float(send_recv_time(topology, topology.num_levels - 1, sent, senders))
        choice = replace(one, blocks=tuple(blocks)).choice(self.setting.batch)
        seconds = staged_time(choice, forward, backward, np.full(len(rows) - 1, send))
        early = np.concatenate(([0.0], np.cumsum(backward[0] + send)[:-1]))
        return seconds + float((tails - early).max())

    def strategy(self, one: GroupedPipeline) -> PlacedNetwork:
        """A pipeline, placed on the hosts."""
        setting = self.setting
        graph = micro_graph(setting, one.micro_batches)
        names = [layer.name for layer in graph.compute_layers]
        starts = [self.cuts.first[n] for n in np.cumsum((0, *one.blocks))[:-1]]
        ends = [*starts[1:], len(names)]
        offsets, first = {}, 0
        for group in setting.cluster.groups:
            offsets[group.name] = first
            first += self.alone[group.name].gpus
        stages: list[Stage] = []
        distributions: dict[str, Distribution] = {}
        for name, count, dp in zip(one.names, one.stages, one.dp, strict=True):
            shape = stage_shape(self.alone[name].machine.topology.shape, count)
            whole = hybrid(
                graph,
                shape,
                dp=dp,
                tp=one.inside.tp,
                cp=one.inside.cp,
                ep=one.inside.ep,
                etp=one.inside.etp,
                sequence_parallel=one.inside.sequence_parallel,
                micro_batches=one.micro_batches,
            )
            for place in range(count):
                layers = tuple(names[starts[len(stages)] : ends[len(stages)]])
                device = offsets[name] + place * math.prod(shape)
                distributions.update((layer, whole.distributions[layer]) for layer in layers)
                stages.append(Stage(layers=layers, first_device=device, shape=shape))
        strategy = Strategy(
            stages=tuple(stages),
            distributions={layer: distributions[layer] for layer in names},
            schedule=Schedule(micro_batches=one.micro_batches),
            gather_again=one.inside.sequence_parallel or one.inside.cp > 1,
            ring_attention=one.inside.cp > 1,
        )
        strategy.check(graph)
        strategy = with_recomputation(strategy, graph, one.inside.recompute)
        if one.zero:
            strategy = with_sharding(strategy, graph, one.zero)
        spread = ", ".join(
            f"{count} stages of {dp} replicas on {name}"
            for name, count, dp in zip(one.names, one.stages, one.dp, strict=True)
        )
        name = f"tp {one.inside.tp}, {spread}"
        return PlacedNetwork(setting=setting, graph=graph, strategy=strategy, name=name)

    def tried(self, one: GroupedPipeline) -> StagedStep | None:
        """A pipeline, simulated; None where it cannot run."""
        try:
            return simulate_stages(self.strategy(one), self.runtime)
        except InputError:
            return None
