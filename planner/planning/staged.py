"""Strategies of stages, simulated as plans are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import Struct

from costmodels.errors import InputError
from costmodels.simulation import (
    Behaviour,
    Compiler,
    Runtime,
    SimulatedStep,
    run_job,
)
from costmodels.simulation.shared_pieces import KnownPieces, PiecesByBatch
from costmodels.strategy import Strategy
from planner.request.by_degrees import (
    pieces_of_batch,
    strategy_by_degrees,
)
from planner.request.parts import Degrees
from planner.request.placement import PlacedNetwork
from planner.request.setting import DEFAULT_RUNTIME, Setting
from planner.simulation.compiled import compiler_of
from planner.simulation.run import OVERLAP_FACTOR, computing_time, plan_runtime, waiting_time

# Sums of hundreds of sizes, in other orders, differ by that.
_ROUNDING = 1e-9
# How plans are simulated.
BEHAVIOUR = Behaviour(overlap_factor=OVERLAP_FACTOR)


class StagedStep(Struct, frozen=True, kw_only=True, eq=False):
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
    before_long: Callable[[float], None] | None = None,
) -> StagedStep | None:
    """As `simulate_stages`, but None where too much is held.

    Parameters
    ----------
    placed, runtime, degrees, known
        As of `simulate_stages`.
    holds_more
        Tells that by how much more than a device has it holds at least, negative below. [B]
    before_long
        As of `costmodels.simulation.repeated.run_job`.
    """
    runtime = plan_runtime(runtime, placed.setting.machine.training.bucket_bytes)
    compiler = compiler_of(placed, runtime, known=known)
    # sums in another order than that of a simulation
    rounding = _ROUNDING * placed.setting.cluster.device.memory
    if holds_more is not None and holds_more(compiler.roles.least_short - rounding):
        return None
    step, _ = run_job(compiler, BEHAVIOUR, before_long)
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
    before_long: Callable[[float], None] | None = None,
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
    before_long
        As of `told_or_simulated`.
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
        return told_or_simulated(placed, runtime, degrees, pieces, holds_more, before_long), ""
    except InputError as error:
        return None, str(error)
