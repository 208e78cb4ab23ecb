"""The global choices of a joint search: how many stages, replicas, micro-batches, and what is cut.

Every choice is a `Degrees`; what a machine, a batch or a network cannot have is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from costmodels.errors import InputError
from costmodels.graph import Graph
from costmodels.simulation.segments import blocks_of_layers, several_layers
from costmodels.strategy.blocks import block_numbers, is_transformer
from costmodels.strategy.usual import stage_shape
from planner.request.by_degrees import replicas
from planner.request.parts import Degrees
from planner.request.setting import Setting

# The schedule with all forward passes before any backward pass.
FORWARD_FIRST = "gpipe"
RECOMPUTATIONS = ("none", "selective", "full")
# Samples of a replica in a micro-batch that are tried; kernels are full with fewer. [samples]
LARGEST_MICRO_BATCH = 64


class Choice(Struct, frozen=True, kw_only=True):
    """One point of the global space.

    Parameters
    ----------
    inside
        What a micro-batch of a replica costs depends on nothing else: tensor, context and expert
        parallelism, and what is computed again.
    samples
        Of a replica in a micro-batch. [samples]
    dp, pp, chunks, zero, schedule
        As of `Degrees`.
    micro_batches
        Of a step. [items]
    blocks
        Of each stage, where they are not equally many. [items]
    again
        Blocks of each stage that are computed again where not all of them are; 0 for as `inside`
        has it. [items]
    offload
        What waits in the memory of the hosts.
    shard_size
        Ranks that weights are cut over where not all that hold them; 0 for all. [items]
    """

    inside: Degrees
    samples: int
    dp: int
    pp: int
    chunks: int
    zero: int
    schedule: str
    micro_batches: int
    blocks: tuple[int, ...] = ()
    again: int = 0
    offload: tuple[str, ...] = ()
    shard_size: int = 0

    @property
    def parts(self) -> int:
        """Stages. [items]"""
        return self.pp * self.chunks

    @property
    def split(self) -> Degrees:
        """How its layers are split, with nothing computed again."""
        inside = self.inside
        return inside if inside.recompute == "none" else computing_again(inside, "none")

    @property
    def layout(self) -> tuple[object, ...]:
        """How layers and samples lie on devices, whatever is computed again and in which order."""
        one = self.inside
        ways = one.tp, one.cp, one.ep, one.etp, one.cp_kind, self.schedule
        return *ways, self.dp, self.pp, self.zero, self.offload

    @property
    def fills_bubbles(self) -> bool:
        """Whether backward passes of weights run by themselves, where a stage has time."""
        return self.schedule == "zero-bubble"

    @property
    def runs_forward_first(self) -> bool:
        """Whether all forward passes come before any backward pass."""
        return self.schedule == FORWARD_FIRST

    @property
    def flying(self) -> NDArray[np.int64]:
        """Micro-batches under way at most in each group of one stage; (groups,). [items]"""
        count, groups = self.micro_batches, np.arange(self.pp)
        if self.runs_forward_first:
            return np.full_like(groups, count)
        return np.minimum(self.pp - groups, count)

    @property
    def is_split_alone(self) -> bool:
        """Whether it is one stage, without micro-batches, and nothing is cut or computed again."""
        again = self.inside.recompute != "none"
        more = again or bool(self.offload)
        return (self.parts, self.micro_batches, self.zero, more) == (1, 1, 0, False)

    @property
    def of_any_cut(self) -> Choice:
        """The choice whatever blocks its stages have, and compute again."""
        return replace(self, blocks=(), again=0)

    def less_again(self) -> Iterator[Choice]:
        """The same choice with less computed again: faster, where it fits.

        Where activations wait in the hosts, it is not, as more of them are copied.
        """
        if self.inside.recompute == "none" or "activations" in self.offload:
            return
        for less in range(1, self.again):
            yield replace(self, again=less)
        for what in RECOMPUTATIONS[: RECOMPUTATIONS.index(str(self.inside.recompute))]:
            yield replace(self, inside=computing_again(self.inside, what), again=0)

    def less_copied(self) -> Iterator[Choice]:
        """The same choice with its activations on the devices: no slower, where it fits."""
        if "activations" in self.offload:
            left = tuple(name for name in self.offload if name != "activations")
            yield replace(self, offload=left)

    @property
    def degrees(self) -> Degrees:
        """The choice as it is asked for by hand."""
        return dataclasses.replace(
            self.inside,
            dp=self.dp,
            pp=self.pp,
            chunks=self.chunks,
            zero=self.zero or None,
            schedule=self.schedule,
            micro_batches=self.micro_batches,
            recompute=self.again or self.inside.recompute,
            offload=self.offload,
            shard_size=self.shard_size or None,
            stage_blocks=self.blocks or self.inside.stage_blocks,
        )


def choice_of(setting: Setting, degrees: Degrees) -> Choice:
    """What degrees come to, whether or not their replicas divide the batch.

    Parameters
    ----------
    setting, degrees
        The question, and how to train.
    """
    dp = replicas(degrees, setting.gpus)
    each = -(-setting.batch // dp)
    count = degrees.micro_batches or each // (degrees.micro_batch_size or each)
    return Choice(
        inside=degrees,
        samples=each // count,
        dp=dp,
        pp=degrees.pp,
        chunks=degrees.chunks,
        zero=degrees.sharding or 0,
        schedule=degrees.schedule_kind,
        micro_batches=count,
        offload=tuple(degrees.offload),
        shard_size=degrees.shard_size or 0,
    )


@cache
def computing_again(inside: Degrees, again: str) -> Degrees:
    """The same splits with something else computed again."""
    return dataclasses.replace(inside, recompute=again)


def with_any_recomputation(choice: Choice, again: Sequence[str]) -> Iterator[Choice]:
    """A choice with all that can be computed again, as of `recomputations`."""
    for what in again:
        yield replace(choice, inside=computing_again(choice.inside, what))


def with_any_sharding(choice: Choice, stages_of_zero: Sequence[int]) -> Iterator[Choice]:
    """A choice that cuts nothing, with each stage of ZeRO that ranks with the same weights can."""
    for zero in stages_of_zero if choice.dp * choice.inside.cp > 1 else (0,):
        if zero > 2 and choice.fills_bubbles:
            continue  # each pass of weights would gather them once more
        yield choice if zero == choice.zero else replace(choice, zero=zero)


def divisors(number: int) -> list[int]:
    """All divisors of a number, the smallest first."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return sorted({*small, *(number // i for i in small)})


def halvings(number: int) -> list[int]:
    """By what a number can be divided halving it again and again, 1 first."""
    return [2**i for i in range(number.bit_length()) if number % 2**i == 0]


def recomputations(graph: Graph) -> tuple[str, ...]:
    """What can be computed again of a network, nothing first; not all have blocks of layers."""
    if is_transformer(graph):
        return RECOMPUTATIONS
    return ("none", "full") if several_layers(blocks_of_layers(graph)) else ("none",)


def num_blocks(graph: Graph) -> int:
    """The most stages that a network is cut into: blocks of a transformer, else layers. [items]"""
    names = [layer.name for layer in graph.compute_layers]
    if not is_transformer(graph):
        return len(names)
    return max(len(set(block_numbers(names).values())), 1)


def choices(
    setting: Setting, found: Sequence[Degrees], stages_of_zero: Sequence[int] = (0, 1, 2, 3)
) -> Iterator[Choice]:
    """Every global choice that a machine, a batch and a network can have.

    Parameters
    ----------
    setting
        The question.
    found
        As of `insides`, those that fit the network.
    stages_of_zero
        What is cut over replicas, where there are several.
    """
    shape = setting.machine.topology.shape
    blocks, attends = num_blocks(setting.graph), is_transformer(setting.graph)
    for inside in found:
        ranks = inside.tp * inside.cp
        for pp in divisors(setting.gpus // ranks):
            dp = setting.gpus // ranks // pp
            if pp > blocks or setting.batch % dp or dp % inside.expert_replicas:
                continue
            try:
                stage_shape(shape, pp)
            except InputError:
                continue
            each = setting.batch // dp
            for samples in _micro_batch_sizes(each):
                count = each // samples
                for chunks in _chunks(pp, count, blocks, attends):
                    alone = Choice(
                        inside=inside,
                        samples=samples,
                        dp=dp,
                        pp=pp,
                        chunks=chunks,
                        zero=0,
                        schedule="interleaved" if chunks > 1 else "1f1b",
                        micro_batches=count,
                    )
                    yield from with_any_sharding(alone, stages_of_zero)


def _micro_batch_sizes(each: int) -> list[int]:
    """Samples of a replica in a micro-batch. [samples]

    Powers of two, other divisors where no such power lies within a factor of the square root of
    two, or all at once.
    """
    sizes = [size for size in divisors(each) if size <= LARGEST_MICRO_BATCH]
    powers = [size for size in sizes if size.bit_count() == 1]
    others = [size for size in sizes if not any(size**2 < 2 * p**2 < 4 * size**2 for p in powers)]
    return sorted({*powers, *others, each})


def _chunks(pp: int, micro_batches: int, blocks: int, deals_out: bool) -> list[int]:
    """Stages of each group of devices, where micro-batches come in rounds of all groups. [items]

    Stages have equally many blocks; where no number of stages divides them, of the numbers with
    the same largest stage those that are the fewest.

    Parameters
    ----------
    pp, micro_batches, blocks
        Groups of devices, micro-batches, and what stages are made of. [items]
    deals_out
        Whether stages may have unequally many.
    """
    if pp == 1 or micro_batches % pp or (blocks % pp and not deals_out):
        return [1]
    if blocks % pp == 0:
        return divisors(blocks // pp)
    return sorted({-(-blocks // (pp * each)) for each in range(2, blocks // pp + 1)} | {1})
