"""Inputs of a request that belong together: degrees of parallelism, and how samples are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import ConflictError
from planner.request.inputs import degrees as one_of
from planner.request.inputs.degrees import OFFLOADED, axes_of, blocks_of, names_of
from planner.request.inputs.description import part_inputs
from planner.request.inputs.recompute import recomputed
from planner.request.inputs.simulating import (
    CORES,
    LOADER,
    LOADER_RATE,
    SIMULATE,
    STORAGE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Degrees of parallelism, the schedule of micro-batches, and what is cut or computed again.

    Parameters
    ----------
    dp, tp, pp, cp, ep, etp
        Ways of data, tensor, pipeline, context and expert parallelism, and of tensor parallelism
        within experts; dp of None is what the others leave, etp of None is tp. [ways]
    sequence_parallel
        Whether the ranks of tensor parallelism divide sequences where they would do the same.
    uneven_heads
        Whether ranks of tensor parallelism may have unequally many heads.
    micro_batches, micro_batch_size
        Parts that the batch is cut into, or the samples of a replica in one of them. [items]
    schedule
        One of `costmodels.strategy.SCHEDULES`, None for the usual one.
    chunks
        Stages of each group of devices, with the schedule "interleaved". [items]
    stage_blocks
        Blocks of each stage: "equal", "balanced", or how many. [items]
    max_in_flight
        Forward passes of a stage whose backward pass is still to come; None for the schedule's.
        [items]
    recompute
        "none", "selective", "operations", "full", of how many blocks of a stage everything is
        computed again, or of which blocks or layers.
    zero, fsdp
        The stage of ZeRO, None for what the runtime cuts; whether that is 3, block by block.
    shard_size
        Replicas that what is cut is cut over; None for all. [items]
    offload
        Some of "activations", "weights" and "optimizer", which wait in the memory of the host.
    cp_kind
        "ring" or "all-to-all".
    axes
        The order in which axes take the levels of the cluster, from the inside out.

    Raises
    ------
    InputError
        When a value cannot be used.
    """

    dp: int | None = one_of.DP.default
    tp: int = one_of.TP.default
    pp: int = one_of.PP.default
    cp: int = one_of.CP.default
    ep: int = one_of.EP.default
    etp: int | None = one_of.ETP.default
    sequence_parallel: bool = one_of.SEQUENCE_PARALLEL.default
    uneven_heads: bool = one_of.UNEVEN_HEADS.default
    micro_batches: int | None = one_of.MICRO_BATCHES.default
    micro_batch_size: int | None = one_of.MICRO_BATCH_SIZE.default
    schedule: str | None = one_of.SCHEDULE.default
    chunks: int = one_of.CHUNKS.default
    stage_blocks: str | Sequence[int] = one_of.STAGE_BLOCKS.default
    max_in_flight: int | None = one_of.MAX_IN_FLIGHT.default
    recompute: str | int | bool | Sequence[str | int] = one_of.RECOMPUTE.default
    zero: int | None = one_of.ZERO.default
    fsdp: bool = one_of.FSDP.default
    shard_size: int | None = one_of.SHARD_SIZE.default
    offload: str | Sequence[str] = one_of.OFFLOAD.default
    cp_kind: str = one_of.CP_KIND.default
    axes: str | Sequence[str] = one_of.AXES_ORDER.default

    def __post_init__(self) -> None:
        _check_part(self, "degrees")
        for name, value in (
            ("recompute", recomputed(self.recompute)),
            ("offload", names_of(self.offload, OFFLOADED, "offload")),
            ("axes", axes_of(self.axes)),
            ("stage_blocks", blocks_of(self.stage_blocks)),
        ):
            object.__setattr__(self, name, value)
        if self.micro_batches is not None and self.micro_batch_size is not None:
            raise ConflictError(
                "give either --micro-batches or --micro-batch-size: the other follows from the "
                "global batch"
            )
        if self.chunks > 1 == self.pp:
            raise ConflictError(
                f"--chunks deals {self.chunks} stages each out to several groups of GPUs, but --pp "
                "is 1; raise it or leave --chunks out"
            )
        if self.fsdp and self.zero not in (None, 3):
            raise ConflictError(
                f"--fsdp is --zero 3, block by block, but --zero is {self.zero}; leave one out"
            )
        if self.shard_size is not None and not (self.fsdp or self.zero):
            raise ConflictError(
                "--shard-size says over how many replicas --zero or --fsdp cut, but neither is "
                "given; add one"
            )

    @property
    def asked_for(self) -> bool:
        """Whether any of it was asked for."""
        return self != Degrees()

    @property
    def sharding(self) -> int | None:
        """The stage of ZeRO, None for what the runtime cuts."""
        return 3 if self.fsdp else self.zero

    @property
    def ways_in_expert(self) -> int:
        """Of tensor parallelism within an expert. [ways]"""
        return self.etp or self.tp

    @property
    def expert_replicas(self) -> int:
        """Replicas that experts are shared out among, after ranks of `tp` and `cp`. [items]"""
        return max(self.ep * self.ways_in_expert // (self.tp * self.cp), 1)

    @property
    def schedule_kind(self) -> str:
        """The schedule."""
        return self.schedule or ("interleaved" if self.chunks > 1 else "1f1b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How the samples of a step are loaded.

    Parameters
    ----------
    loader
        A name of `costmodels.input_pipeline.list_loaders`; "synthetic" costs nothing.
    rate
        Samples that a host loads in a second, where measured; None for the loader's model.
        [samples/s]
    cores
        Cores of a host, None for the default. [items]
    storage
        A name of `costmodels.input_pipeline.list_storages`, None for the loader's.

    Raises
    ------
    InputError
        When a value cannot be used, or nothing is loaded, but it is said how.
    """

    loader: str = LOADER.default
    rate: float | None = LOADER_RATE.default
    cores: int | None = CORES.default
    storage: str | None = STORAGE.default

    def __post_init__(self) -> None:
        _check_part(self, "loading")
        unused = (self.rate, self.cores, self.storage) != (None, None, None)
        if self.loader == LOADER.default and unused:
            raise ConflictError(
                "--loader-rate, --cores and --storage need a --loader that loads, such as native"
            )


def _check_part(part: Degrees | Loading, name: str) -> None:
    """Check all that a part of a request says, and keep it as it is used inside."""
    for one in part_inputs(SIMULATE, name):
        given = getattr(part, one.name)
        object.__setattr__(part, one.name, one.check(one.default if given is None else given))
