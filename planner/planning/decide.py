"""Decide by simulation: the best assignments of the search, each run as it would really run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from costmodels.simulation import (
    Behaviour,
    Compiler,
    Job,
    SimulatedStep,
    load_runtime,
    run_graph,
)
from costmodels.simulation.pieces import Pieces
from costmodels.strategy.usual import single_stage
from planner.plan import Recost
from planner.planning.costing import Costed, cost
from planner.planning.formulate import Formulation
from planner.planning.options import SearchOptions
from planner.planning.search_plan import ASSEMBLY, SIMULATION
from planner.planning.tuning import FEW_BUCKETS, Attempt, tune_buckets
from planner.simulation.run import OVERLAP_FACTOR, computing_time, plan_runtime, waiting_time
from search.problem.deadline import Deadline
from search.problem.notes import Note

# Times are compared as parts of the first one's to so many decimals: what differs by less does so
# by the order in which it was added up. [digits]
TIME_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """The assignment that becomes the plan.

    Parameters
    ----------
    formulation
        The network on the machine, with the options of the step that were decided on.
    best
        The assignment, costed with them.
    simulated
        The assignments that were simulated, the fastest on the timeline first.
    notes
        Whether the simulation changed the order.
    stopped_by
        "time limit" or "interrupt" where the search or the decision was cut short, else empty.
    """

    formulation: Formulation
    best: Costed
    simulated: tuple[Recost, ...] = ()
    notes: tuple[Note, ...] = ()
    stopped_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToDecide:
    """The time until a plan must be there, and how long things take.

    Parameters
    ----------
    deadline
        When the plan must be there.
    pace
        Time that costing one assignment takes. [s]
    """

    deadline: Deadline
    pace: float

    def allows(self, costings: float) -> bool:
        """Whether so many costings can end before the plan must be put together."""
        return self.deadline.remaining >= (costings + ASSEMBLY) * self.pace


def decide(
    attempt: Attempt,
    options: SearchOptions,
    deadline: Deadline | None = None,
    *,
    num_usual: int = 0,
) -> Decision:
    """Choose the bucket size, then the fastest of the best assignments by simulation.

    An interrupt leaves what was decided until then. Before the deadline only what is likely to end
    in time is begun.

    Parameters
    ----------
    attempt
        A search that found an assignment that fits.
    options
        How many assignments to simulate, and whether the bucket size is to be chosen still.
    deadline
        When the plan must be there.
    num_usual
        Usual strategies that are costed again under another bucket size. [items]
    """
    result = attempt.result
    assert result.best is not None, "without an assignment that fits there is nothing to decide"
    decision = Decision(
        formulation=attempt.formulation, best=result.best, stopped_by=result.incumbent.stopped_by
    )
    known_bound = result.incumbent.bound
    time = TimeToDecide(deadline=deadline or Deadline(None), pace=result.pace)
    try:
        if not options.tune_trials and options.bucket_bytes is None:
            if time.allows(len(FEW_BUCKETS) + num_usual):
                options.tell("choosing the bucket size", result.incumbent.cost, known_bound)
                formulation, best = tune_buckets(decision.formulation, decision.best)
                decision = replace(decision, formulation=formulation, best=best)
            else:
                decision = replace(decision, notes=(Note.of("no-time-to-tune"),))
        options.tell("simulating the best", decision.best.step.total, known_bound)
        decision = _simulate_ranked(decision, result.ranked, options.num_best, time)
    except KeyboardInterrupt:
        decision = replace(decision, stopped_by="interrupt")
    return decision


def simulate_assignment(
    formulation: Formulation,
    costed: Costed,
    known: dict[tuple[int, ...], Pieces] | None = None,
) -> SimulatedStep:
    """Simulate one assignment with the usual runtime of a plan.

    Parameters
    ----------
    formulation
        The network on the machine.
    costed
        The assignment.
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
        training=machine.training,
        runtime=plan_runtime(load_runtime("ddp"), machine.training.bucket_bytes),
    )
    return run_graph(Compiler(job, known).compile(1), Behaviour(overlap_factor=OVERLAP_FACTOR))


def _simulate_ranked(
    decision: Decision, ranked: Sequence[Costed], num_best: int, time: TimeToDecide
) -> Decision:
    """The decision after simulating the best assignments.

    Parameters
    ----------
    decision
        What was decided so far; its assignment is simulated first, with the buckets that were
        tuned for it.
    ranked
        Assignments that fit, the fastest on the timeline first.
    num_best
        How many to simulate. [items]
    time
        The time until a plan must be there; as many are simulated as it allows.
    """
    formulation, first = decision.formulation, decision.best
    tried = [first, *(other for other in ranked if other.choices != first.choices)][:num_best]
    known: dict[tuple[int, ...], Pieces] = {}
    steps: list[SimulatedStep] = []
    for costed in tried:
        if not time.allows(SIMULATION):
            break
        steps.append(simulate_assignment(formulation, costed, known))
    notes = decision.notes
    if len(steps) < len(tried):
        note = Note.of("no-time-to-simulate", simulated=len(steps), wanted=len(tried))
        notes = (*notes, note)
    if not steps:
        return replace(decision, notes=notes)
    tried = tried[: len(steps)]
    capacity = formulation.cluster.device.memory
    devices = formulation.machine.topology.num_devices
    times = [step.step_time + waiting_time(computing_time(step), devices) for step in steps]
    fitting = [n for n, step in enumerate(steps) if step.peak.memory.total <= capacity]
    # the first of equals: the simulation must give a reason to leave the order of the timeline
    winner = min(fitting, key=lambda n: (round(times[n] / times[0], TIME_DIGITS), n), default=0)
    best = tried[winner]
    return replace(
        decision,
        # the others were costed without the tuned buckets
        best=first if best.choices == first.choices else cost(formulation, best.choices),
        simulated=tuple(
            Recost(
                timeline_s=costed.step.total,
                simulated_s=times[number],
                peak_memory_bytes=step.peak.memory.total,
                chosen=number == winner,
            )
            for number, (costed, step) in enumerate(zip(tried, steps, strict=True))
        ),
        notes=(*notes, *_order_notes(times, fitting, winner)),
    )


def _order_notes(times: Sequence[float], fitting: Sequence[int], winner: int) -> tuple[Note, ...]:
    """Whether the simulation changed the order.

    Parameters
    ----------
    times
        Simulated steps, the fastest on the timeline first. [s]
    fitting
        Numbers of those that fit when simulated.
    winner
        Number of the one chosen.
    """
    if winner and 0 in fitting:
        faster = 1.0 - times[winner] / times[0]
        return (Note.of("order-changed", place=winner + 1, faster=faster),)
    if winner:
        return (Note.of("first-does-not-fit"),)
    return () if fitting else (Note.of("plan-does-not-fit"),)
