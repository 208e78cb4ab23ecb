"""Layers that are each split in their own way, beside micro-batches, sharding and recomputation.

The choices of a joint search split all layers by the same degrees. Here the layers of one stage are
split each by itself, as an additive model has it at the size of a micro-batch; what is cut over
replicas and what is computed again is then as little as fits. Every way is simulated, and only one
that is faster than all choices takes their place.

Assumes a network without attention: of transformers none was faster.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from costmodels.distribution import Distribution
from costmodels.simulation import Runtime
from costmodels.simulation.shared_pieces import PiecesByBatch
from planner.joint.activations import LeastOfStages
from planner.joint.computation import PipelineBounds
from planner.joint.known_splits import KnownSplits
from planner.joint.layer_splits import LayerSplits
from planner.joint.pace import FEW_LAID_OUT, ONCE
from planner.joint.ways import AllowedWays, Leaders, Leading, Way, replacing, simulated_way
from planner.joint.wishes import Wishes
from planner.planning.options import SearchOptions
from planner.planning.staged import StagedStep
from planner.request.by_degrees import micro_graph
from planner.request.setting import Setting
from search.problem.deadline import Deadline, OutOfTime

# Gains that are less are not worth a look, nor layers split in many ways. [parts]
LEAST_GAIN = 0.005
# Powers of two that memory is priced at, one after the other as long as it nearly fits: what layers
# hold less in all, they may hold more of at the peak. The first that fits is lowered to the lowest
# or to the first; so often the range is halved. [items]
LOWEST_PRICE, PRICES, HALVINGS = -8.0, (4.0, 3.0, 2.0, 1.0, 0.0, 6.0, 8.0), 5
# What lacks less may fit at other prices, even at such that little else changes. [parts]
NEARLY_FITS, GENTLE = 0.02, (-5.0, -2.0, 1.0)
# Splits that are slower by more than the best plan are given up: others that the additive model has
# cost more may be faster, with memory at a price or runs of layers merged. [parts]
WORTH_OTHERS = 0.2
# Layers that are laid out, and how many times as many to find any that fits. [items]
MOST_WORK, MOST_IN_VAIN = 60_000, 3
# Runs that are merged at a time, the fastest by the additive model first, and ways from which they
# are that differ in what is computed again. [items]
MOST_MERGED, MOST_OF_A_KIND = 8, 3


@dataclass(slots=True, kw_only=True, eq=False)
class OwnSplits:
    """The search for splits of one stage that differ from layer to layer.

    Parameters
    ----------
    setting, runtime, options
        As of `planner.joint.search.JointSearch`.
    wishes
        What is held fixed or ruled out; it leaves the splits of layers.
    deadline
        When to stop.
    floors
        What no step takes less than, however layers are split.
    least
        What devices hold at least, however layers are split.
    known
        What layers cost, as of `planner.planning.staged.tried`.
    best, before
        The fastest that fits, of choices before; and as it was when these were not yet tried.
    rival
        The step of a plan that is known: others matter where they are faster. [s]
    in_vain
        Numbers of micro-batches with which none of these fits on more GPUs. [items]
    leaders
        The fastest of these that fit, whether or not they are better.
    """

    setting: Setting
    runtime: Runtime
    options: SearchOptions
    wishes: Wishes
    deadline: Deadline
    floors: PipelineBounds
    least: LeastOfStages
    known: PiecesByBatch
    best: StagedStep | None
    rival: float = math.inf
    in_vain: AbstractSet[int] = frozenset()
    simulated: list[StagedStep] = field(default_factory=list)
    tried: dict[tuple[Way, tuple[int, ...]], StagedStep | None] = field(default_factory=dict)
    work: int = 0
    longest: float = 0.0
    stopped_by: str = ""
    before: StagedStep | None = None
    leaders: Leaders = field(default_factory=Leaders)
    ways: AllowedWays = field(init=False)

    def __post_init__(self) -> None:
        self.ways = AllowedWays(self.setting, self.wishes)

    def run(self) -> None:
        """Try numbers of micro-batches, those first with which a step may be the fastest."""
        self.before = self.best
        try:
            again = "none" if self.ways.blocks(self.setting.graph)[-1:] in ([], [0]) else "full"
            others = (n for n in self.ways.counts() if n not in self.in_vain)
            counts = (n for n in others if self.least.fits_in_one_stage(n, again))
            rows = sorted((self.floors.of(1, 1, count), count) for count in counts)
            for floor, count in rows:
                if floor < self.limit and self._has_time() and self.work < self.most:
                    self._try_count(count)
            self._fit_otherwise()
            self._merge()
        except OutOfTime:
            self.stopped_by = "time limit"
        except KeyboardInterrupt:
            self.stopped_by = "interrupt"

    def shard(self, splits: KnownSplits) -> None:
        """Try every stage of ZeRO on known splits of all layers, where that may be worth it."""
        for zero in self.ways.zeros() if splits.worth_sharding and 1 in self.ways.counts() else ():
            if zero and 0 in self.ways.blocks(self.setting.graph) and self._has_time():
                way = Way(micro_batches=1, zero=zero, again=0)
                found = self._step(way, splits.distributions, math.inf)
                if found is None:
                    continue
                self.simulated.append(found)
                if found.fits and found.seconds < self.limit and splits.give_way_to(found):
                    self.best = found

    @property
    def limit(self) -> float:
        """What a step must take less than to be worth it. [s]"""
        best = math.inf if self.best is None else self.best.seconds * (1.0 - LEAST_GAIN)
        return min(best, self.rival)

    @property
    def most(self) -> int:
        """The work that these are worth, more where nothing else is known to fit. [items]"""
        in_vain = not self.leaders.known and self.rival == math.inf
        return MOST_WORK * (MOST_IN_VAIN if in_vain else 1)

    def _has_time(self) -> bool:
        """Whether there is time for as much as took the longest so far."""
        if self.deadline.remaining <= self.longest:
            self.stopped_by = "time limit"
        return not self.stopped_by

    def _try_count(self, count: int) -> None:
        """Ways with that many micro-batches: as they are fastest, and where those do not fit less.

        Parameters
        ----------
        count
            Micro-batches of a step. [items]

        Raises
        ------
        OutOfTime
            When there is no time to cost the splits.
        """
        began = time.monotonic()
        graph = micro_graph(self.setting, count)
        splits = LayerSplits.of(self.setting, graph, count, self.deadline)
        self.longest = max(self.longest, time.monotonic() - began)
        blocks, zeros = self.ways.blocks(graph), self.ways.zeros()
        if not blocks:
            return
        whole = [zero for zero in zeros if zero < 3]
        least = math.inf
        # of what cuts no weights the least and the most
        for zero in (*dict.fromkeys([*whole[:1], *whole[-1:]]), *zeros[len(whole) :]):
            way = Way(micro_batches=count, zero=zero, again=blocks[0])
            free = self._try(splits, way, 0.0, least if zero == zeros[-1] else math.inf)
            if free is not None and free.fits and zero < 3:
                # what is cut may be exchanged faster
                self._try(splits, replace(way, zero=whole[-1]), 0.0)
            # with memory at a price they may be faster, too
            slow = free is not None and free.seconds >= self.limit * (1.0 + WORTH_OTHERS)
            if free is None or free.fits or (slow and zero not in whole[:-1]):
                return
            # what is gathered may take more than what is cut; where nothing is, others hold less
            if zero in whole[-1:] or (zero > 2 and free.peak_memory < least):
                self._fit(splits, way, blocks)
            least = free.peak_memory

    def _fit(self, splits: LayerSplits, way: Way, blocks: Sequence[int]) -> None:
        """Hold less: by other splits, and by blocks that are computed again.

        Parameters
        ----------
        splits
            Of layers.
        way
            What does not fit with the fastest of them.
        blocks
            Numbers of blocks that may be computed again. [items]
        """
        self._raise_price(splits, way)
        if len(blocks) == 1:
            return
        # with the fewest blocks that are enough, or with one less and other splits
        again, price = replace(way, again=blocks[-1]), self._fastest_price(splits, way)
        found = self._try(splits, again, price)
        if found is None or (not found.fits and found.seconds >= self.limit):
            return
        # where all of them are not enough, none of the numbers in between is with these splits
        most = price if found.fits else self._raise_price(splits, again)
        if most is None:
            return
        high, before = len(blocks) - 1, None
        # the price that is least for all of them is not the best for fewer
        while most is not None and self.leaders.first is not before:
            low, before = 0, self.leaders.first
            while high - low > 1:
                middle = (low + high) // 2
                found = self._try(splits, replace(way, again=blocks[middle]), most)
                if found is None or (not found.fits and found.seconds >= self.limit):
                    return
                low, high = (low, middle) if found.fits else (middle, high)
            if low == 0:
                return
            most, high = self._raise_price(splits, replace(way, again=blocks[low])), low

    def _fastest_price(self, splits: LayerSplits, way: Way) -> float:
        """The price of memory with which a way is simulated the fastest, of those tried."""
        alike = (
            (choices, price) for (zero, price), choices in splits.known.items() if zero == way.zero
        )
        rows = ((self.tried.get((way, choices)), price) for choices, price in alike)
        return min(((one.seconds, price) for one, price in rows if one), default=(0.0, 0.0))[1]

    def _raise_price(self, splits: LayerSplits, way: Way) -> float | None:
        """The least price of memory with which a way fits, None where none is known.

        Parameters
        ----------
        splits, way
            As of `_fit`.
        """
        free = found = self._try(splits, way, 0.0)
        # at its peak a device holds gradients of what it keeps beside that, as much at most
        if free is None or free.short > 2.0 * splits.saved(way.zero, 2.0 ** PRICES[0]):
            return None
        near = NEARLY_FITS * self.setting.cluster.device.memory
        for high in PRICES:
            found = self._try(splits, way, 2.0**high)
            if found is None or not 0.0 < found.short < near:
                break
        if found is None or not found.fits:
            for high in GENTLE if free.short < near else ():
                found = self._try(splits, way, 2.0**high)
                if found is not None and found.fits:
                    return math.pow(2.0, high)
            return None
        low = LOWEST_PRICE if high <= PRICES[0] else PRICES[0]
        for _ in range(HALVINGS):
            middle = (low + high) / 2.0
            found = self._try(splits, way, 2.0**middle)
            if found is None or (not found.fits and found.seconds >= self.limit):
                break
            low, high = (low, middle) if found.fits else (middle, high)
        return math.pow(2.0, high)

    def _fit_otherwise(self) -> None:
        """Hold less with less cut over replicas, too.

        Other splits have a price then, which may hold less at the peak.
        """
        for one in self.leaders.within(self.limit * (1.0 + WORTH_OTHERS), 1):
            blocks = self.ways.blocks(micro_graph(self.setting, one.way.micro_batches))
            for zero in (zero for zero in self.ways.zeros() if zero < one.way.zero):
                for again in reversed([count for count in blocks if count <= one.way.again]):
                    way = replace(one.way, zero=zero, again=again)
                    if self._raise_price(one.splits, way) is None:
                        break

    def _merge(self) -> None:
        """Split runs of layers as their neighbours are, as long as that makes them faster.

        What it takes to change between unlike splits is more than the additive model has of it
        where other communication is under way.
        """
        # of a kind not the fastest alone: others may be merged to what is faster
        for now in self.leaders.within(self.limit * (1.0 + WORTH_OTHERS), MOST_OF_A_KIND):
            before = None
            while now is not before:
                before = now
                for choices in now.splits.merged(now.choices)[:MOST_MERGED]:
                    self._attempt(now.splits, now.way, choices)
                now = self.leaders.known[now.way]

    def _try(
        self, splits: LayerSplits, way: Way, price: float, most: float = math.inf
    ) -> StagedStep | None:
        """Simulate a way, unless it was; keep it where it is the best that fits.

        Parameters
        ----------
        splits, way
            As of `_fit`.
        price
            Of memory, as of `LayerSplits.at_price`.
        most
            What does not fit and holds more is of no use. [B]

        Returns
        -------
        None where it cannot run, is of no use, or there was no time.
        """
        return self._attempt(splits, way, splits.at_price(way.zero, price), most)

    def _attempt(
        self, splits: LayerSplits, way: Way, choices: tuple[int, ...], most: float = math.inf
    ) -> StagedStep | None:
        """As `_try`, of given splits.

        Parameters
        ----------
        splits, way, most
            As of `_try`.
        choices
            The candidate of each layer.
        """
        key = (way, choices)
        if key not in self.tried:
            if not self._has_time() or self.work >= self.most:
                return None
            began = time.monotonic()
            found = self.tried[key] = self._step(way, splits.distributions(choices), most)
            self.longest = max(self.longest, time.monotonic() - began)
            self.work += len(choices) * (ONCE + min(way.micro_batches, FEW_LAID_OUT))
            if found is not None and self.ways.allow(found):
                self.simulated.append(found)
                # than others like it, it need not be faster by as much
                known = None if self.best is self.before else self.best
                least = self.rival if known is None else known.seconds
                if found.fits:
                    # what was tried in vain is no reason to try fewer like the first that fits
                    self.work = self.work if self.leaders.known else 0
                    self.leaders.offer(Leading(found.seconds, splits, way, choices))
                if found.fits and found.seconds < min(
                    least, replacing(self.before, found, LEAST_GAIN)
                ):
                    self.best = found
                    self.options.tell("splitting layers", found.seconds)
        return self.tried[key]

    def _step(self, way: Way, splits: Mapping[str, Distribution], most: float) -> StagedStep | None:
        """The step of a way, as of `simulated_way`."""
        asked = self.setting, self.runtime, self.known
        return simulated_way(*asked, way=way, splits=splits, most=most)
