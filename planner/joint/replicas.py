"""Replicas on all groups of hosts, each group with as many samples as its devices are fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from costmodels.errors import InputError
from costmodels.simulation import Runtime
from costmodels.strategy import BatchShare
from costmodels.strategy.usual import hybrid
from planner.joint.choices import LARGEST_MICRO_BATCH, Choice, divisors
from planner.joint.exchanges import Exchanges
from planner.joint.hosts import evenly, on_groups
from planner.joint.inside import Insides
from planner.joint.micro_batch import MicroBatch
from planner.joint.runtimes import choice_runtime, stages_of_zero
from planner.joint.uneven import uneven_shares
from planner.joint.wishes import Wishes
from planner.planning.staged import StagedStep, simulate_stages
from planner.request.by_degrees import graph_of, with_sharding
from planner.request.parts import Degrees
from planner.request.placement import PlacedNetwork
from planner.request.recomputation import with_recomputation
from planner.request.setting import Setting
from planner.request.training_graphs import training_graph
from search.problem.deadline import Deadline

# Rounds in which samples are shared out anew by how fast each group is with its share. [items]
ROUNDS = 3
# Micro-batches that each gather weights are laid out one by one: no more of them. [items]
MOST_GATHERED = 16


class UnevenReplicas(Struct, frozen=True, kw_only=True):
    """Replicas with uneven samples.

    Parameters
    ----------
    inside
        Tensor, context and expert parallelism of a replica, and what is computed again.
    zero
        What is cut over all replicas.
    shares
        What each group has.
    """

    inside: Degrees
    zero: int
    shares: tuple[BatchShare, ...]

    @property
    def choice(self) -> Choice:
        """What it is among the choices of a cluster of one kind: as the group with the most."""
        return Choice(
            inside=self.inside,
            samples=max(one.samples for one in self.shares),
            dp=sum(one.replicas for one in self.shares),
            pp=1,
            chunks=1,
            zero=self.zero,
            schedule="1f1b",
            micro_batches=max(one.micro_batches for one in self.shares),
        )


class Replicas:
    """Ways to share samples out over the groups of hosts of a question.

    Parameters
    ----------
    setting
        The question.
    runtime
        Under which steps are simulated that cut no weights.
    wishes
        What is held fixed or ruled out.
    """

    def __init__(self, setting: Setting, runtime: Runtime, wishes: Wishes) -> None:
        self.setting, self.runtime, self.wishes = setting, runtime, wishes
        self.names = [group.name for group in setting.cluster.groups]
        self.alone = [on_groups(setting, (name,)) for name in self.names]
        self.exchanges = Exchanges(evenly(setting), runtime)
        self.insides: dict[tuple[int, bool], Insides] = {}
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
        found: dict[UnevenReplicas, float] = {}
        for inside in splits:
            for zero in stages_of_zero(self.setting):
                if deadline.passed:
                    break
                try:
                    for one in self._shares(inside, zero):
                        if one not in found and self.wishes.allows(one.choice):
                            self.num_looked_at += 1
                            found[one] = self._estimate(one)
                except InputError:
                    break
        fitting = [one for one, seconds in found.items() if seconds <= worth and seconds < math.inf]
        return [
            (found[one], partial(self.tried, one))
            for one in sorted(fitting, key=lambda one: found[one])
        ]

    def _of(self, group: int, zero: int) -> Insides:
        """What micro-batches cost on a group, under the runtime of a stage of ZeRO."""
        key = (group, zero > 2)
        if key not in self.insides:
            setting, runtime = self.alone[group], self.runtime
            if zero > 2:
                runtime = choice_runtime(runtime, zero)
                setting = setting.under(runtime)
            self.insides[key] = Insides(setting, runtime, cuts_weights=zero > 2)
        return self.insides[key]

    def _shares(self, inside: Degrees, zero: int) -> Iterator[UnevenReplicas]:
        """Ways to share out the batch in proportion to how fast the groups are."""
        ranks = inside.tp * inside.cp
        if any(one.gpus % ranks for one in self.alone):
            return
        replicas = [one.gpus // ranks for one in self.alone]
        if any(count % inside.expert_replicas for count in replicas):
            return
        batch = self.setting.batch
        if zero < 3:
            # as many samples in a micro-batch, and more micro-batches on faster devices
            for samples in (2**i for i in range(LARGEST_MICRO_BATCH.bit_length())):
                if batch % samples == 0 and batch // samples >= sum(replicas):
                    times = self._times(inside, zero, [samples] * len(replicas))
                    counts = uneven_shares(times, replicas, batch // samples)
                    yield from self._made(inside, zero, counts, [samples] * len(replicas))
        for count in divisors(batch):
            each = batch // count
            if each < sum(replicas) or (zero > 2 and count > MOST_GATHERED):
                continue
            even = max(each // sum(replicas), 1)
            if even > LARGEST_MICRO_BATCH and count > 1:
                continue
            fits = False
            # as many micro-batches, and more samples in each on faster devices: by what a sample
            # takes among as many as there were before
            sizes: Sequence[int] = [even] * len(replicas)
            for _ in range(ROUNDS):
                times = self._times(inside, zero, sizes)
                rates = [seconds / size for seconds, size in zip(times, sizes, strict=True)]
                sizes = uneven_shares(rates, replicas, each)
                if not sizes:
                    break
                for one in self._made(inside, zero, [count] * len(replicas), sizes):
                    fits |= math.isfinite(self._estimate(one))
                    yield one
            if fits:
                break  # more micro-batches only where fewer do not fit

    def _times(self, inside: Degrees, zero: int, samples: Sequence[int]) -> list[float]:
        """What a micro-batch takes on each group. [s]"""
        rows = []
        for group, size in enumerate(samples):
            one = self._of(group, zero).of(inside, size)
            rows.append(float(one.forward.sum() + one.backward.sum()))
        return rows

    def _made(
        self, inside: Degrees, zero: int, counts: Sequence[int], sizes: Sequence[int]
    ) -> Iterator[UnevenReplicas]:
        """The shares of all groups, if there are any."""
        if not counts or not sizes:
            return
        rows, first = [], 0
        for name, one, count, size in zip(self.names, self.alone, counts, sizes, strict=True):
            rows.append(
                BatchShare(
                    group=name,
                    first_device=first,
                    num_devices=one.gpus,
                    replicas=one.gpus // (inside.tp * inside.cp),
                    micro_batches=count,
                    samples=size,
                )
            )
            first += one.gpus
        yield UnevenReplicas(inside=inside, zero=zero, shares=tuple(rows))

    def _estimate(self, one: UnevenReplicas) -> float:
        """What a step is expected to take, +inf where it is not expected to fit. [s]"""
        slowest = hidden = update = 0.0
        exchanged, gathered = 0.0, 0.0
        for group, share in enumerate(one.shares):
            inside = self._of(group, one.zero).of(one.inside, share.samples)
            device = self.alone[group].cluster.device
            if self._held(one, inside) > device.usable_memory:
                return math.inf
            exchanged, gathered = self._exchanged(one, inside)
            each = float(inside.forward.sum() + inside.backward.sum())
            if one.zero > 2:
                # beside each other, on queues of their own
                each = max(each, 2.0 * gathered, exchanged)
            seconds = share.micro_batches * each
            if seconds > slowest:
                slowest, hidden = seconds, float(inside.backward.sum())
            ranks = one.choice.dp * one.inside.cp if one.zero else 1
            update = max(update, float(inside.update.sum()) / ranks)
        after = gathered if 0 < one.zero < 3 else 0.0
        tail = 0.0 if one.zero > 2 else max(exchanged - hidden, 0.1 * exchanged)
        return slowest + tail + update + after

    def _exchanged(self, one: UnevenReplicas, inside: MicroBatch) -> tuple[float, float]:
        """Reductions of all gradients, and a gathering of all weights. [s]"""
        kind = "reduce_scatter" if one.zero > 1 else "all_reduce"
        size = float(self.setting.machine.training.activation_size)
        reduced = gathered = 0.0
        for number, cut in enumerate(inside.cuts):
            mine = inside.cut_of == number
            whole = float((inside.numbers if one.zero > 2 else inside.parameters)[mine].sum())
            trained = float(inside.parameters[mine].sum())
            gradients = trained * size if one.zero > 2 else float(inside.gradients[mine].sum())
            reduced += self.exchanges.time(kind, 1, cut, gradients)
            gathered += self.exchanges.time("all_gather", 1, cut, whole * size)
        return reduced, gathered

    def _held(self, one: UnevenReplicas, inside: MicroBatch) -> float:
        """What a device holds. [B]"""
        each = [float(self.exchanges.ranks(1, cut)) for cut in inside.cuts]
        ranks = np.array([*each, 1.0])[inside.cut_of]
        standing = (
            inside.weights / (ranks if one.zero > 2 else 1.0)
            + inside.gradients / (ranks if one.zero > 1 else 1.0)
            + inside.state / (ranks if one.zero > 0 else 1.0)
        )
        return float(standing.sum() + inside.kept.sum()) + inside.passing

    def placed(self, one: UnevenReplicas, setting: Setting) -> PlacedNetwork:
        """Uneven replicas, placed on the hosts.

        Parameters
        ----------
        one
            The replicas.
        setting
            The question, under the runtime of the choice.
        """
        choice, inside = one.choice, one.inside
        most = training_graph(setting.model, choice.dp * choice.samples, setting.machine.training)
        strategy = hybrid(
            most,
            setting.machine.topology.shape,
            dp=choice.dp,
            tp=inside.tp,
            cp=inside.cp,
            ep=inside.ep,
            etp=inside.etp,
            sequence_parallel=inside.sequence_parallel,
            micro_batches=choice.micro_batches,
        )
        strategy = with_recomputation(strategy, most, inside.recompute)
        if one.zero:
            strategy = with_sharding(strategy, most, one.zero)
        strategy = replace(strategy, shares=one.shares)
        spread = ", ".join(
            f"{row.replicas} replicas of {row.micro_batches} x {row.samples} samples on {row.group}"
            for row in one.shares
        )
        graph = graph_of(setting, strategy)
        name = f"tp {inside.tp}, {spread}"
        return PlacedNetwork(setting=setting, graph=graph, strategy=strategy, name=name)

    def tried(self, one: UnevenReplicas) -> StagedStep | None:
        """Uneven replicas, simulated; None where they cannot run."""
        runtime = choice_runtime(self.runtime, one.zero)
        setting = self.setting if runtime is self.runtime else self.setting.under(runtime)
        try:
            return simulate_stages(self.placed(one, setting), runtime)
        except InputError:
            return None
