"""Decide by simulation: the best assignments of the search, each run as it would really run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodels.simulation import (
    Behaviour,
    Compiler,
    Job,
    SimulatedStep,
    load_runtime,
    run_graph,
)
from costmodels.simulation.pieces import Pieces
from costmodels.step.training import Training
from costmodels.strategy.usual import single_stage
from planner.plan import Recost
from planner.planning.costing import Costed
from planner.planning.formulate import Formulation
from planner.simulation.run import OVERLAP_FACTOR, computing_time, plan_runtime, waiting_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Recosted:
    """The best assignments, simulated.

    Parameters
    ----------
    best
        The fastest that fits, by simulation.
    rows
        All of them, the fastest on the timeline first.
    notes
        Whether the order changed, a sentence.
    """

    best: Costed
    rows: tuple[Recost, ...]
    notes: tuple[str, ...]


def simulate_assignment(
    formulation: Formulation,
    costed: Costed,
    training: Training,
    known: dict[tuple[int, ...], Pieces] | None = None,
) -> SimulatedStep:
    """Simulate one assignment with the usual runtime of a plan.

    Parameters
    ----------
    formulation
        The network on the machine.
    costed
        The assignment.
    training
        Options of the step.
    known
        Costs of layers, which assignments share.
    """
    machine = formulation.machine
    shape = machine.topology.shape
    job = Job(
        graph=formulation.graph,
        strategy=single_stage(formulation.distributions(costed.choices), shape),
        cluster=formulation.cluster,
        shape=shape,
        compute=machine.compute,
        training=training,
        runtime=plan_runtime(load_runtime("ddp"), training.bucket_bytes),
    )
    return run_graph(Compiler(job, known).compile(1), Behaviour(overlap_factor=OVERLAP_FACTOR))


def recost(formulation: Formulation, ranked: Sequence[Costed], training: Training) -> Recosted:
    """Simulate assignments, and choose.

    Parameters
    ----------
    formulation
        The network on the machine.
    ranked
        Assignments that fit, the fastest on the timeline first.
    training
        Options of the step.
    """
    known: dict[tuple[int, ...], Pieces] = {}
    simulated = [simulate_assignment(formulation, costed, training, known) for costed in ranked]
    capacity = formulation.cluster.device.memory
    devices = formulation.machine.topology.num_devices
    times = [s.step_time + waiting_time(computing_time(s), devices) for s in simulated]
    fitting = [n for n, s in enumerate(simulated) if s.peak.memory.total <= capacity]
    # the first of equals: the simulation must give a reason to leave the order of the timeline
    winner = min(fitting, key=lambda n: (round(times[n] / times[0], 9), n), default=0)
    rows = tuple(
        Recost(
            timeline_s=costed.step.total,
            simulated_s=times[number],
            peak_memory_bytes=result.peak.memory.total,
            chosen=number == winner,
        )
        for number, (costed, result) in enumerate(zip(ranked, simulated, strict=True))
    )
    return Recosted(best=ranked[winner], rows=rows, notes=tuple(_notes(times, fitting, winner)))


def _notes(times: Sequence[float], fitting: Sequence[int], winner: int) -> list[str]:
    notes = []
    if winner:
        notes.append(
            f"simulation changed the order: the plan is number {winner + 1} on the timeline, and "
            f"{1.0 - times[winner] / times[0]:.1%} faster than the first when both are simulated"
            if 0 in fitting
            else "simulation changed the order: what was fastest on the timeline does not fit in "
            "memory when it is simulated"
        )
    elif not fitting:
        notes.append(
            "the plan does not fit in memory when it is simulated, though it does on the timeline"
        )
    return notes
