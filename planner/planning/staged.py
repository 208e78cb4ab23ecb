"""Strategies of stages, simulated as plans are, and the usual ones of that kind."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from costmodels.errors import InputError
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Runtime,
    SimulatedStep,
    load_runtime,
    run_graph,
)
from costmodels.simulation.shared_pieces import KnownPieces, PiecesByBatch
from costmodels.strategy import Strategy
from costmodels.strategy.blocks import is_transformer
from costmodels.units import format_bytes
from planner.notes import NO_TIME
from planner.plan import Baseline
from planner.request.by_degrees import (
    pieces_of_batch,
    replicas,
    strategy_by_degrees,
    with_default_micro_batches,
)
from planner.request.named_degrees import NAMED, usual_runtime
from planner.request.parts import Degrees
from planner.request.placement import PlacedNetwork, by_name
from planner.request.setting import DEFAULT_RUNTIME, Setting
from planner.simulation.compiled import compiler_of
from planner.simulation.run import OVERLAP_FACTOR, computing_time, plan_runtime, waiting_time
from search.problem.deadline import Deadline

# Sums of hundreds of sizes, in other orders, differ by that.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StagedStep:
    """A strategy of stages as it was simulated.

    Parameters
    ----------
    placed, degrees
        The network, the machine and the strategy, and the degrees it was made of, if any.
    runtime
        The framework's runtime.
    compiler
        What the step was laid out by.
    step
        The step of the devices.
    waiting, outside
        What is spent besides waiting for slower devices, and outside of layers. [s]
    """

    placed: PlacedNetwork
    degrees: Degrees | None
    runtime: Runtime
    compiler: Compiler
    step: SimulatedStep
    waiting: float
    outside: float

    @property
    def seconds(self) -> float:
        """The step. [s]"""
        return self.step.step_time + self.waiting + self.outside

    @property
    def peak_memory(self) -> float:
        """The most that any device holds. [B]"""
        return self.step.peak.memory.total

    @property
    def short(self) -> float:
        """By how much the most that any would hold is above its memory; negative below. [B]

        What devices would hold, were they not to give memory back to get other in every step: that
        waits for all that they compute, and leaves nothing to what the prediction lacks.
        """
        return self.step.lasting_short

    @property
    def fits(self) -> bool:
        """Whether that is within the memory of a device."""
        return self.short <= 0.0

    @property
    def capacity(self) -> float:
        """The memory of the devices that are the fullest. [B]"""
        return self.step.peak.capacity


def simulate_stages(
    placed: PlacedNetwork,
    runtime: Runtime,
    degrees: Degrees | None = None,
    known: KnownPieces | None = None,
) -> StagedStep:
    """Simulate a strategy of stages as plans are.

    Parameters
    ----------
    placed
        The network, the machine and the strategy.
    runtime
        The framework's runtime.
    degrees
        What the strategy was made of.
    known
        Costs of layers of such micro-batches on this cluster, to which new ones are added.
    """
    found = told_or_simulated(placed, runtime, degrees, known)
    assert found is not None
    return found


def told_or_simulated(
    placed: PlacedNetwork,
    runtime: Runtime,
    degrees: Degrees | None = None,
    known: KnownPieces | None = None,
    holds_more: Callable[[float], bool] | None = None,
) -> StagedStep | None:
    """As `simulate_stages`, but None where too much is held.

    Parameters
    ----------
    placed, runtime, degrees, known
        As of `simulate_stages`.
    holds_more
        Tells that by how much more than a device has it holds at least, negative below. [B]
    """
    runtime = plan_runtime(runtime, placed.setting.machine.training.bucket_bytes)
    compiler = compiler_of(placed, runtime, known=known)
    # sums in another order than that of a simulation
    rounding = _ROUNDING * placed.setting.cluster.device.memory
    if holds_more is not None and holds_more(compiler.roles.least_short - rounding):
        return None
    step = run_graph(compiler.compile(1), Behaviour(overlap_factor=OVERLAP_FACTOR))
    return StagedStep(
        placed=placed,
        degrees=degrees,
        runtime=runtime,
        compiler=compiler,
        step=step,
        waiting=waiting_time(computing_time(step), placed.strategy.num_waiting),
        outside=runtime.outside_layers,
    )


def tried(
    setting: Setting,
    degrees: Degrees,
    runtime: Runtime,
    known: PiecesByBatch | None = None,
    too_large: Callable[[Strategy], bool] | None = None,
    holds_more: Callable[[float], bool] | None = None,
) -> tuple[StagedStep | None, str]:
    """A strategy by its degrees, simulated; or why it cannot run.

    Parameters
    ----------
    setting
        The question.
    degrees
        The strategy.
    runtime
        Under which it is simulated.
    known
        Costs of layers, of the same question under any runtime, to which new ones are added.
    too_large
        Tells strategies that do not fit, and are not simulated for no reason.
    holds_more
        The same by how much more than a device has it holds at least, negative below. [B]
    """
    if runtime.name != DEFAULT_RUNTIME:
        setting = setting.under(runtime)
    if runtime.shard and degrees.sharding is None:
        degrees = replace(degrees, zero=0)  # not what the runtime cuts by itself
    try:
        known = {} if known is None else known
        strategy, graph, name = strategy_by_degrees(setting, degrees, runtime, known)
        if too_large is not None and too_large(strategy):
            return None, ""
        pieces = pieces_of_batch(known, setting, strategy.schedule.micro_batches)
        placed = PlacedNetwork(setting=setting, graph=graph, strategy=strategy, name=name)
        return told_or_simulated(placed, runtime, degrees, pieces, holds_more), ""
    except InputError as error:
        return None, str(error)


def usual_degrees(
    setting: Setting, stages_of_zero: Sequence[int] = (0, 1, 2, 3)
) -> dict[str, Degrees]:
    """The usual ways to train with several stages or micro-batches, the last by Megatron-LM.

    They are called as `planner evaluate --strategy` takes them. How many samples of a replica each
    takes at a time is left to `usual_trials`.

    Parameters
    ----------
    setting
        The question.
    stages_of_zero
        Those that the runtime has; ways with another one are left out.
    """
    host = math.prod(setting.machine.topology.shape[: setting.cluster.host_index + 1])
    attends = is_transformer(setting.graph)
    megatron = Degrees(
        tp=host,
        sequence_parallel=attends and host > 1,
        recompute="selective" if attends else "none",
        zero=1 if 1 in stages_of_zero else stages_of_zero[-1],
    )
    usual = {
        "data": Degrees(),
        **named("zero1", Degrees(zero=1)),
        **named("fsdp", Degrees(fsdp=True)),
        **named("megatron", megatron),
    }
    return {name: one for name, one in usual.items() if (one.sharding or 0) in stages_of_zero}


def named(name: str, degrees: Degrees) -> dict[str, Degrees]:
    """Degrees by what they are called, such as "megatron:tp=8,zero=1".

    Parameters
    ----------
    name
        A name of `planner.request.named_degrees.NAMED`.
    degrees
        What it stands for, and what follows it.
    """
    plain = NAMED[name]
    said = []
    for one in fields(Degrees):
        value = getattr(degrees, one.name)
        if value != getattr(plain, one.name):
            said.append(one.name if value is True else f"{one.name}={value}")
    return {f"{name}:{','.join(said)}" if said else name: degrees}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UsualTrial:
    """A usual way to train, simulated on the inputs of a question.

    Parameters
    ----------
    name
        What it is called.
    step
        Its step, None where it cannot run or there was no time.
    reason
        Why there is none.
    costed
        Whether there was time to find out.
    """

    name: str
    step: StagedStep | None
    reason: str
    costed: bool

    @property
    def baseline(self) -> Baseline:
        """What a plan says of it."""
        if self.step is None:
            return Baseline(
                name=self.name,
                step_time_s=None,
                peak_memory_bytes=None,
                fits=False,
                reason=self.reason,
                costed=self.costed,
            )
        short = self.step.short
        return Baseline(
            name=self.name,
            step_time_s=self.step.seconds,
            peak_memory_bytes=self.step.peak_memory,
            fits=short <= 0,
            reason=f"{format_bytes(short)} over the memory" if short > 0 else "",
        )


def _is_positive(short: float) -> bool:
    return short > 0.0


def usual_trials(
    setting: Setting,
    runtime: Runtime,
    deadline: Deadline,
    usual: Mapping[str, Degrees] | None = None,
    *,
    under_one: bool = False,
    known: PiecesByBatch | None = None,
) -> tuple[UsualTrial, ...]:
    """The usual ways to train on the same inputs.

    Each takes as many samples of a replica at a time as `planner evaluate` chooses; where that does
    not fit, all but plain data parallelism take half as many until they do.

    Parameters
    ----------
    setting, runtime
        The question, and under what it is simulated.
    deadline
        After which no other is simulated, nor any that would end after it if it took as long as
        the longest so far.
    usual
        What they are; those of `usual_degrees` by default.
    under_one
        Whether all of them are, instead of each under its own framework's runtime.
    known
        As of `tried`.
    """
    rows, longest = [], 0.0
    known = {} if known is None else known
    for name, degrees in (usual or usual_degrees(setting)).items():
        step, reason, costed = None, NO_TIME, False
        if deadline.remaining > longest:
            began = time.monotonic()
            other = usual_runtime(name, degrees)
            under = runtime if other is None or under_one else load_runtime(other)
            _, degrees = with_default_micro_batches(setting, degrees)
            share, costed = setting.batch // replicas(degrees, setting.gpus), True
            while True:
                # what takes fewer samples where it does not fit is not simulated to tell that
                size = (degrees.micro_batch_size or share) // 2
                too_much = _is_positive if degrees.asked_for and size else None
                step, reason = tried(setting, degrees, under, known, None, too_much)
                if reason or not too_much or (step is not None and step.fits) or deadline.passed:
                    break
                half = next(number for number in range(size, 0, -1) if share % number == 0)
                degrees = replace(degrees, micro_batch_size=half)
            if step is None and not reason:
                reason, costed = NO_TIME, False
            elif step is None and name == "data":
                step, reason = _with_unequal_shares(setting, under)
            if degrees.asked_for:
                (name,) = named(name.partition(":")[0], degrees)
            longest = max(longest, time.monotonic() - began)
        rows.append(UsualTrial(name=name, step=step, reason=reason, costed=costed))
    return tuple(rows)


def _with_unequal_shares(setting: Setting, runtime: Runtime) -> tuple[StagedStep | None, str]:
    """Data parallelism where the replicas do not divide the batch, as of `tried`."""
    under = setting if runtime.name == DEFAULT_RUNTIME else setting.under(runtime)
    try:
        return simulate_stages(by_name(under, "data"), runtime), ""
    except InputError as error:
        return None, str(error)
